"""Everything that needs a GPU, in one command of at most nine minutes: `python -m benchmarks.gpu`."""
