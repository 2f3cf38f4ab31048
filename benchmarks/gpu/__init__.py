"""Everything that needs a GPU, measured and compared with what is expected. `benchmarks/gpu.sh` starts it."""
