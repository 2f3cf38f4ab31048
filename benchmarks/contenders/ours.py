"""Our architectures with their recipes, trained by our loop's own step."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from benchmarks.contenders.base import SEQUENCE_LENGTH, Factors, Plan, count_steps
from trainer.accounting import flops
from trainer.distributed.devices import build_fabric
from trainer.models import load_architecture
from trainer.models.base import ParameterGroup, Recipe
from trainer.optim import optimizers
from trainer.training.loop import train_step
from trainer.training.objective import Objective
from trainer.training.run import GradientSpikeFilter

EMBEDDINGS = ("embedding", "value embeddings", "head")


class OurGPT:
    """One of our architectures at a size, with `memory_rows` rows for each order of its n-gram memory."""

    def __init__(self, plan: Plan, memory_rows: int = 0, arch: str = "gpt") -> None:
        size, module = plan.size, load_architecture(arch)
        sized = module.Config.sized(size.depth, plan.vocabulary_size, SEQUENCE_LENGTH)
        fields = {"width": size.width, "heads": size.heads} | ({"memory_rows": memory_rows} if memory_rows else {})
        config = dataclasses.replace(sized, **fields)
        self.recipe = scale_recipe(module.recipe(config), plan.factors)
        model = module.Model(config)
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.flops_per_token = flops.count_flops(model, torch.zeros(1, SEQUENCE_LENGTH, dtype=torch.int64))
        self.steps = count_steps(plan, self.flops_per_token)
        self.rows = plan.tokens_per_step // SEQUENCE_LENGTH
        self.fabric = build_fabric("cpu", 1, "single", "fp32", None)
        objective = Objective(model, self.recipe.l2wrap)
        if plan.is_compiled:
            objective.features, objective.chunk_loss = map(torch.compile, (objective.features, objective.chunk_loss))
        self.model = self.fabric.setup_module(objective)
        built = optimizers.build_optimizers(model, self.recipe, "fp32")
        self.optimizers = [self.fabric.setup_optimizers(optimizer) for optimizer in built]
        self.spikes = GradientSpikeFilter("skip")
        self.parts = (self.model, *self.optimizers, self.spikes)

    def train_step(self, inputs: Tensor, targets: Tensor, step: int) -> float:
        fraction = step / self.steps
        optimizers.apply_schedule(self.optimizers, self.recipe, fraction, step)
        batch = (inputs, targets)
        settings = (self.rows, self.spikes, self.recipe.clip, step + 1, fraction)
        return train_step(self.fabric, self.model, self.optimizers, batch, *settings).read()[0]

    def compute_losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.model(inputs, targets, per_position=True)


def scale_recipe(recipe: Recipe, factors: Factors) -> Recipe:
    """Return a recipe with factors on its groups' rates and decays."""

    def scale(group: ParameterGroup) -> ParameterGroup:
        factor = factors.scalars
        if group.name in ("matrices", "smear", "memory"):
            factor = getattr(factors, group.name)
        elif group.name in EMBEDDINGS:
            factor = factors.embeddings
        return dataclasses.replace(
            group,
            learning_rate=group.learning_rate * factor,
            weight_decay=group.weight_decay * factors.decay,
        )

    schedule = recipe.schedule
    if factors.warmup is not None:
        schedule = dataclasses.replace(schedule, warmup=factors.warmup)
    return dataclasses.replace(recipe, groups=tuple(map(scale, recipe.groups)), schedule=schedule)
