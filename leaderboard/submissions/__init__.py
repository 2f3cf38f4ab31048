"""Entries: their repositories, review, smoke runs and estimates."""
