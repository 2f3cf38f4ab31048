"""Add up what the operators cost that torch computes: floating-point operations and bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

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
from trainer.graph.schema import GraphError

PRODUCTS: dict[str, Formula] = {
    "aten::mm": count_mm,
    "aten::bmm": count_mm,
    "aten::addmm": count_added_product,
    "aten::baddbmm": count_added_product,
    "aten::convolution": count_convolution,
    "aten::convolution_backward": count_convolution_backward,
}
"""Operators that tensor cores compute (what a GPU's peak FLOP/s is about) -> FLOPs without the addition of a bias."""


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
        result = func(*args, **kwargs)
        if func.name().startswith("prim::"):
            return result
        if rounds_whole_numbers_to_zero(func, kwargs, result):
            raise GraphError(
                f"{self.module or 'the model'} divides whole numbers with rounding_mode='trunc', which ends the process"
                " at -2**63 / -1: use 'floor'"
            )
        formula = find_formula(func)
        if formula is None:
            raise GraphError(f"{self.module or 'the model'} needs {func.name()}, whose cost is unknown")
        if formula is not count_nothing:
            self.add(func.name().partition(".")[0], formula, (*args, *kwargs.values()), result)
        return result

    def add(self, name: str, formula: Formula, arguments: tuple[Any, ...], result: Any) -> None:
        self.largest_bytes = max(self.largest_bytes, *(tensor.nbytes for tensor in iterate_tensors(result)), 0)
        moved = sum(tensor.nbytes for tensor in iterate_tensors((arguments, result)))
        factor = find_precision_factor(name, arguments, result)
        product_flops = PRODUCTS.get(name, count_nothing)(arguments, result)
        cost = Cost(factor * formula(arguments, result), factor * product_flops, moved)
        self.total += cost
        self.by_operator[name] = self.by_operator.get(name, Cost()) + cost
        self.by_module[self.module] = self.by_module.get(self.module, Cost()) + cost


def rounds_whole_numbers_to_zero(func: Any, kwargs: dict[str, Any], result: Any) -> bool:
    """Return whether this is the division that a CPU's processor refuses for one pair of numbers."""
    is_division = func.name().startswith(("aten::div.", "aten::div_.")) and kwargs.get("rounding_mode") == "trunc"
    return is_division and not (result.is_floating_point() or result.is_complex())
