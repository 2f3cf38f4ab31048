"""Tensor operations, the same for every architecture: attention, element-wise parts, quantization."""
