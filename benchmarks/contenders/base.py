"""The common parts of compared recipes: a size, factors on their rates, and one training loop.

All train in this process, on one thread, eagerly, in fp32, on rows of the same loader. FLOPs are those of a forward and
backward pass of one row through torch's `FlopCounterMode` (`trainer.accounting.flops`), for every contender alike.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from trainer.data.dataset import Dataset
from trainer.data.loader import BlockLoader, iterate_in_order
from trainer.training.loop import pause_garbage_collection

SEQUENCE_LENGTH = 256
ROWS = 16  # of an optimizer step, unless a run says otherwise
DEV_ROWS = 128  # that the bits per byte come from, the first ones of the split
UNTIMED_STEPS = 3  # in which optimizers allocate their state and compile
SNAPSHOT_SECONDS = 300.0  # between two snapshots of a run


@dataclass(frozen=True)
class Size:
    """A model and its full budget."""

    depth: int
    width: int
    budget: float  # FLOPs

    @property
    def heads(self) -> int:
        return self.width // 64

    @property
    def name(self) -> str:
        return f"{self.depth}x{self.width}"


@dataclass(frozen=True)
class Factors:
    """Factors on a recipe's own rates and decay, and its warmup. What the search tunes."""

    matrices: float = 1.0
    embeddings: float = 1.0  # embedding, value embeddings and head
    scalars: float = 1.0
    smear: float = 1.0  # smear and backout, which nanochat groups apart from its other scalars
    memory: float = 1.0  # the table of the n-gram memory, where there is one
    decay: float = 1.0
    warmup: float | None = None  # fraction of the budget; None: the recipe's own


@dataclass(frozen=True)
class Plan:
    """The arguments from which a contender is built."""

    size: Size
    factors: Factors
    seed: int
    vocabulary_size: int
    tokens_per_step: int
    total_flops: float
    is_compiled: bool = False


class Contender(Protocol):
    """A model with its recipe."""

    flops_per_token: float
    parameters: int
    steps: int  # of the whole run
    parts: Sequence[Any]  # whose `state_dict` is what training has changed

    def train_step(self, inputs: Tensor, targets: Tensor, step: int) -> float:
        """Train one step on rows `[B, T]`, the first being step 0; return the loss in nats per token."""

    def compute_losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the nats of each position `[B x T]`, without gradients."""


BuildContender = Callable[[Plan], Contender]


class DivergedError(RuntimeError):
    """The loss is not finite."""


@dataclass(frozen=True)
class Outcome:
    """A finished run."""

    flops: float
    tokens: int
    steps: int
    cpu_seconds: float  # of this process, training alone; untimed steps count as the others' mean
    bits_per_byte: float
    parameters: int


def count_steps(plan: Plan, flops_per_token: float) -> int:
    """Return how many steps a budget pays for."""
    return max(round(plan.total_flops / (flops_per_token * plan.tokens_per_step)), UNTIMED_STEPS + 1)


def train_contender(build: BuildContender, plan: Plan, dataset: Dataset, snapshot: Path | None = None) -> Outcome:
    """Train a contender to its budget and evaluate it. Raises `DivergedError`.

    `snapshot`: a file from which an interrupted run resumes, with the result of one that was not interrupted.
    """
    torch.manual_seed(plan.seed)
    contender = build(plan)
    loader = BlockLoader(dataset, "train", plan.tokens_per_step // SEQUENCE_LENGTH, SEQUENCE_LENGTH, plan.seed)
    first, timed, seconds = 0, 0, 0.0
    if snapshot is not None and snapshot.is_file():
        first, timed, seconds, loader.position, states = torch.load(snapshot)
        for part, state in zip(contender.parts, states, strict=True):
            part.load_state_dict(state)
    saved_at = time.monotonic()
    with pause_garbage_collection():
        for step in range(first, contender.steps):
            started = time.process_time()
            loss = contender.train_step(*loader.next_batch(), step)
            if step >= first + UNTIMED_STEPS:
                timed, seconds = timed + 1, seconds + time.process_time() - started
            if not math.isfinite(loss):
                raise DivergedError(f"the loss became {loss} at step {step}")
            if snapshot is not None and time.monotonic() - saved_at > SNAPSHOT_SECONDS:
                states = [part.state_dict() for part in contender.parts]
                torch.save((step + 1, timed, seconds, loader.position, states), new := snapshot.with_suffix(".new"))
                new.replace(snapshot)
                saved_at = time.monotonic()
    tokens = contender.steps * plan.tokens_per_step
    return Outcome(
        flops=tokens * contender.flops_per_token,
        tokens=tokens,
        steps=contender.steps,
        cpu_seconds=seconds * contender.steps / max(timed, 1),
        bits_per_byte=compute_bits_per_byte(contender, dataset),
        parameters=contender.parameters,
    )


@torch.no_grad()
def compute_bits_per_byte(contender: Contender, dataset: Dataset) -> float:
    """Return the loss on the first rows of dev. Targets without text do not count."""
    byte_lengths = torch.from_numpy(dataset.tokenizer.byte_lengths())
    nats, text_bytes = 0.0, 0
    for inputs, targets in iterate_in_order(dataset, "dev", 8, SEQUENCE_LENGTH, DEV_ROWS):
        sizes = byte_lengths[targets.flatten()]
        nats += float(contender.compute_losses(inputs, targets)[sizes > 0].double().sum())
        text_bytes += int(sizes.sum())
    return nats / math.log(2) / text_bytes
