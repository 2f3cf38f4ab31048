"""Compute the initial tensors of a traced architecture from a seed.

The recorded operators of the constructor run on the CPU, with the constructor's parameters to the last bit. What they
cost is counted first and limited: training in the initialization would be compute that no budget contains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.errors import to_one_line
from trainer.graph.build import GraphFunction, build_constants, build_function
from trainer.graph.files import MAX_DIMENSIONS, MAX_ITEMS, GraphError, Initialization
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

# --- the meter of operators' costs ------------------------------------------------------------------------------------


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
        # Of a table only the rows are read that are written.
        read = (result, *arguments[1:]) if name == "aten::embedding" else arguments
        moved = sum(tensor.nbytes for tensor in iterate_tensors((read, result)))
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


ERRORS = (RuntimeError, TypeError, ValueError, IndexError, OverflowError)

FREE_FLOPS = 10**9
FLOPS_PER_ELEMENT = 1_000
FLOPS_PER_ELEMENT_AND_SIDE = 16
"""A stored tensor of n elements allows n (1,000 + 16 sqrt n) FLOPs. Making an n x n matrix orthogonal takes 4 n^3."""
UNCHARGED_FLOPS_PER_ELEMENT = 100
"""What an initialization may cost beside the run's budget, for each element that it stores: random numbers, tables of
sines. More is charged, as training is."""
FREE_BYTES = 2**30
BYTES_PER_STORED_BYTE = 4


@dataclass(frozen=True)
class InitializationCost:
    flops: int
    peak_bytes: int  # of the tensors that exist at one time


def compute_initial_tensors(initialization: Initialization) -> Mapping[str, Tensor]:
    """Run the initialization on the CPU with the current random state; return the stored tensors by name."""
    function = build_function(initialization.graph)
    stored = build_constants(initialization)
    check_cost(initialization, count_function(function, stored))
    try:
        with torch.no_grad():
            results = function.run(torch.device("cpu"), (), stored)
    except ERRORS as error:
        raise GraphError(f"the initialization cannot be computed: {to_one_line(error)}") from error
    tensors = {}
    for description, tensor in zip(initialization.tensors, results, strict=True):
        dtype = getattr(torch, description.dtype)
        if tuple(tensor.shape) != description.shape or tensor.dtype is not dtype:
            raise GraphError(f"the initialization computes {tuple(tensor.shape)} for {description.name}")
        tensors[description.name] = tensor.detach().clone()
    return tensors


def count_initialization_cost(initialization: Initialization) -> InitializationCost:
    """Return what the initialization costs. Raise `GraphError` if that is more than its stored tensors allow."""
    cost = count_function(build_function(initialization.graph), build_constants(initialization))
    check_cost(initialization, cost)
    return cost


def count_charged_flops(initialization: Initialization) -> int:
    """Return the part of the initialization's FLOPs that a run pays from its budget."""
    elements = sum(tensor.number_of_elements for tensor in initialization.tensors)
    return max(0, count_initialization_cost(initialization).flops - UNCHARGED_FLOPS_PER_ELEMENT * elements)


def count_function(function: GraphFunction, constants: Mapping[str, Tensor]) -> InitializationCost:
    """Count the initialization on tensors without data."""
    meter = CostMeter()
    interpreter = MemoryInterpreter(function.module, meter)
    stored = [constants[name].to("meta") for name in function.stored_names]
    try:
        with torch.no_grad(), meter:
            interpreter.run(torch.device("meta"), *stored)
    except ERRORS as error:
        raise GraphError(f"the initialization cannot be computed: {to_one_line(error)}") from error
    return InitializationCost(meter.total.flops, interpreter.peak_bytes)


def check_cost(initialization: Initialization, cost: InitializationCost) -> None:
    """Raise `GraphError` if the initialization costs more than its stored tensors allow."""
    sizes = [tensor.number_of_elements for tensor in initialization.tensors]
    flops = FREE_FLOPS + sum(n * (FLOPS_PER_ELEMENT + FLOPS_PER_ELEMENT_AND_SIDE * math.isqrt(n)) for n in sizes)
    stored_bytes = sum(t.number_of_elements * getattr(torch, t.dtype).itemsize for t in initialization.tensors)
    limit = FREE_BYTES + BYTES_PER_STORED_BYTE * stored_bytes
    if cost.flops > flops:
        raise GraphError(
            f"the constructor computes {cost.flops:.2g} FLOPs, and {flops:.2g} are allowed for its parameters and"
            " buffers: train in the run, and compute there what depends on parameters"
        )
    if cost.peak_bytes > limit:
        raise GraphError(
            f"the constructor needs {cost.peak_bytes:,} bytes at one time, and {limit:,} are allowed for its parameters"
            " and buffers: compute large tables in parts"
        )


class MemoryInterpreter(fx.Interpreter):
    """Runs a graph call by call, and adds up the memory that exists at one time."""

    def __init__(self, module: fx.GraphModule, meter: CostMeter) -> None:
        super().__init__(module)
        self.meter = meter
        self.extra_traceback = False  # errors keep their message
        self.held: dict[int, tuple[torch.UntypedStorage, int]] = {}  # storages, and how many values use them
        self.held_bytes = self.peak_bytes = 0

    def run_node(self, n: fx.Node) -> Any:
        self.meter.largest_bytes = 0
        result = super().run_node(n)
        self.peak_bytes = max(self.peak_bytes, self.held_bytes + self.meter.largest_bytes)
        self.change_uses(result, 1)
        for node in self.user_to_last_uses.get(n, ()):
            self.change_uses(self.env[node], -1)
        if not n.users:
            self.change_uses(result, -1)
        return result

    def change_uses(self, value: Any, change: int) -> None:
        for tensor in iterate_tensors(value):
            storage = tensor.untyped_storage()
            _, before = self.held.get(id(storage), (storage, 0))
            self.held[id(storage)] = (storage, before + change)
            if before == 0:
                self.held_bytes += storage.nbytes()
            elif before + change == 0:
                self.held_bytes -= storage.nbytes()
                del self.held[id(storage)]
