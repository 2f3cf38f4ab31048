"""How fast are packets given out and taken in? `python -m benchmarks.rephrase` says what it measures."""
