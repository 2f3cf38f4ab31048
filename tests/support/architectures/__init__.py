"""Public architectures as entries: one file each, as a contributor would write it. Test data, and examples."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from trainer.models.base import Architecture

PUBLIC_ARCHITECTURES = ("recurrent_depth", "delta_net", "mamba", "hyena")


def load_public_architecture(name: str) -> Architecture:
    """Import an example."""
    return cast("Architecture", importlib.import_module(f"{__name__}.{name}"))
