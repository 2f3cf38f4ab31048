"""The architectures: one file and one line each."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from trainer.errors import UserError

if TYPE_CHECKING:
    from trainer.models.base import Architecture

ARCHITECTURES = {
    "gpt": "trainer.models.gpt",
    "nanogpt": "trainer.models.nanogpt",
    "litgpt": "trainer.models.litgpt",
    "smear": "trainer.models.smear",
    "rwkv5": "trainer.models.rwkv5",
    "moe": "trainer.models.moe",
}

PRESETS = {
    "rwkv5-tiny": ("rwkv5", "tiny"),
    "rwkv5-169m": ("rwkv5", "169m"),
    "rwkv5-430m": ("rwkv5", "430m"),
    "rwkv5-1b5": ("rwkv5", "1b5"),
    "rwkv5-3b": ("rwkv5", "3b"),
    "rwkv5-7b": ("rwkv5", "7b"),
}
"""Architectures at a fixed size: `ARCHITECTURE-SIZE` -> (architecture, argument of its `build_preset`). Plain values,
which the site reads without running them."""


class UnknownArchitectureError(UserError):
    """No architecture has this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no architecture {name!r}; the known ones are {', '.join(ARCHITECTURES)}")


def load_architecture(name: str) -> Architecture:
    """Import the module of an architecture; raise `UnknownArchitectureError` for an unknown name."""
    if name in PRESETS:
        family, size = PRESETS[name]
        return cast("Architecture", importlib.import_module(ARCHITECTURES[family]).build_preset(size))
    check_architecture_name(name)
    return cast("Architecture", importlib.import_module(ARCHITECTURES[name]))


def check_architecture_name(name: str) -> None:
    """Raise `UnknownArchitectureError` unless an architecture or a preset has this name."""
    if name not in ARCHITECTURES and name not in PRESETS:
        raise UnknownArchitectureError(name)
