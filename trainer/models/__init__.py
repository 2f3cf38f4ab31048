"""The architectures on the board: one file and one line each."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from trainer.models.base import Architecture

ARCHITECTURES = {
    "gpt": "trainer.models.gpt",
    "litgpt": "trainer.models.litgpt",
    "smear": "trainer.models.smear",
}


class UnknownArchitecture(ValueError):
    """There is no architecture of that name."""


def architecture(name: str) -> Architecture:
    """Import the module of an architecture; raise `UnknownArchitecture` for a name that is not in the dict."""
    if name not in ARCHITECTURES:
        raise UnknownArchitecture(f"there is no architecture {name!r}; the known ones are {', '.join(ARCHITECTURES)}")
    return cast("Architecture", importlib.import_module(ARCHITECTURES[name]))
