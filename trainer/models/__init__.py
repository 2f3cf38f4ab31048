"""The architectures on the board: one file and one line each."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from trainer.models.base import Architecture

ARCHITECTURES = {
    "gpt": "trainer.models.gpt",
    "nanogpt": "trainer.models.nanogpt",
    "litgpt": "trainer.models.litgpt",
    "smear": "trainer.models.smear",
    "rwkv5": "trainer.models.rwkv5",
}

PRESETS = {f"rwkv5-{size}": ("rwkv5", size) for size in ("tiny", "169m", "430m", "1b5", "3b", "7b")}
"""Architectures at a fixed size: their own and the name of the size, which its `preset` knows."""


class UnknownArchitecture(ValueError):
    """There is no architecture of that name."""


def architecture(name: str) -> Architecture:
    """Import the module of an architecture; raise `UnknownArchitecture` for a name that is not in the dicts."""
    if name in PRESETS:
        family, size = PRESETS[name]
        return cast("Architecture", importlib.import_module(ARCHITECTURES[family]).preset(size))
    if name not in ARCHITECTURES:
        raise UnknownArchitecture(f"there is no architecture {name!r}; the known ones are {', '.join(ARCHITECTURES)}")
    return cast("Architecture", importlib.import_module(ARCHITECTURES[name]))
