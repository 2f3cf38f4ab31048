"""Types that rephrasing sessions and back ends share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from trainer.errors import UserError
from trainer.protocol import Gpu


class BackendError(UserError):
    """The back end cannot be used with this configuration; the message is a sentence for the volunteer."""


class BackendUnavailableError(Exception):
    """The back end does not respond at the moment: retry later."""


class PromptTooLongError(Exception):
    """Prompt and completion exceed the model's context length."""


class PromptRejectedError(Exception):
    """The back end rejected the prompt; a retry will not help."""


@dataclass(frozen=True)
class BackendConfig:
    kind: str  # a key of `BACKENDS`
    url: str = ""  # of an endpoint, up to and including `/v1`
    model: str = ""  # the only model to serve; empty: the model of any campaign
    served_as: str = ""  # the endpoint's name of that model; empty: the same
    weights: str = ""  # local folder of the model; empty: download it from the Hugging Face Hub
    api_key: str = field(default="", repr=False)  # of the endpoint, sent as a bearer token
    parallel: int | None = None  # prompts at a time; None: the back end's default
    context: int = 4096  # context length of a started server: tokens of prompt and completion
    flags: tuple[str, ...] = ()  # extra command-line arguments of a started server


@dataclass(frozen=True)
class BackendContext:
    """The environment of a started server: its log, variables, GPUs and needs."""

    log: Path  # its output is appended there
    environment: Mapping[str, str] = field(default_factory=dict)  # variables added to our own, such as the visible GPUs
    gpus: tuple[Gpu, ...] = ()  # that it may use
    is_canceled: Callable[[], bool] = bool  # returns True once nothing should wait for the server any more
    needs_gigabytes: float | None = None  # GPU memory that the model needs; None: unknown
    speculative_tokens: int | None = None  # of the campaign (`protocol.RephraseOrder`)


@dataclass(frozen=True)
class Completion:
    text: str
    ended: Literal["stop", "length"]
    tokens: int  # generated tokens, as counted by the back end


class CompletionClient(Protocol):
    """A ready back end. Thread-safe."""

    title: str  # kind of the back end

    def complete(self, prompt: str, sampling: Mapping[str, float], seed: int) -> Completion:
        """Complete a prompt. Raise `BackendUnavailableError`, `PromptTooLongError` or `PromptRejectedError`."""

    def recover(self) -> None:
        """Restart a server that has died. Raise `BackendError` after too many restarts."""


@dataclass(frozen=True)
class CompletionRequest:
    prompt: str
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all tokens
    max_tokens: int = 512
    seed: int = 0


class CompletionModel(Protocol):
    context: int  # context length: tokens of prompt and completion together

    def count_tokens(self, prompt: str) -> int:
        """Return the tokens of the prompt, including those that the chat template adds."""

    def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        """Complete several prompts, each with its own sampling parameters and seed."""
