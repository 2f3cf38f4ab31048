"""Language-model back ends. All use OpenAI's HTTP API: an existing server, or one started for the session.

One file per back end, one line in `BACKENDS`. A back end completes one prompt at a time and knows nothing of packets,
so outputs cannot be assigned to the wrong chunk.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol, cast

from trainer.rephrase.backends.protocol import (
    BackendConfig,
    BackendContext,
    BackendError,
    BackendUnavailableError,
    Completion,
    CompletionClient,
    PromptRejectedError,
    PromptTooLongError,
)

__all__ = [
    "BACKENDS",
    "Backend",
    "BackendConfig",
    "BackendContext",
    "BackendError",
    "BackendUnavailableError",
    "Completion",
    "CompletionClient",
    "PromptRejectedError",
    "PromptTooLongError",
    "load_backend",
]


class Backend(Protocol):
    """Interface of the back-end modules."""

    def choose_parallel(self, context: BackendContext) -> int:
        """Return the number of prompts at a time, unless configured."""

    def find_problem(self, config: BackendConfig) -> str:
        """Return why this configuration cannot work, in a sentence; "" if no problem is visible before starting."""

    def list_models(self, config: BackendConfig) -> tuple[str, ...] | None:
        """Return the models it can serve, by the campaigns' names; None for any. Raise `BackendError`."""

    def open_client(
        self, config: BackendConfig, model: str, revision: str, context: BackendContext
    ) -> AbstractContextManager[CompletionClient]:
        """Start or connect to a server for a model; stop what was started on exit. Raise `BackendError`."""


BACKENDS: Mapping[str, str] = {
    "endpoint": "trainer.rephrase.backends.endpoint",
    "vllm": "trainer.rephrase.backends.vllm",
    "transformers": "trainer.rephrase.backends.transformers_cpu",
}


def load_backend(kind: str) -> Backend:
    """Return a back end, imported on first use."""
    return cast(Backend, importlib.import_module(BACKENDS[kind]))
