"""The baseline with a sparse mixture of experts in place of each MLP: every token uses a few of many small MLPs.

Token-choice top-k routing with a shared expert that sees every token (DeepSeekMoE, arXiv 2401.06066, section 3.2),
gates from sigmoids, and balanced load without an auxiliary loss (arXiv 2408.15664, algorithm 1): a bias per expert is
added to the scores for the choice only, and moves up for experts with less than the mean load, down for the others.

Shapes are static, so that the model traces as a graph: each expert has the same number of places per row (Switch
Transformers, arXiv 2101.03961, section 2.2). Earlier tokens take the places first, and a token that finds none gets
nothing from that expert, so the output does not depend on later tokens or other rows. Texts longer than a row of
training have no more places, so their last tokens find fewer. All experts run as one batched
matrix product over `[experts, rows x places]`. Empty places are computed and counted like full ones; all experts'
weights count as stored bytes.

Not covered: experts on several devices, a KV cache (generation recomputes earlier tokens, since places depend on them).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.models import gpt
from trainer.models.base import LanguageModel, ParameterGroup, Recipe
from trainer.ops.balance import balance_load
from trainer.ops.elementwise import squared_relu


@dataclass(frozen=True)
class Config(gpt.Config):
    experts: int = 8
    """Experts per block, without the shared one."""
    chosen: int = 2
    """Experts per token, without the shared one."""
    expert_width: int = 256
    """Width inside an expert."""
    shared_width: int = 512
    """Width inside the shared expert. `sized` makes it and the chosen ones together as wide as the baseline's MLP."""
    capacity: float = 1.5
    """Places of an expert, relative to an even distribution. A token that finds none skips the expert."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.chosen <= self.experts:
            raise ValueError(f"moe: chosen {self.chosen} must be from 1 to experts {self.experts}")
        if self.expert_width < 1 or self.shared_width < 1 or self.capacity <= 0:
            raise ValueError("moe: expert_width, shared_width and capacity must be positive")

    @classmethod
    def sized(cls, depth: int, vocabulary_size: int, sequence_length: int) -> Config:
        width = 64 * depth
        sized = super().sized(depth, vocabulary_size, sequence_length)
        return replace(sized, expert_width=width, shared_width=2 * width)

    @property
    def places(self) -> int:
        """Places of an expert in a row of full length. A shorter row has as many, so that nothing depends on later
        tokens, but no more than it has tokens."""
        return math.ceil(self.capacity * self.chosen * self.sequence_length / self.experts)


class Experts(nn.Module):
    """The MLPs of one block."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        experts, width, inner = config.experts, config.width, config.expert_width
        self.router = gpt.linear(width, experts)
        self.load_bias = nn.Parameter(torch.zeros(experts))
        # Output by input, as in `nn.Linear`, which Muon's scale and variance normalization rely on.
        self.experts_up = nn.Parameter(torch.empty(experts, inner, width))
        self.experts_down = nn.Parameter(torch.empty(experts, width, inner))
        self.up = gpt.linear(width, config.shared_width)
        self.down = gpt.linear(config.shared_width, width)
        self.initialize()

    def initialize(self) -> None:
        """As the baseline's MLP: variance `mlp_init` squared / fan-in, output projections zero with `zero_init`.
        `Model` initializes the linear layers."""
        config = self.config
        bound = math.sqrt(3 / config.width) * config.mlp_init
        nn.init.uniform_(self.experts_up, -bound, bound)
        bound = 0.0 if config.zero_init else math.sqrt(3 / config.expert_width / (2 * config.depth))
        nn.init.uniform_(self.experts_down, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """`[B, T, width] -> [B, T, width]`."""
        gates, place, places = self.route(x)
        return self.down(squared_relu(self.up(x))) + self.run_experts(x, gates, place, places)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor, int]:
        """Return the gates `[B, T, K]`, the places `[B, T x K]` of the chosen experts, and the places of an expert.

        Place e x places + n is the nth of expert e; experts x places stands for none.
        """
        experts, chosen = self.config.experts, self.config.chosen
        places = min(self.config.places, x.size(1))
        scores = torch.sigmoid(self.router(x).float())
        expert = (scores + self.load_bias).detach().topk(chosen, dim=-1).indices
        gates = scores.gather(-1, expert)
        gates = gates / (gates.sum(-1, keepdim=True) + 1e-9)
        expert = expert.flatten(1)  # in the order of positions
        taken = F.one_hot(expert, experts)
        gates = balance_load(gates, self.load_bias, taken.sum((0, 1)))
        order = taken.cumsum(1).gather(2, expert[..., None])[..., 0] - 1
        place = torch.where(order < places, expert * places + order, experts * places)
        return gates.to(x.dtype), place, places

    def run_experts(self, x: Tensor, gates: Tensor, place: Tensor, places: int) -> Tensor:
        """Return the gated sum of the chosen experts' outputs, `[B, T, width]`."""
        experts, chosen = self.config.experts, self.config.chosen
        copies, index = x.repeat_interleave(chosen, dim=1), place[..., None].expand(-1, -1, x.size(-1))
        dispatched = x.new_zeros(x.size(0), experts * places + 1, x.size(-1)).scatter(1, index, copies)
        grouped = dispatched[:, :-1].unflatten(1, (experts, places)).transpose(0, 1).flatten(1, 2)
        result = torch.bmm(squared_relu(torch.bmm(grouped, self.experts_up.mT)), self.experts_down.mT)
        result = F.pad(result.unflatten(1, (-1, places)).transpose(0, 1).flatten(1, 2), (0, 0, 0, 1))
        return (result.gather(1, index).unflatten(1, (-1, chosen)) * gates[..., None]).sum(2)


class Model(gpt.Model):
    mlp_class = Experts

    def advance(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        return LanguageModel.advance(self, tokens, state)


def recipe(config: Config) -> Recipe:
    """Return the baseline's recipe, with Muon for the router and the stacks of experts.

    AdamW without momentum moves a load bias by its rate in the direction of the gradient's sign, which is algorithm 1
    of arXiv 2408.15664, with its 0.001.
    """
    base = gpt.recipe(config)
    balance = ParameterGroup("load biases", ("*.load_bias",), "adamw", 0.001, betas=(0.0, 0.0))
    return replace(base, groups=(balance, *base.groups))
