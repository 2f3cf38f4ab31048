"""Activation checkpointing: of a block only its input is kept, and the block runs again when its gradient is wanted.

Memory for activations falls to about the blocks' inputs, work grows by the blocks' forward pass: about a third
(Chen et al., arXiv 1604.06174). The gradients are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torch.utils.checkpoint import checkpoint

from trainer.models.base import LanguageModel


def enable_activation_checkpointing(model: LanguageModel) -> None:
    """Have every block do so, whenever gradients are asked for. Names of parameters stay."""
    for block in model.repeated_blocks():
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


@contextmanager
def disable_activation_checkpointing(model: LanguageModel) -> Iterator[None]:
    """In here blocks keep what they compute, as they did at first."""
    changed = {block: vars(block).pop("forward") for block in model.repeated_blocks() if "forward" in vars(block)}
    try:
        yield
    finally:
        for block, forward in changed.items():
            block.forward = forward
