"""transformers on the processor, for small models: `trainer.rephrase.serve`, started by us."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from trainer.rephrase.backends.endpoint import Endpoint
from trainer.rephrase.backends.protocol import BackEndError, Place, Setup
from trainer.rephrase.backends.server import served

PARALLEL = 8
"""Prompts that are written together, as one batch."""


def why_not(setup: Setup) -> str:
    if importlib.util.find_spec("transformers") is None:
        return "transformers is not installed: pip install 'dailytrain[rephrase,training]'."
    if not setup.model:
        return "On the processor only small models work: name the one to work for with --model."
    return ""


def models(setup: Setup) -> tuple[str, ...] | None:
    return (setup.model,)


@contextmanager
def opened(setup: Setup, model: str, revision: str, place: Place) -> Iterator[Endpoint]:
    command = [sys.executable, "-m", "trainer.rephrase.serve"]
    with served(lambda port: [*command, *words(setup, model, revision, port)], model, place, "transformers") as ready:
        yield ready


def words(setup: Setup, model: str, revision: str, port: int) -> list[str]:
    """Return its flags. Raise `BackEndError` for a model whose name is none."""
    if model.startswith("-") or revision.startswith("-"):
        raise BackEndError(f"{model} {revision} is no model's name. Nothing was started.")
    made = ["--model", setup.weights or model, "--served-as", model, "--port", str(port)]
    made += ["--revision", revision] if revision and not setup.weights else []
    made += ["--context", str(setup.context), "--batch", str(setup.parallel or PARALLEL)]
    return [*made, *setup.flags]
