"""The same run in one process, without network or stages: the reference for a swarm's losses.

It uses the whole model's own `features` and `logits`, sums gradients in the order of the micro-batches, clips once and
uses the same optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from trainer.swarm.config import SwarmConfig
from trainer.swarm.data import Batches
from trainer.swarm.stage import build_model, build_optimizer, get_decayed_names, squared_norm
from trainer.training.objective import Objective


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
