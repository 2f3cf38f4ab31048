"""Add up what the operators cost that torch computes: floating-point operations and bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.graph.files import MAX_DIMENSIONS, MAX_ITEMS, GraphError
from trainer.graph.operators import (
    Formula,
    count_added_product,
    count_convolution,
    count_convolution_backward,
    count_mm,
    count_nothing,
    find_formula,
    find_precision_factor,
    iterate_tensors,
)

PRODUCTS: dict[str, Formula] = {
    "aten::mm": count_mm,
    "aten::bmm": count_mm,
    "aten::addmm": count_added_product,
    "aten::baddbmm": count_added_product,
    "aten::convolution": count_convolution,
    "aten::convolution_backward": count_convolution_backward,
}
"""Operators that tensor cores compute (what a GPU's peak FLOP/s is about) -> FLOPs without the addition of a bias."""

SPLITS = ("aten::unbind.int", "aten::split.Tensor", "aten::unsafe_split.Tensor")
"""Operators that return a tensor for each part of a dimension."""


@dataclass
class Cost:
    """Costs of operators."""

    flops: int = 0
    product_flops: int = 0  # in matrix products and convolutions
    bytes: int = 0  # read and written by operators that compute, each alone

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.product_flops + other.product_flops, self.bytes + other.bytes)

    def __sub__(self, other: Cost) -> Cost:
        return self + other * -1

    def __mul__(self, factor: int) -> Cost:
        return Cost(factor * self.flops, factor * self.product_flops, factor * self.bytes)


class CostMeter(TorchDispatchMode):
    """Counts every operator that torch computes while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.total = Cost()
        self.by_operator: dict[str, Cost] = {}
        self.by_module: dict[str, Cost] = {}
        self.module = ""  # that the next operators belong to
        self.attributed: set[Any] = set()  # nodes of the backward pass whose module is known
        self.largest_bytes = 0  # of a tensor that an operator has computed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.check_arguments(func.name(), args)
        result = func(*args, **kwargs)
        if func.name().startswith("prim::"):
            return result
        if any(tensor.dim() > MAX_DIMENSIONS for tensor in iterate_tensors(result)):
            raise GraphError(f"{self.describe()} computes a tensor of more than {MAX_DIMENSIONS} dimensions")
        if rounds_whole_numbers_to_zero(func, kwargs, result):
            raise GraphError(
                f"{self.describe()} divides whole numbers with rounding_mode='trunc', which ends the process"
                " at -2**63 / -1: use 'floor'"
            )
        formula = find_formula(func)
        if formula is None:
            raise GraphError(f"{self.describe()} needs {func.name()}, whose cost is unknown")
        if formula is not count_nothing:
            self.add(func.name().partition(".")[0], formula, (*args, *kwargs.values()), result)
        return result

    def describe(self) -> str:
        return self.module or "the model"

    def check_arguments(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Raise `GraphError` for arguments with which torch would not return, or read foreign memory."""
        if name in SPLITS and count_parts(name, *arguments) > MAX_ITEMS:
            raise GraphError(f"{self.describe()} splits a tensor into more than {MAX_ITEMS:,} ({name})")
        if name == "aten::_weight_norm_interface":
            values, norms, dimension = (*arguments, 0)[:3]
            expected = [size if d == dimension else 1 for d, size in enumerate(values.shape)]
            if list(norms.shape) != expected:
                raise GraphError(
                    f"{self.describe()} calls aten::_weight_norm with norms {list(norms.shape)} for weights"
                    f" {list(values.shape)}, which torch does not check: they have the shape {expected}"
                )

    def add(self, name: str, formula: Formula, arguments: tuple[Any, ...], result: Any) -> None:
        self.largest_bytes = max(self.largest_bytes, *(tensor.nbytes for tensor in iterate_tensors(result)), 0)
        moved = sum(tensor.nbytes for tensor in iterate_tensors((arguments, result)))
        factor = find_precision_factor(name, arguments, result)
        product_flops = PRODUCTS.get(name, count_nothing)(arguments, result)
        cost = Cost(factor * formula(arguments, result), factor * product_flops, moved)
        self.total += cost
        self.by_operator[name] = self.by_operator.get(name, Cost()) + cost
        self.by_module[self.module] = self.by_module.get(self.module, Cost()) + cost


def count_parts(name: str, values: Tensor, *others: Any) -> int:
    """Return how many tensors one of `SPLITS` returns."""
    if name == "aten::unbind.int":
        return values.shape[others[0] if others else 0] if values.dim() else 0
    length = values.shape[others[1] if len(others) > 1 else 0] if values.dim() else 0
    return math.ceil(length / max(1, others[0]))


def rounds_whole_numbers_to_zero(func: Any, kwargs: dict[str, Any], result: Any) -> bool:
    """Return whether this is the division that a CPU's processor refuses for one pair of numbers."""
    is_division = func.name().startswith(("aten::div.", "aten::div_.")) and kwargs.get("rounding_mode") == "trunc"
    return is_division and not (result.is_floating_point() or result.is_complex())
