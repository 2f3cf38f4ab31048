"""The code that runs on lent GPUs: the trainer, the trusted scorer and the node's agent."""

__version__ = "0.1.0"
