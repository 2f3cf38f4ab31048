"""Results of jobs: the content of `FinishLease.result`, one class per kind of order."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from trainer.protocol.version import Message

Cause = Literal["model", "infrastructure"]
"""Cause of a failure: the entry ("model", final), or the server or node ("infrastructure", retried)."""


class ProbeReading(Message):
    """The result of one measurement."""

    tokens_per_second: float = Field(gt=0, lt=1e15)  # from the median step time
    spread: float = Field(ge=0, lt=1e6)  # interquartile range of the step times over their median
    steps: int = Field(ge=1)
    loss: float  # of the second step, in nats per token; equal on all nodes that compute correctly


class ProbeResults(Message):
    """Speed before and after a training run whose order has a `ProbeSpec`; under "probes" in its result."""

    version: Literal[1] = 1
    before: ProbeReading | None = None  # None: the probe failed on this node; its log has the reason
    after: ProbeReading | None = None


class ReplayResult(Message):
    version: Literal[1] = 1
    step: int = Field(ge=1)
    exact: bool  # whether the weights are bit-identical
    deviation: float = Field(ge=0)
    """|replayed - claimed| divided by the distance that the claimed weights moved in the segment."""


class SmokeCheckResult(Message):
    name: Literal["starts", "fits", "learns", "causal"]
    passed: bool
    text: str = Field(max_length=1000)  # the reason of a failure, else what was observed


Count = Annotated[float, Field(ge=0, lt=1e30)]


class SmokeResult(Message):
    """Measured on the entry's graphs; the failure of a trace is the word of the entry's code. None: unknown, or not
    reached."""

    version: Literal[1] = 1
    passed: bool
    sentence: str = Field(max_length=1000)
    checks: tuple[SmokeCheckResult, ...] = Field(max_length=8)
    file: str = Field(default="", max_length=200)
    """The entry's file in which it failed, with the line number and its text; empty: unknown."""
    line: int = Field(default=0, ge=0)
    code: str = Field(default="", max_length=200)
    graph: dict[str, Any] | None = None  # of the run's model, as `dailytrain graph --json` prints; None: not traced
    hints: tuple[Annotated[str, Field(max_length=500)], ...] = Field(default=(), max_length=8)
    """Suggestions that are not errors."""
    parameters: Count | None = None  # this and the next six: of the run's model, not of the small one
    parameters_embedding: Count | None = None
    flops_per_token: Count | None = None
    state_bytes: Count | None = None  # of weights, gradients and optimizer state
    tokens_per_step: Count | None = None
    depth: Count | None = None
    sequence_length: Count | None = None
    steps: Count | None = None  # this and all that follows: of the small model
    train_seconds: Count | None = None  # on one core
    tokens_per_second: Count | None = None
    memory_bytes: Count | None = None
    first_loss: Count | None = None
    """On the dev split, in nats per token, before the first step; `last_loss` after the last."""
    last_loss: Count | None = None
    sandbox: str = Field(default="", max_length=40)
    seconds: Count = 0


class NotebookResult(Message):
    """Stored with the job's files `executed.ipynb` and `model/...`."""

    version: Literal[1] = 1
    cells: int = Field(ge=0)  # executed code cells
    seconds: float = Field(ge=0)
    left: int = Field(default=0, ge=0)  # number of files in `model/`
    left_bytes: int = Field(default=0, ge=0)


class GenerateResult(Message):
    """Of a text that the entry's graph generated; without a graph, its code could have tampered with it."""

    version: Literal[1] = 1
    tokens: int = Field(ge=0, le=4096)
    seconds: float = Field(ge=0, lt=1e9)  # without loading the model
    ended: Literal["length", "end of text"]
