"""Muon whose whole step is compiled, for GPUs: momenta, polynomials, variances and weights in a few passes over memory.

One function is compiled for each shape and number of parameters. Rates and momenta are its inputs, so a schedule does
not compile it again. Results equal those of `Muon` up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trainer.ops.devices import build_on_device, raise_recompile_limit
from trainer.optim.muon import (
    Coefficients,
    Muon,
    Precision,
    choose_precision,
    normalize_neurons,
    orthogonalize,
)

MAX_SHAPES = 64  # of a model's matrices; torch's own limit is 8


class CompiledMuon(Muon):
    """Muon for parameters that are not sharded. `backend`: of torch.compile.

    As torch's fused optimizers, it makes no step where `found_inf`, a number on the parameters' device, is 1.
    """

    found_inf: Tensor | None = None
    _step_supports_amp_scaling = True  # torch's name for that

    def __init__(self, params: Iterable[Any], *, backend: str | Callable[..., Any], **settings: Any) -> None:
        super().__init__(params, **settings)
        raise_recompile_limit(MAX_SHAPES)
        self.step_matrices = torch.compile(step_matrices, dynamic=False, fullgraph=True, backend=backend)

    def step_together(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        gradients = [parameter.grad for parameter in parameters]
        momenta = [self.get_state(parameter, "momentum", parameter) for parameter in parameters]
        variances = []
        if group["normalized"]:
            variances = [self.get_state(parameter, "variance", parameter[..., :1]) for parameter in parameters]
        self.run_compiled(parameters, gradients, momenta, variances, group)

    def run_compiled(
        self,
        parameters: list[Tensor],
        gradients: Sequence[Tensor | None],
        momenta: list[Tensor],
        variances: list[Tensor],
        group: dict[str, Any],
    ) -> None:
        rows, columns = parameters[0].shape[-2:]
        decay, rate = group["lr"] * group["weight_decay"], group["lr"] * max(1, rows / columns) ** 0.5
        device = parameters[0].device
        numbers = [1 - group["momentum"], 1 - group["variance_momentum"], decay, rate]
        rates = build_on_device(numbers, device)
        skipped = torch.zeros((), device=device) if self.found_inf is None else self.found_inf
        precision = self.precision or choose_precision(device.type)
        settings = (self.coefficients, precision, group["cautious"])
        self.step_matrices(parameters, gradients, momenta, variances, rates, skipped, *settings)

    @torch.no_grad()
    def compile_step(self) -> None:
        """Compile the steps of all parameters, by steps of zeros."""
        for group in self.param_groups:
            for parameters in self.group_by_shape(group["params"]):
                weights, *zeros = [[torch.zeros_like(parameter) for parameter in parameters] for _ in range(3)]
                variances = [zero[..., :1].clone() for zero in weights] if group["normalized"] else []
                # As parameters: for another kind of tensor the function would be compiled again.
                self.run_compiled([nn.Parameter(weight) for weight in weights], *zeros, variances, group)


def step_matrices(
    parameters: list[Tensor],
    gradients: list[Tensor],
    momenta: list[Tensor],
    variances: list[Tensor],
    rates: Tensor,
    skipped: Tensor,
    coefficients: Coefficients,
    precision: Precision,
    cautious: bool,
) -> None:
    """Step parameters of one shape, and update momenta and, unless there are none, variances.

    `rates [4]`: the shares of the new gradient in momenta and of its square in variances, weight decay and step.
    `skipped`: 1 to change nothing, even if gradients are not finite.
    """
    new, new_variance, decay, rate = rates.unbind()
    is_made = skipped == 0
    new_momenta = [momentum.lerp(gradient, new) for momentum, gradient in zip(momenta, gradients, strict=True)]
    # Nesterov: look one step ahead along the momentum.
    stack = torch.stack([g.lerp(m, 1 - new) for g, m in zip(gradients, new_momenta, strict=True)])
    for momentum, value in zip(momenta, new_momenta, strict=True):
        momentum.copy_(torch.where(is_made, value, momentum))
    directions = orthogonalize(stack.flatten(0, -3), coefficients, precision)
    if variances:
        stacked = torch.stack(variances)
        directions = normalize_neurons(directions, stacked.flatten(0, -3), new_variance)
        for variance, value in zip(variances, stacked.unbind(), strict=True):
            variance.copy_(torch.where(is_made, value, variance))
    for parameter, direction in zip(parameters, directions.view(stack.shape).unbind(), strict=True):
        applied_decay = decay * (parameter * direction >= 0) if cautious else decay
        moved = parameter - parameter * applied_decay - rate * direction
        parameter.copy_(torch.where(is_made, moved, parameter))
