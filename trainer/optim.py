"""The optimizers: Muon for matrices, torch's AdamW for the rest, in the groups that an architecture's recipe asks for.

Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/): momentum, then the nearest matrix with
orthonormal rows or columns, found by a few matrix polynomials. Ours takes all matrices of a shape at once (torch's one
at a time) and the coefficients of Polar Express (Amsel et al., arXiv 2505.16932), fitted step by step.
"""

from __future__ import annotations

import fnmatch
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from trainer.models.base import ParameterGroup, Recipe

Coefficients = Sequence[tuple[float, float, float]]

POLAR_EXPRESS: Coefficients = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
"""Five iterations, made for singular values from 1e-3 to 1, with a safety factor of 2 % for low precision."""

QUINTIC: Coefficients = ((3.4445, -4.775, 2.0315),) * 5
"""Jordan's own, the same at each step: singular values end between 0.7 and 1.2."""


def orthogonalised(matrices: Tensor, coefficients: Coefficients = POLAR_EXPRESS) -> Tensor:
    """Return the nearest semi-orthogonal matrices (U V' of U S V') for a stack `[N, rows, columns]`, approximately.

    Singular values below about a thousandth of the largest stay below 1. Computed in bf16 on a GPU; in fp32 on a CPU,
    which is exact enough to resume to the last digit and, without bf16 units, three times as fast.
    """
    x = matrices.bfloat16() if matrices.is_cuda else matrices.float()
    # The polynomials want a spectral norm below 1; Frobenius bounds it from above, and rounding may add to it.
    x = x / (x.norm(dim=(-2, -1), keepdim=True) * 1.02 + 1e-7)
    tall = x.size(-2) > x.size(-1)
    x = x.mT if tall else x
    for a, b, c in coefficients:
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return (x.mT if tall else x).to(matrices.dtype)


class Muon(Optimizer):
    """Momentum made orthogonal; for parameters of two dimensions, or more (then a stack of matrices).

    A step moves a matrix by `lr x sqrt(max(1, rows / columns))` times an orthogonal one: the same change of its outputs
    whatever the shape. Weight decay is decoupled: `w <- (1 - lr x weight_decay) w`.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        coefficients: Coefficients = POLAR_EXPRESS,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.coefficients = coefficients

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            by_shape: dict[tuple[Any, ...], list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape, parameter.dtype, parameter.device].append(parameter)
            for parameters in by_shape.values():
                self.move(parameters, group)
        return loss

    def move(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Step parameters of one shape together."""
        gradients = [parameter.grad for parameter in parameters]
        momenta = [self.momentum_of(parameter) for parameter in parameters]
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        # Nesterov: look one step ahead along the momentum.
        ahead = torch._foreach_lerp(gradients, momenta, group["momentum"])
        rows, columns = parameters[0].shape[-2:]
        directions = orthogonalised(torch.stack(ahead).view(-1, rows, columns), self.coefficients)
        updates = directions.view(len(parameters), *parameters[0].shape).unbind()
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(parameters, updates, alpha=-group["lr"] * max(1, rows / columns) ** 0.5)

    def momentum_of(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        return state["momentum"]


def assign(model: nn.Module, recipe: Recipe) -> list[tuple[ParameterGroup, dict[str, nn.Parameter]]]:
    """Give every trainable parameter to the first group whose pattern matches its name.

    Raises ValueError if a parameter finds no group or Muon gets something that is not a matrix.
    """
    taken: list[tuple[ParameterGroup, dict[str, nn.Parameter]]] = [(group, {}) for group in recipe.groups]
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        found = next((mine for group, mine in taken if any(fnmatch.fnmatchcase(name, p) for p in group.match)), None)
        if found is None:
            raise ValueError(f"no group of the recipe takes the parameter {name}")
        found[name] = parameter
    for group, mine in taken:
        flat = next((name for name, parameter in mine.items() if parameter.ndim < 2), None)
        if group.optimizer == "muon" and flat is not None:
            raise ValueError(f"the recipe gives {flat} to Muon, which takes matrices only")
    return [(group, mine) for group, mine in taken if mine]


def build(model: nn.Module, recipe: Recipe) -> list[Optimizer]:
    """Return the recipe's optimizers, one per kind in use. Each of their groups keeps its top rate as `top_rate`."""
    muon, adamw = [], []
    for group, parameters in assign(model, recipe):
        settings = {
            "params": list(parameters.values()),
            "name": group.name,
            "lr": group.learning_rate,
            "top_rate": group.learning_rate,
            "weight_decay": group.weight_decay,
        }
        if group.optimizer == "muon":
            muon.append({**settings, "momentum": group.momentum})
        else:
            adamw.append({**settings, "betas": group.betas, "eps": group.epsilon})
    optimizers: list[Optimizer] = []
    if muon:
        optimizers.append(Muon(muon))
    if adamw:
        optimizers.append(AdamW(adamw, fused=True))
    return optimizers


def set_rates(optimizers: Iterable[Optimizer], scale: float) -> None:
    """Set every group's learning rate to its top rate times the schedule's scale."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["top_rate"] * scale
