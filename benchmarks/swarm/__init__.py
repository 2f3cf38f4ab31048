"""Costs and gains of a swarm. Each module answers one question: `python -m benchmarks.swarm.NAME`."""
