"""Muon: orthogonalize the momentum of each matrix with a few matrix polynomials.

From Jordan et al. 2024 (https://kellerjordan.github.io/posts/muon/). Unlike torch's, this one processes all matrices
of a shape at once and uses the coefficients of Polar Express (Amsel et al., arXiv 2505.16932), fitted step by step.
Options: variance normalization (NorMuon: Li et al., arXiv 2510.05491, algorithm 1) and cautious weight decay (Chen et
al., arXiv 2510.12402, algorithm 1).

Not covered: sharing the work between devices; each computes all updates, also of parameters that are sharded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from trainer.distributed.devices import gather_tensor, is_sharded

Coefficients = Sequence[tuple[float, float, float]]

POLAR_EXPRESS: Coefficients = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
"""Five iterations, fitted for singular values from 1e-3 to 1, with a safety factor of 2 % for low precision."""

QUINTIC: Coefficients = ((3.4445, -4.775, 2.0315),) * 5
"""Jordan's original, the same at each step. Singular values end between 0.7 and 1.2."""


Precision = Literal["fp32", "bf16"]
DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


@lru_cache
def choose_precision(device: str) -> Precision:
    """Return the fastest precision for the polynomials: bf16 with hardware support, else fp32.

    On CPUs that means AVX512-BF16 or AMX: four times as fast as fp32 there, three times as slow elsewhere.
    """
    if device == "cuda":
        return "bf16"
    found = torch.cpu.get_capabilities()
    return "bf16" if found.get("avx512_bf16") or found.get("amx_bf16") else "fp32"


def orthogonalize(
    matrices: Tensor, coefficients: Coefficients = POLAR_EXPRESS, precision: Precision = "fp32"
) -> Tensor:
    """Return the nearest semi-orthogonal matrices (U V' of U S V') for a stack `[N, rows, columns]`, approximately.

    Singular values below about a thousandth of the largest stay below 1; in bf16, rounding noise may be lifted, too.
    Deterministic on one kind of machine.
    """
    x = matrices.to(DTYPES[precision])
    # The polynomials need a spectral norm below 1. The Frobenius norm is an upper bound; 2 % more allow for rounding.
    x = x / (x.norm(dim=(-2, -1), keepdim=True) * 1.02 + 1e-7)
    # The Gram form squares singular values, for which fp32 is precise enough and bf16 is not.
    use_gram = max(x.shape[-2:]) >= 2 * min(x.shape[-2:]) and x.dtype == torch.float32
    x = iterate_gram_polynomials(x, coefficients) if use_gram else iterate_polynomials(x, coefficients)
    return x.to(matrices.dtype)


def compute_small_gram(x: Tensor) -> Tensor:
    """Return XX' of wide matrices, X'X of tall ones."""
    return torch.bmm(x.mT, x) if x.size(-2) > x.size(-1) else torch.bmm(x, x.mT)


def iterate_polynomials(x: Tensor, coefficients: Coefficients) -> Tensor:
    """Apply `X <- (a + b G + c G^2) X` with G = XX' (of tall matrices the same from the other side) for each (a, b, c):
    4 m^2 n + 2 m^3 FLOPs of an m x n matrix each."""
    tall = x.size(-2) > x.size(-1)
    for a, b, c in coefficients:
        gram = compute_small_gram(x)
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, *((x, polynomial) if tall else (polynomial, x)), beta=a)
    return x


def iterate_gram_polynomials(x: Tensor, coefficients: Coefficients) -> Tensor:
    """Multiply the same polynomials of the small Gram matrix G first, then X: P = a + b G + c G^2 turns G into PGP.

    4 m^2 n FLOPs once and 8 m^3 for each (a, b, c), so for n = 4 m about half of `iterate_polynomials`.
    """
    gram, product = compute_small_gram(x), None
    for number, (a, b, c) in enumerate(coefficients, 1):
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        polynomial.diagonal(dim1=-2, dim2=-1).add_(a)
        product = polynomial if product is None else torch.bmm(polynomial, product)
        if number < len(coefficients):
            gram = torch.bmm(polynomial, torch.bmm(gram, polynomial))
    if product is None:
        return x
    return torch.bmm(x, product) if x.size(-2) > x.size(-1) else torch.bmm(product, x)


def normalize_neurons(directions: Tensor, variances: Tensor, new_share: float | Tensor) -> Tensor:
    """Divide each row (a neuron's weights) of `[N, rows, columns]` by the root of its running mean square.

    `variances [N, rows, 1]` is updated in place; `new_share` is the share of the new square in it. Each matrix keeps
    its Frobenius norm, computed from the norms of its rows, so that the matrices are read only twice.
    """
    rows = torch.linalg.vector_norm(directions, dim=-1, keepdim=True)
    variances.lerp_(rows.square() / directions.size(-1), new_share)
    scale = 1 / (variances.sqrt() + 1e-8)
    before, after = (sizes.norm(dim=-2, keepdim=True) for sizes in (rows, rows * scale))
    return directions * (scale * before / (after + 1e-8))


class Muon(Optimizer):
    """Steps along the orthogonalized momentum, for matrices or stacks of matrices (more than two dimensions).

    A step moves a matrix by `lr x sqrt(max(1, rows / columns))` times an orthogonal one: the same change of its outputs
    for every shape. Weight decay is decoupled: `w <- w - lr x weight_decay x w`, with `cautious` only where the
    update, too, moves the weight towards zero (or not at all).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        normalized: bool = False,
        variance_momentum: float = 0.95,
        cautious: bool = False,
        coefficients: Coefficients = POLAR_EXPRESS,
        precision: Precision | None = None,
    ) -> None:
        """`precision`: of the polynomials. None: see `choose_precision`."""
        settings: dict[str, Any] = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "cautious": cautious}
        settings |= {"normalized": normalized, "variance_momentum": variance_momentum}
        super().__init__(params, settings)
        self.coefficients = coefficients
        self.precision = precision

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameters in self.group_by_shape([each for each in group["params"] if each.grad is not None]):
                self.step_together(parameters, group)
        return loss

    def group_by_shape(self, parameters: Iterable[Tensor]) -> list[list[Tensor]]:
        """Return the parameters that are stepped together."""
        by_shape: dict[tuple[Any, ...], list[Tensor]] = defaultdict(list)
        for parameter in parameters:
            by_shape[parameter.shape, parameter.dtype, parameter.device].append(parameter)
        return list(by_shape.values())

    def step_together(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Step parameters of one shape together."""
        updates = self.compute_updates(parameters, group)
        decay = group["lr"] * group["weight_decay"]
        if group["cautious"] and decay:
            for parameter, update in zip(parameters, updates, strict=True):
                is_towards_zero = (parameter * update >= 0).to(parameter.dtype)  # torch 2.11 shards no `ge_`
                parameter.addcmul_(parameter, is_towards_zero, value=-decay)
        elif decay:
            torch._foreach_mul_(parameters, 1 - decay)
        rows, columns = parameters[0].shape[-2:]
        torch._foreach_add_(parameters, updates, alpha=-group["lr"] * max(1, rows / columns) ** 0.5)

    def compute_updates(self, parameters: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """Update the momenta and return each parameter's direction."""
        gradients = [parameter.grad for parameter in parameters]
        momenta = [self.get_state(parameter, "momentum", parameter) for parameter in parameters]
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        # Nesterov: look one step ahead along the momentum.
        # One by one: torch 2.11 has no `_foreach_lerp` for sharded tensors.
        ahead = [
            gradient.lerp(momentum, group["momentum"]) for gradient, momentum in zip(gradients, momenta, strict=True)
        ]
        stack = torch.stack([gather_tensor(each) for each in ahead])
        precision = self.precision or choose_precision(stack.device.type)
        directions = orthogonalize(stack.flatten(0, -3), self.coefficients, precision)
        if group["normalized"]:
            means = [self.get_state(p, "variance", each[..., :1]) for p, each in zip(parameters, stack, strict=True)]
            variances = torch.stack(means)
            directions = normalize_neurons(directions, variances.flatten(0, -3), 1 - group["variance_momentum"])
            torch._foreach_copy_(means, list(variances.unbind()))
        unstacked = directions.view(stack.shape).unbind()
        if not is_sharded(parameters[0]):
            return list(unstacked)
        from trainer.distributed.sharding import shard_like

        return [shard_like(update, parameter) for update, parameter in zip(unstacked, parameters, strict=True)]

    def get_state(self, parameter: Tensor, name: str, like: Tensor) -> Tensor:
        """Return a parameter's state tensor, zeros before the first step."""
        state = self.state[parameter]
        if name not in state:
            state[name] = torch.zeros_like(like)
        return state[name]
