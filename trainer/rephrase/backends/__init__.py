"""What writes. All speak OpenAI's protocol over HTTP: a server that is there, or one that we start beside the sitting.

One file per back end, one line in `BACKENDS`. A back end never sees a packet, only one prompt at a time, and its answer
belongs to that prompt: nothing can be shifted.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol, cast

from trainer.rephrase.backends.protocol import (
    Answer,
    BackEndError,
    Declined,
    Place,
    PromptTooLong,
    Setup,
    Unavailable,
    Writer,
)

__all__ = [
    "BACKENDS",
    "Answer",
    "BackEnd",
    "BackEndError",
    "Declined",
    "Place",
    "PromptTooLong",
    "Setup",
    "Unavailable",
    "Writer",
    "back_end",
]


class BackEnd(Protocol):
    """What each of these modules has."""

    PARALLEL: int
    """Prompts at a time, where nobody says otherwise."""

    def why_not(self, setup: Setup) -> str:
        """Return why it does not work with this, in a sentence; "" if it does, as far as can be seen from here."""

    def models(self, setup: Setup) -> tuple[str, ...] | None:
        """Return the campaigns' models that it can write with; None for any. Raise `BackEndError`."""

    def opened(self, setup: Setup, model: str, revision: str, place: Place) -> AbstractContextManager[Writer]:
        """Make it ready for a model; what was started for it is ended at the end. Raise `BackEndError`."""


BACKENDS: Mapping[str, str] = {
    "endpoint": "trainer.rephrase.backends.endpoint",
    "vllm": "trainer.rephrase.backends.vllm",
    "transformers": "trainer.rephrase.backends.transformers_cpu",
}


def back_end(kind: str) -> BackEnd:
    """Return one of them, imported when it is needed."""
    return cast(BackEnd, importlib.import_module(BACKENDS[kind]))
