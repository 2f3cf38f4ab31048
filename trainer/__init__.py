"""What runs on a lent GPU: the trainer, the trusted scorer and the node's agent."""

__version__ = "0.1.0"
