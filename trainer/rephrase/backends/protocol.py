"""What a sitting and its back end say to each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol


class BackEndError(ValueError):
    """The back end cannot be used as it is set up, in a sentence for the volunteer."""


class Unavailable(Exception):
    """The back end does not answer just now: try again later."""


class PromptTooLong(Exception):
    """Prompt and answer do not fit into the model."""


class Declined(Exception):
    """The back end understood the question and will not answer it; asking again is of no use."""


@dataclass(frozen=True)
class Setup:
    """What a volunteer says about the back end."""

    kind: str
    """A key of `BACKENDS`."""
    url: str = ""
    """Of an endpoint, up to and with `/v1`."""
    model: str = ""
    """The only model to work for; empty: any that a campaign asks for."""
    served_as: str = ""
    """What the endpoint calls that model; empty: the same."""
    weights: str = ""
    """A folder to load it from; empty: from the Hub, by its name."""
    key: str = field(default="", repr=False)
    """Of the endpoint, sent as a bearer token."""
    parallel: int | None = None
    """Prompts at a time; None: what is usual for the back end."""
    context: int = 4096
    """Tokens of prompt and answer that a server of ours makes room for."""
    flags: tuple[str, ...] = ()
    """Further words for the command line of a server of ours."""


@dataclass(frozen=True)
class Place:
    """Where a server of ours runs."""

    log: Path
    """Its output is added there."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """On top of our own: which GPUs are its."""
    gpus: int = 0
    """How many there are for it."""
    unwanted: Callable[[], bool] = bool
    """Should it not be waited for any longer?"""


@dataclass(frozen=True)
class Answer:
    text: str
    ended: Literal["stop", "length"]
    tokens: int
    """Written, as the back end counts."""


class Writer(Protocol):
    """A back end that is ready. Safe to use from several threads."""

    title: str
    """Its kind, and what it says of itself."""

    def write(self, prompt: str, sampling: Mapping[str, float], seed: int) -> Answer:
        """Ask once. Raise `Unavailable`, `PromptTooLong` or `Declined`."""

    def look_after(self) -> None:
        """After `Unavailable`: start anew what has ended. Raise `BackEndError` where that is of no use."""
