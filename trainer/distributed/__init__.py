"""Several devices: strategies, sharded tensors, launching processes."""
