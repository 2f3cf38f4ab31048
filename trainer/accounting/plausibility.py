"""Why a count of FLOPs is void."""

from __future__ import annotations

NO_FORMULA = "The model runs an operator without a registered formula: its FLOPs are not known."
LEAVES_TORCH = "The model takes tensors out of torch while it computes: its FLOPs cannot be counted."
CHANGES = "The model does other work in the middle of training than when its FLOPs were counted first."
FAILED = "The model's FLOPs could not be counted: a forward and backward pass failed."
IMPOSSIBLE = "The count of the model's FLOPs cannot be right."
VOID_REASONS = ("", NO_FORMULA, LEAVES_TORCH, CHANGES, FAILED, IMPOSSIBLE)
"""Reasons for a void count. The empty one means that it is valid."""
