"""Results of jobs: the content of `FinishLease.result`, one class per kind of order."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trainer.protocol.version import Count, JsonObject, Label, Message, Name, Seconds, Sentence

Cause = Literal["model", "infrastructure"]
"""Cause of a job's final failure, by the site: the entry's model, or the server, a node or an order."""


class ProbeReading(Message):
    """The result of one measurement."""

    tokens_per_second: float = Field(gt=0, lt=1e15)  # from the median step time
    spread: float = Field(ge=0, lt=1e6)  # interquartile range of the step times over their median
    steps: int = Field(ge=1, lt=2**63)
    loss: float = Field(gt=-1e30, lt=1e30)
    """Of the second step, in nats per token. Equal on all nodes that compute correctly."""


class ProbeResults(Message):
    """Speed before and after a training run whose order has a `ProbeSpec`; under "probes" in its result."""

    version: Literal[1] = 1
    before: ProbeReading | None = None  # None: the probe failed on this node; its log has the reason
    after: ProbeReading | None = None


class ReplayCheck(Message):
    """The comparison of a claimed checkpoint with the replay's (`trainer.scoring.compare_replay`)."""

    step: int = Field(ge=1, lt=2**63)
    exact: bool  # whether weights and state are bit-identical
    deviation: float = Field(ge=0, lt=1e30)
    """|replayed - claimed| divided by the distance that the claimed weights moved since the start of the segment."""
    state_deviation: float = Field(ge=0, lt=1e30)  # of the optimizer's state


class ReplayResult(Message):
    version: Literal[1] = 1
    step: int = Field(ge=1, lt=2**63)  # that the replay of the segment reached
    exact: bool  # of all checks
    deviation: float = Field(ge=0, lt=1e30)  # the largest
    checks: tuple[ReplayCheck, ...] | None = Field(default=None, max_length=3)
    """None: from an agent that compares weights only."""


class SmokeCheckResult(Message):
    name: Literal["starts", "fits", "learns", "causal"]
    passed: bool
    text: Sentence  # the reason of a failure, else what was observed


Measurement = Annotated[float, Field(ge=0, lt=1e30)]


class SmokeResult(Message):
    """Measured on the entry's graphs; the failure of a trace is the word of the entry's code. None: unknown, or not
    reached."""

    version: Literal[1] = 1
    passed: bool
    sentence: Sentence
    checks: tuple[SmokeCheckResult, ...] = Field(max_length=8)
    file: Name = ""
    """The entry's file in which it failed, with the line number and its text; empty: unknown."""
    line: Count = 0
    code: Name = ""
    graph: JsonObject | None = None  # of the run's model, as `dailytrain graph --json` prints; None: not traced
    hints: tuple[Annotated[str, Field(max_length=500)], ...] = Field(default=(), max_length=8)
    """Suggestions that are not errors."""
    parameters: Measurement | None = None  # this and the next six: of the run's model, not of the small one
    parameters_embedding: Measurement | None = None
    flops_per_token: Measurement | None = None
    state_bytes: Measurement | None = None  # of weights, gradients and optimizer state
    tokens_per_step: Measurement | None = None
    depth: Measurement | None = None
    sequence_length: Measurement | None = None
    steps: Measurement | None = None  # this and all that follows: of the small model
    train_seconds: Measurement | None = None  # on one core
    tokens_per_second: Measurement | None = None
    memory_bytes: Measurement | None = None
    first_loss: Measurement | None = None
    """On the dev split, in nats per token, before the first step; `last_loss` after the last."""
    last_loss: Measurement | None = None
    sandbox: Label = ""
    seconds: Measurement = 0


class NotebookResult(Message):
    """Stored with the job's files `executed.ipynb` and `model/...`."""

    version: Literal[1] = 1
    cells: Count  # executed code cells
    seconds: Seconds
    left: Count = 0  # number of files in `model/`
    left_bytes: Count = 0


class GenerateResult(Message):
    """Result of a text that the entry's graph generated. Without a graph, the entry's code could have changed it."""

    version: Literal[1] = 1
    tokens: int = Field(ge=0, le=4096)
    seconds: float = Field(ge=0, lt=1e9)  # without loading the model
    ended: Literal["length", "end of text"]


class SelfTestResult(Message):
    """What a node measured when it proved itself."""

    version: Literal[1] = 1
    sandbox: Label  # the driver in which the step was trained
    device: Literal["cpu", "cuda"]
    gpus: Count  # of the slot
    loss: float = Field(gt=-1e30, lt=1e30)  # of the step, in nats per token
    bits_per_byte: float = Field(gt=-1e30, lt=1e30)  # of the scored text
    train_seconds: Seconds  # with the start of the process, as in a job
    score_seconds: Seconds
