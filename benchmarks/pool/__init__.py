"""Load test of node polls: `python -m benchmarks.pool`."""
