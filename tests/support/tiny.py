"""Flags of `dailytrain train` for the smallest run. It is not traced, which takes seconds."""

from __future__ import annotations

TINY_TRAINING = (
    *("--train.sequence-length", "32", "--train.batch", "4", "--train.dev-tokens", "256", "--train.sample-tokens", "4"),
    "--eager",
    # Fixed, since the faster precision differs between machines.
    *("--device", "cpu", "--threads", "1", "--train.precision", "fp32"),
)
"""Flags without those of the model. A step takes milliseconds."""
TINY = ("--model.depth", "2", "--model.width", "32", "--model.heads", "2", *TINY_TRAINING)
"""The same with a Transformer."""
TINY_TRACED = tuple(flag for flag in TINY if flag != "--eager")
"""The same, of graphs."""
TINY_RWKV5 = ("--arch", "rwkv5", "--model.depth", "2", "--model.width", "64", "--train.chunk", "8", *TINY_TRAINING)
"""The smallest run of RWKV-5, on rows in chunks."""
