"""Entries: their repositories, review, smoke tests and estimates."""
