"""AdamW for tables in bf16 that still learns from small updates.

bf16 has 8 binary digits, so at the end of a run updates of less than a 256th of a weight would be lost. The optimizer
keeps the other 16 bits of each weight in fp32, so that steps are those of weights in fp32 (split master weights, as in
modded-nanogpt). Momenta are in bf16 too, if they change enough in a step to be rounded well: with nanochat's settings
a weight, its gradient and its state take 10 bytes instead of 16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainer.ops.devices import build_on_device, raise_recompile_limit

MAX_SHAPES = 64
MAX_BF16_BETA = 0.96
"""Of momenta in bf16. A step changes a mean by 1 - beta of it or less, which has to be several times the half digit,
1/512 to 1/256, to which it is rounded: with 0.999 a mean would never fall."""


class TableAdamW(Optimizer):
    """AdamW for weights in bf16. `backend`: of torch.compile; None: steps are not compiled.

    As torch's fused optimizers, it makes no step where `found_inf`, a number on the parameters' device, is 1.
    """

    found_inf: Tensor | None = None
    _step_supports_amp_scaling = True  # torch's name for that

    def __init__(self, params: Iterable[Any], *, backend: str | Callable[..., Any] | None = None) -> None:
        """Groups have `lr`, `betas`, `eps`, `weight_decay` and `cautious_decay` (`trainer.optim.optimizers`)."""
        super().__init__(params, {})
        self.step_table: Callable[..., None] = step_table
        if backend is not None:
            raise_recompile_limit(MAX_SHAPES)
            self.step_table = torch.compile(step_table, dynamic=False, fullgraph=True, backend=backend)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.state[parameter] = self.state[parameter] or build_state(parameter, group["betas"])
                    self.run_step(parameter, parameter.grad, self.state[parameter], group)
        return loss

    def run_step(self, parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
        device = parameter.device
        numbers = [*group["betas"], group["lr"], group["weight_decay"], group["cautious_decay"], group["eps"]]
        skipped = torch.zeros((), device=device) if self.found_inf is None else self.found_inf
        self.step_table(parameter, gradient, **state, settings=build_on_device(numbers, device), skipped=skipped)

    @torch.no_grad()
    def compile_step(self) -> None:
        """Compile the steps of all parameters, by steps of zeros."""
        for group in self.param_groups:
            for parameter in group["params"]:
                zeros = torch.zeros_like(parameter)
                # As a parameter: for another kind of tensor the function would be compiled again.
                state = build_state(zeros, group["betas"])
                self.run_step(nn.Parameter(zeros.clone()), zeros, state, group)


def build_state(parameter: Tensor, betas: tuple[float, float]) -> dict[str, Tensor]:
    """Return the state before the first step. `rest`: what bf16 leaves out of each weight."""
    dtypes = [torch.bfloat16 if beta <= MAX_BF16_BETA else torch.float32 for beta in betas]
    mean, square = (torch.zeros_like(parameter, dtype=dtype) for dtype in dtypes)
    count = torch.zeros((), device=parameter.device)
    return {"rest": torch.zeros_like(parameter, dtype=torch.int16), "mean": mean, "square": square, "count": count}


def join_halves(high: Tensor, rest: Tensor) -> Tensor:
    """Return weights in fp32 from their bf16 and the difference of their bits."""
    return ((high.view(torch.int16).to(torch.int32) << 16) + rest).view(torch.float32)


def split_halves(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest bf16 (of two that are as near, the larger) and the difference of bits, int16."""
    bits = weights.view(torch.int32)
    high = (bits + 2**15) >> 16
    return high.to(torch.int16).view(torch.bfloat16), (bits - (high << 16)).to(torch.int16)


def step_table(
    weight: Tensor,
    gradient: Tensor,
    rest: Tensor,
    mean: Tensor,
    square: Tensor,
    count: Tensor,
    settings: Tensor,
    skipped: Tensor,
) -> None:
    """Step one table as AdamW does (arXiv 1711.05101, algorithm 2), and update its state.

    `count`: of earlier steps; `settings [6]`: betas, rate, weight decay, cautious weight decay, epsilon; `skipped`: 1
    to change nothing, even if gradients are not finite.
    """
    beta, beta_square, rate, decay, cautious_decay, epsilon = settings.unbind()
    is_made = skipped == 0
    new_count = count + 1
    master, wide = join_halves(weight, rest), gradient.float()
    new_mean = mean.float() * beta + wide * (1 - beta)
    new_square = square.float() * beta_square + wide.square() * (1 - beta_square)
    size = (new_square / (1 - beta_square**new_count)).sqrt() + epsilon
    update = rate / (1 - beta**new_count) * new_mean / size
    shrinkage = rate * (decay + cautious_decay * (update * master >= 0))
    high, new_rest = split_halves(master - master * shrinkage - update)
    new = (high, new_rest, new_mean, new_square, new_count)
    for tensor, value in zip((weight, rest, mean, square, count), new, strict=True):
        tensor.copy_(torch.where(is_made, value.to(tensor.dtype), tensor))
