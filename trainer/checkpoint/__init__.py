"""Checkpoints on disk, and other projects' checkpoint formats."""
