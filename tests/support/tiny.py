"""Flags of `dailytrain train` for the smallest run."""

from __future__ import annotations

TRACED_TRAINING = (
    *("--train.sequence-length", "32", "--train.batch", "4", "--train.dev-tokens", "256", "--train.sample-tokens", "4"),
    # Fixed, since the faster precision differs between machines.
    *("--device", "cpu", "--threads", "1", "--train.precision", "fp32"),
)
"""Flags without those of the model. A step takes milliseconds."""
TINY_TRAINING = (*TRACED_TRAINING, "--eager")
"""The same without tracing, which takes seconds."""
MODEL = ("--model.depth", "2", "--model.width", "32", "--model.heads", "2")
TINY, TINY_TRACED = (*MODEL, *TINY_TRAINING), (*MODEL, *TRACED_TRAINING)
"""The same with a Transformer."""
TINY_RWKV5 = ("--arch", "rwkv5", "--model.depth", "2", "--model.width", "64", "--train.chunk", "8", *TINY_TRAINING)
"""The same with RWKV-5 on rows in chunks."""
