"""CPU-seconds of a token, by turns, so that a busy moment of the machine affects all contenders."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.contenders.base import SEQUENCE_LENGTH, Contender, Factors, Plan, Size
from benchmarks.contenders.results import Entry
from trainer.training.loop import pause_garbage_collection

WARMUP_STEPS, ROUNDS, STEPS_IN_ROUND = 3, 7, 2


def measure_cpu_seconds(
    entries: Sequence[Entry], size: Size, rows: int, vocabulary_size: int, is_compiled: bool
) -> dict[str, Any]:
    """Return for each entry the CPU-seconds of a token in each round, of this process, and their median.

    `is_compiled`: the models are compiled. Optimizers are as their code has them.
    """
    tokens = rows * SEQUENCE_LENGTH
    plan = Plan(size, Factors(), 1, vocabulary_size, tokens, size.budget, is_compiled)
    batch = torch.randint(vocabulary_size, (2, rows, SEQUENCE_LENGTH), generator=torch.Generator().manual_seed(0))
    contenders = {entry.name: entry.build(plan) for entry in entries}
    seconds: dict[str, list[float]] = {entry.name: [] for entry in entries}
    # nanochat compiles its optimizer's steps in any case.
    with torch.compiler.set_stance("default"), pause_garbage_collection():
        for contender in contenders.values():
            time_steps(contender, batch, WARMUP_STEPS)
        for _ in range(ROUNDS):
            for name, contender in contenders.items():
                seconds[name].append(time_steps(contender, batch, STEPS_IN_ROUND) / STEPS_IN_ROUND / tokens)
    return {name: {"median": statistics.median(values), "rounds": values} for name, values in seconds.items()}


def time_steps(contender: Contender, batch: torch.Tensor, number: int) -> float:
    started = time.process_time()
    for step in range(number):
        contender.train_step(batch[0], batch[1], step)
    return time.process_time() - started
