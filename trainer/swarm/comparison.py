"""Comparison of a local swarm, with faults, to one process that does the same work without any.

That process uses the whole model's own `features` and `logits`, no network and no stages. It sums gradients in the
order of the micro-batches, clips once and uses the same optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainer.data.dataset import Dataset
from trainer.swarm.config import SwarmConfig
from trainer.swarm.cover import is_exact_cover
from trainer.swarm.data import Batches
from trainer.swarm.fault_plans import FAULT_PLANS, SwarmSize
from trainer.swarm.journal import JournalLine, get_losses
from trainer.swarm.local_swarm import LocalSwarm
from trainer.swarm.stage import build_model, build_optimizer, get_decayed_names, squared_norm
from trainer.training.objective import Objective

LOSS_TOLERANCE = 1e-4  # Largest accepted difference of a loss, in nats


@dataclass(frozen=True)
class ComparisonResult:
    max_abs_loss_difference: float | None  # None: not compared
    steps: int
    kills: int
    exact_cover: bool
    hashes_equal: bool
    leftovers: tuple[str, ...] = ()  # Processes that should have ended
    has_happened: bool = True  # Whether the planned faults happened
    tolerance: float = LOSS_TOLERANCE

    def is_passed(self, steps: int) -> bool:
        is_complete = self.steps == steps and self.exact_cover and self.hashes_equal and not self.leftovers
        return is_complete and self.has_happened and (self.max_abs_loss_difference or 0.0) < self.tolerance


def has_exact_cover(lines: Sequence[JournalLine], config: SwarmConfig) -> bool:
    """Return whether every commit held each micro-batch exactly once at each stage."""
    covers = [line["cover"] for line in lines if line["kind"] == "commit"]
    return all(len(cover) == config.stages and is_exact_cover(cover, config.micro_batches) for cover in covers)


def has_equal_hashes(lines: Sequence[JournalLine]) -> bool:
    """Return whether all replicas of a stage had the same weights and gradient at each version and at the end."""
    digests = [line["votes"] for line in lines if line["kind"] == "commit"]
    digests += [line["digests"] for line in lines if line["kind"] == "end"]
    return bool(digests) and all(len(set(peers.values())) == 1 for stages in digests for peers in stages.values())


def compute_max_difference(losses: Sequence[float], config: SwarmConfig, dataset: Path) -> float:
    """Return the largest difference between a loss and that of the same step in one process."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # like the swarm's processes: small models are slower with more
    try:
        expected = iter_losses(config, Batches(Dataset.open(dataset), config), len(losses))
        return max((abs(loss - other) for loss, other in zip(losses, expected, strict=True)), default=float("inf"))
    finally:
        torch.set_num_threads(threads)


def compare_with_single_process(
    config: SwarmConfig,
    dataset: Path,
    workers: int,
    chaos: str,
    timeout: float = 3.0,
    seconds: float = 600,
    out: Path | None = None,
    compare: bool = True,
    on_end: Callable[[list[JournalLine]], object] = lambda lines: None,
    **options: Any,
) -> tuple[ComparisonResult, list[JournalLine]]:
    """Run a swarm with the faults of a plan, and one process without any. `compare`: false omits the latter.

    `on_end` is called with the journal between the two. `options` are further fields of `LocalSwarm`. Raise
    `SwarmStuckError` if the swarm takes more than `seconds`.
    """
    plan = FAULT_PLANS[chaos](SwarmSize(config.stages, workers, config.steps, timeout, config.seed))
    requested = plan.requested_stages or [stage for _ in range(workers) for stage in range(config.stages)]
    with LocalSwarm(config, dataset, requested, plan, timeout=timeout, out=out, **options) as swarm:
        lines = swarm.run(seconds)
        leftovers = tuple(swarm.find_leftovers())
    on_end(lines)
    losses = get_losses(lines)
    result = ComparisonResult(
        compute_max_difference(losses, config, dataset) if compare else None,
        len(losses),
        swarm.kills,
        has_exact_cover(lines, config),
        has_equal_hashes(lines),
        leftovers,
        plan.has_happened(lines),
        LOSS_TOLERANCE if config.wire == "fp32" else float("inf"),
    )
    return result, lines


class SingleProcessRun:
    """A run in one process, step by step."""

    def __init__(self, config: SwarmConfig, batches: Batches, device: str | torch.device = "cpu") -> None:
        self.config, self.batches, self.device = config, batches, torch.device(device)
        model = build_model(config)
        decayed = get_decayed_names(config, model)
        self.model = model.to(self.device)
        self.objective = Objective(self.model)
        self.parameters = dict(self.model.named_parameters())
        self.optimizer = build_optimizer(config, self.parameters, decayed)
        self.version = 0

    def run_step(self) -> float:
        """Run a step; return its loss in nats per target before the update."""
        config, nats = self.config, 0.0
        totals = [torch.zeros_like(parameter) for parameter in self.parameters.values()]
        for micro_batch in range(config.micro_batches):
            x, y = (half.to(self.device) for half in self.batches.get_batch(self.version, micro_batch))
            with torch.autocast(self.device.type, torch.bfloat16, enabled=config.precision == "bf16"):
                loss = self.objective(x, y)
            gradients = torch.autograd.grad(loss / x.numel(), list(self.parameters.values()), allow_unused=True)
            for total, gradient in zip(totals, gradients, strict=True):
                if gradient is not None:
                    total.add_(gradient)
            nats += float(loss.detach())
        targets = self.batches.count_targets(self.version)
        means = [total.detach().mul_(1 / config.micro_batches) for total in totals]
        scale = config.compute_clip_scale(sum(squared_norm(mean) for mean in means))
        self.optimizer.step(means, config.get_rate_factor(self.version), self.version + 1, scale)
        self.version += 1
        return nats / targets


def iter_losses(config: SwarmConfig, batches: Batches, steps: int | None = None) -> Iterator[float]:
    """Yield the loss of each step, the first one before any update."""
    reference = SingleProcessRun(config, batches)
    for _ in range(config.steps if steps is None else steps):
        yield reference.run_step()
