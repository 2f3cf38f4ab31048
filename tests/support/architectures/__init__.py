"""Public architectures as entries, in files as a contributor would write them, or as compact parts. Examples."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from tests.support.architectures.compact import PARTS, build_architecture

if TYPE_CHECKING:
    from trainer.models.base import Architecture

COMPACT_ARCHITECTURES = tuple(PARTS)
PUBLIC_ARCHITECTURES = ("recurrent_depth", "delta_net", "mamba", "hyena")


def load_public_architecture(name: str) -> Architecture:
    """Return an example."""
    if name in PARTS:
        return cast("Architecture", build_architecture(name))
    return cast("Architecture", importlib.import_module(f"{__name__}.{name}"))
