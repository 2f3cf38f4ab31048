"""What an H100 would run, predicted without one: kernels, bytes, FLOPs and planned memory of a training step."""
