"""The smallest run that is one, as flags of `dailytrain train`. It is not traced, which takes seconds."""

from __future__ import annotations

TINY_TRAINING = (
    *("--train.sequence-length", "32", "--train.batch", "4", "--train.dev-tokens", "256", "--train.sample-tokens", "4"),
    "--eager",
    # What is measured to be faster differs from machine to machine.
    *("--device", "cpu", "--threads", "1", "--train.precision", "fp32"),
)
"""Flags of a run that takes milliseconds a step, but for its model."""
TINY = ("--model.depth", "2", "--model.width", "32", "--model.heads", "2", *TINY_TRAINING)
"""The same with a Transformer."""
TINY_RWKV5 = ("--arch", "rwkv5", "--model.depth", "2", "--model.width", "64", "--train.chunk", "8", *TINY_TRAINING)
"""The same with RWKV-5 on rows in chunks."""
