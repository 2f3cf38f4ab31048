"""A model's blocks: what may be computed again going backward, gathered from other devices or translated one by one."""

from __future__ import annotations

from torch import nn

from trainer.models.base import LanguageModel


def blocks(model: LanguageModel) -> list[nn.Module]:
    """Return the modules that stand in a `ModuleList`, without those inside of another one."""
    found: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for module in model.modules():  # outer ones first
        if isinstance(module, nn.ModuleList) and module not in inside:
            found += module
            inside |= {part for block in module for part in block.modules()}
    return found
