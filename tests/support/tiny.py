"""The smallest run that is one, as flags of `dailytrain train`. It is not traced, which takes seconds."""

from __future__ import annotations

TINY = (
    *("--model.depth", "2", "--model.width", "32", "--model.heads", "2"),
    *("--train.sequence-length", "32", "--train.batch", "4", "--train.dev-tokens", "256", "--train.sample-tokens", "4"),
    "--eager",
    # What is measured to be faster differs from machine to machine.
    *("--device", "cpu", "--threads", "1", "--train.precision", "fp32"),
)
"""Flags of a run that takes milliseconds a step."""
