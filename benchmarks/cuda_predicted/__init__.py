"""A training step on an H100, predicted without one: kernels, bytes, FLOPs and planned memory."""
