"""Load test of pages: `python -m benchmarks.site`."""
