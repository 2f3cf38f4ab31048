"""Count what a training step of a graph costs: operations and bytes, by operator and by module.

The graph runs forward and backward on tensors without data (torch's `meta` device), and every operator that torch
would compute is counted by its formula (`trainer.graph.operators`). An operator without a formula is an error, so
nothing is free. Attention counts as matrix products over all pairs of positions, whatever kernel runs and whatever the
mask, as in torch's counter and in papers.

A pass costs a part that does not depend on the number of rows (tables, products of weights) and a part for each row.
Both come from counting two rows and three rows: one row alone needs fewer copies, since its layout is that of no batch.
Training also counts every number of rows that its passes may have, since a forged graph could cost more at just these.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.errors import to_one_line
from trainer.graph.model import GraphModel, get_stored_tensors
from trainer.graph.operators import (
    Formula,
    count_added_product,
    count_convolution,
    count_convolution_backward,
    count_mm,
    count_nothing,
    find_formula,
    iterate_tensors,
)
from trainer.graph.schema import GraphError
from trainer.ops.attention import force_reference

PRODUCTS: dict[str, Formula] = {
    "aten::mm": count_mm,
    "aten::bmm": count_mm,
    "aten::addmm": count_added_product,
    "aten::baddbmm": count_added_product,
    "aten::convolution": count_convolution,
    "aten::convolution_backward": count_convolution_backward,
}
"""Operators that tensor cores compute (what a GPU's peak FLOP/s is about) -> FLOPs without the addition of a bias."""


MANY_ROWS = 1021
"""Cost is measured at 2 and 3 rows, and has to hold at this number, which is not a round one."""

ONE_ROW_TOLERANCE = (
    0.05  # share of the cost by which a pass over one row may differ, since its layout needs other copies
)


@dataclass
class Cost:
    """What operators cost."""

    flops: int = 0
    product_flops: int = 0  # in matrix products and convolutions
    bytes: int = 0  # read and written by operators that compute, each alone

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.product_flops + other.product_flops, self.bytes + other.bytes)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.flops - other.flops, self.product_flops - other.product_flops, self.bytes - other.bytes)


class CostMeter(TorchDispatchMode):
    """Counts every operator that torch computes while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.total = Cost()
        self.by_operator: dict[str, Cost] = {}
        self.by_module: dict[str, Cost] = {}
        self.module = ""  # that the next operators belong to
        self.attributed: set[Any] = set()  # nodes of the backward pass whose module is known

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func.name().startswith("prim::"):
            return result
        formula = find_formula(func)
        if formula is None:
            raise GraphError(f"{self.module or 'the model'} needs {func.name()}, whose cost is unknown")
        if formula is not count_nothing:
            self.add(func.name().partition(".")[0], formula, (*args, *kwargs.values()), result)
        return result

    def add(self, name: str, formula: Formula, arguments: tuple[Any, ...], result: Any) -> None:
        moved = sum(tensor.nbytes for tensor in iterate_tensors((arguments, result)))
        cost = Cost(formula(arguments, result), PRODUCTS.get(name, count_nothing)(arguments, result), moved)
        self.total += cost
        self.by_operator[name] = self.by_operator.get(name, Cost()) + cost
        self.by_module[self.module] = self.by_module.get(self.module, Cost()) + cost


@dataclass(frozen=True)
class TrainingCost:
    """The cost of a forward and a backward pass over `T` tokens a row."""

    tokens_per_row: int
    per_row: Cost
    per_pass: Cost  # in addition, once for all rows of a step
    by_operator: dict[str, Cost]  # of one row
    by_module: dict[str, Cost]  # of one row, by the module that made the forward call
    forward_per_row: Cost  # of evaluation, forward only

    def flops_per_token(self, rows_per_step: int) -> float:
        """Return the FLOPs of a step divided by its tokens."""
        return (self.per_row.flops + self.per_pass.flops / rows_per_step) / self.tokens_per_row


def count_training_cost(model: GraphModel, row_counts: Iterable[int] = ()) -> TrainingCost:
    """Count a model whose tensors are on the `meta` device.

    `row_counts`: the numbers of rows that a pass of the run may have. A graph could cost more at just these.
    Raises `GraphError` for operators of unknown cost, if shapes do not fit, or if costs do not grow evenly with rows.
    """
    try:
        two, three = run_meter(model, 2), run_meter(model, 3)
        totals = {rows: run_meter(model, rows).total.flops for rows in {MANY_ROWS, *row_counts}}
        model.eval()
        with torch.no_grad(), measure_costs() as evaluation:
            compute_loss(model, 1, evaluation)
    except (RuntimeError, TypeError) as error:
        raise GraphError(f"the graph cannot be computed: {to_one_line(error)}") from error
    model.train()
    per_row = three.total - two.total
    for rows, flops in totals.items():
        expected = two.total.flops + (rows - 2) * per_row.flops
        if not math.isclose(flops, expected, rel_tol=1e-9 if rows > 1 else ONE_ROW_TOLERANCE):
            raise GraphError("its cost does not grow evenly with the number of rows, so it cannot be counted")
    return TrainingCost(
        tokens_per_row=model.traced_length,
        per_row=per_row,
        per_pass=two.total - per_row - per_row,
        by_operator=extrapolate(two.by_operator, three.by_operator),
        by_module=extrapolate(two.by_module, three.by_module),
        forward_per_row=evaluation.total,
    )


def extrapolate(two: dict[str, Cost], three: dict[str, Cost]) -> dict[str, Cost]:
    """Return what one row costs, from the costs of two rows and of three."""
    return {name: cost + cost - three[name] for name, cost in two.items()}


def run_meter(model: GraphModel, rows: int) -> CostMeter:
    """Count a forward and a backward pass over this many rows."""
    model.train()
    with measure_costs() as meter:
        compute_loss(model, rows, meter).backward()
    model.zero_grad(set_to_none=True)
    return meter


@contextmanager
def measure_costs() -> Iterator[CostMeter]:
    with ExitStack() as stack:
        # Attention as matrix products, ours and torch's.
        stack.enter_context(force_reference())
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        yield stack.enter_context(CostMeter())


def compute_loss(model: GraphModel, rows: int, meter: CostMeter) -> Tensor:
    """Run features, logits and the loss of this many rows, and attribute every operator to its module."""
    tokens = torch.zeros(rows, model.traced_length, dtype=torch.int64, device="meta")
    passes = model.traced_passes[model.training]
    value = tokens
    for function in (passes.features, passes.logits):
        interpreter = AttributingInterpreter(function.module, meter)
        (value,) = interpreter.run(value.device, value, *get_stored_tensors(model, function))
    meter.module = "loss"
    return F.cross_entropy(value.flatten(0, 1).float(), tokens.flatten(), reduction="sum")


class AttributingInterpreter(fx.Interpreter):
    """Runs a graph call by call; tells the meter the module of each, also for its part of the backward pass."""

    def __init__(self, module: fx.GraphModule, meter: CostMeter) -> None:
        super().__init__(module)
        self.meter = meter
        self.extra_traceback = False  # errors keep their message

    def run_node(self, n: fx.Node) -> Any:
        self.meter.module = n.meta.get("module", "")
        result = super().run_node(n)
        for tensor in iterate_tensors(result):
            self.attribute_backward(tensor.grad_fn, self.meter.module)
        return result

    def attribute_backward(self, node: Any, module: str) -> None:
        """Let the nodes of the backward pass that a call has added set the meter's module."""
        waiting = [node]
        while waiting:
            node = waiting.pop()
            if node is None or node in self.meter.attributed:
                continue
            self.meter.attributed.add(node)
            node.register_prehook(functools.partial(self.set_module, module))
            waiting += [following for following, _ in node.next_functions]

    def set_module(self, module: str, _gradients: Any) -> None:
        self.meter.module = module
