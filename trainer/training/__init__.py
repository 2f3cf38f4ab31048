"""The training run: setup, loop, evaluation, metrics."""
