"""The same run in one process, with no network and no stages: what a swarm's losses are held against.

The whole model, plain: its own `features` and `logits`, gradients summed in the order of the micro-batches, one clip,
the same optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from trainer.swarm.config import SwarmConfig
from trainer.swarm.data import Batches
from trainer.swarm.stage import decayed_names, optimizer_of, squared_norm, whole_model
from trainer.training.objective import Objective


class Reference:
    """A run that can be taken step by step."""

    def __init__(self, config: SwarmConfig, batches: Batches, device: str | torch.device = "cpu") -> None:
        self.config, self.batches, self.device = config, batches, torch.device(device)
        model = whole_model(config)
        decayed = decayed_names(config, model)
        self.model = model.to(self.device)
        self.objective = Objective(self.model)
        self.parameters = dict(self.model.named_parameters())
        self.optimizer = optimizer_of(config, self.parameters, decayed)
        self.version = 0

    def step(self) -> float:
        """Make a step; return its loss in nats per target, as it was before the update."""
        config, nats = self.config, 0.0
        total = [torch.zeros_like(parameter) for parameter in self.parameters.values()]
        for micro_batch in range(config.micro_batches):
            x, y = (half.to(self.device) for half in self.batches.tokens(self.version, micro_batch))
            with torch.autocast(self.device.type, torch.bfloat16, enabled=config.precision == "bf16"):
                loss = self.objective(x, y)
            found = torch.autograd.grad(loss / x.numel(), list(self.parameters.values()), allow_unused=True)
            for mine, gradient in zip(total, found, strict=True):
                if gradient is not None:
                    mine.add_(gradient)
            nats += float(loss.detach())
        targets = self.batches.count(self.version)
        means = [mine.detach().mul_(1 / config.micro_batches) for mine in total]
        scale = config.clip_scale(sum(squared_norm(mean) for mean in means))
        self.optimizer.step(means, config.rate(self.version), self.version + 1, scale)
        self.version += 1
        return nats / targets


def losses(config: SwarmConfig, batches: Batches, steps: int | None = None) -> Iterator[float]:
    """Yield the loss of each step, the first one before any update."""
    reference = Reference(config, batches)
    for _ in range(config.steps if steps is None else steps):
        yield reference.step()
