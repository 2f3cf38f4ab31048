"""Trials of an idea on this machine: a ladder of the baseline, the idea at the full budget, and their comparison."""
