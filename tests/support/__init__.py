"""Helpers shared by tests, imported by their full name."""
