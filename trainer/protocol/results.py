"""Results of jobs: the content of `Finish.result`, one model per kind of order."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainer.protocol.version import Message

Cause = Literal["model", "infrastructure"]
"""Whose fault a failure is: the entry's ("model": it counts), ours or the node's ("infrastructure": it is retried)."""


class ProbeReading(Message):
    """What one measurement found."""

    tokens_per_second: float = Field(gt=0, lt=1e15)
    """By the median step."""
    spread: float = Field(ge=0, lt=1e6)
    """Interquartile range of the steps' times over their median."""
    steps: int = Field(ge=1)
    loss: float
    """Of the second step, nats per token: the same wherever the same was computed."""


class ProbeComparison(Message):
    """Under "probes" in the result of a training whose order asks for it."""

    version: Literal[1] = 1
    before: ProbeReading | None = None
    """None: it did not work on this node; its log says why."""
    after: ProbeReading | None = None


class ReplayResult(Message):
    """The result of a replay."""

    version: Literal[1] = 1
    step: int = Field(ge=1)
    exact: bool
    """The weights are the same to the last bit."""
    deviation: float = Field(ge=0)
    """|replayed - claimed| over the distance that the claimed weights moved in the stretch."""


class SmokeCheck(Message):
    name: Literal["starts", "fits", "learns", "causal"]
    passed: bool
    text: str = Field(max_length=1000)
    """A sentence where it failed, else what was seen."""


Count = Annotated[float, Field(ge=0, lt=1e30)]


class SmokeResult(Message):
    """The result of a smoke run. Advisory: the entry's code ran beside it. None: not known, or not reached."""

    version: Literal[1] = 1
    passed: bool
    sentence: str = Field(max_length=1000)
    checks: tuple[SmokeCheck, ...] = Field(max_length=8)
    file: str = Field(default="", max_length=200)
    """Where in the entry's files it failed, with `line` and the text there; empty where nobody can say."""
    line: int = Field(default=0, ge=0)
    code: str = Field(default="", max_length=200)
    hints: tuple[Annotated[str, Field(max_length=500)], ...] = Field(default=(), max_length=8)
    """What is no mistake, and worth a look."""
    parameters: Count | None = None
    """Of the run's size, not of the small model; so are the next six."""
    parameters_embedding: Count | None = None
    flops_per_token: Count | None = None
    state_bytes: Count | None = None
    """Of weights, gradients and optimizer."""
    tokens_per_step: Count | None = None
    depth: Count | None = None
    sequence_length: Count | None = None
    steps: Count | None = None
    """Of the small model; so is all that follows."""
    train_seconds: Count | None = None
    """Of one core."""
    tokens_per_second: Count | None = None
    memory_bytes: Count | None = None
    first_loss: Count | None = None
    """On dev, nats a token: before the first step, and after the last."""
    last_loss: Count | None = None
    sandbox: str = Field(default="", max_length=40)
    seconds: Count = 0


class NotebookResult(Message):
    """The result of a notebook. Beside it stay with the job: `executed.ipynb`, and `model/...`."""

    version: Literal[1] = 1
    cells: int = Field(ge=0)
    """Code cells that were run."""
    seconds: float = Field(ge=0)
    left: int = Field(default=0, ge=0)
    """Files in `model/`."""
    left_bytes: int = Field(default=0, ge=0)


class GenerateResult(Message):
    """The result of a `GenerateOrder`. The entry's code ran beside it: nothing is decided by it."""

    version: Literal[1] = 1
    tokens: int = Field(ge=0, le=4096)
    seconds: float = Field(ge=0, lt=1e9)
    """From the loaded model to the last token."""
    ended: Literal["length", "end of text"]
