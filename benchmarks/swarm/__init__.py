"""What a swarm costs and what it brings: each question is a module, `python -m benchmarks.swarm.NAME`."""
