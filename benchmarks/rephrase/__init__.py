"""Load test of packets: `python -m benchmarks.rephrase`."""
