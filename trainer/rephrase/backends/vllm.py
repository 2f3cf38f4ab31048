"""vLLM, started by us as its OpenAI-compatible server, on the GPUs of this lane."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.rephrase.backends.endpoint import Endpoint
from trainer.rephrase.backends.protocol import BackEndError, Place, Setup
from trainer.rephrase.backends.server import served

PARALLEL = 64
"""Enough that its scheduler always has prompts waiting, on a card with 12 GB."""
PROGRAM = "vllm"


def why_not(setup: Setup) -> str:
    if program() is None:
        return "vLLM is not installed: pip install 'dailytrain[rephrase,vllm]', or name a server with --endpoint."
    return ""


def models(setup: Setup) -> tuple[str, ...] | None:
    return (setup.model,) if setup.model else None


@contextmanager
def opened(setup: Setup, model: str, revision: str, place: Place) -> Iterator[Endpoint]:
    with served(lambda port: command_line(setup, model, revision, port, place.gpus), model, place, "vllm") as ready:
        yield ready


def command_line(setup: Setup, model: str, revision: str, port: int, gpus: int) -> list[str]:
    """Return the words that start it. Raise `BackEndError` for a model whose name is none."""
    if model.startswith("-") or revision.startswith("-"):
        raise BackEndError(f"{model} {revision} is no model's name. Nothing was started.")
    words = [program() or PROGRAM, "serve", setup.weights or model, "--served-model-name", model]
    words += ["--revision", revision] if revision and not setup.weights else []
    words += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(setup.context)]
    words += ["--tensor-parallel-size", str(gpus)] if gpus > 1 else []
    return [*words, *setup.flags]


def program() -> str | None:
    """Return its command: beside this Python, or on the path."""
    beside = Path(sys.executable).with_name(PROGRAM)
    return str(beside) if beside.exists() else shutil.which(PROGRAM)
