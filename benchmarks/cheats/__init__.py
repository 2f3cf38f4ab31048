"""Architectures that cheat, honest ones that look unusual, and what becomes of them as graphs."""
