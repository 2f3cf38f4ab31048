"""Cheating architectures, honest ones that look unusual, and the verdicts on their graphs."""
