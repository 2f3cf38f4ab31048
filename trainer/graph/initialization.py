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

from trainer.errors import to_one_line
from trainer.graph.build import GraphFunction, build_constants, build_function
from trainer.graph.cost_meter import CostMeter
from trainer.graph.files import GraphError, Initialization
from trainer.graph.operators import iterate_tensors

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
