"""Count what a training step of a graph costs: operations and bytes, by operator and by module.

The graph runs forward and backward on tensors without data (torch's `meta` device), and every operator that torch
would compute is counted by its formula (`trainer.graph.operators`). An operator without a formula is an error, so
nothing is free. Attention counts as matrix products over all pairs of positions, for any kernel and any mask, as in
torch's counter and in papers.

Features are computed for the rows of a micro-batch. They cost a part that does not depend on the number of rows
(tables, products of weights) and a part for each row. Both come from counting two rows and three rows: one row alone
needs fewer copies, since its layout is that of no batch. Logits are computed on chunks of positions
(`trainer.ops.losses`), so they are counted on `[1, n]`: a part for each chunk and a part for each position.

A run is charged for every row as if it were a micro-batch of its own, so that its charge depends on no machine. A
forged graph could cost more at other numbers than the counted ones, so every number of rows and positions that a run
may have is counted, too. Optimizer and the sums of gradients over chunks and micro-batches are the trainer's own work.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from trainer.errors import to_one_line
from trainer.graph.build import GraphFunction
from trainer.graph.files import GraphError
from trainer.graph.initialization import Cost, CostMeter
from trainer.graph.model import GraphModel, get_stored_tensors
from trainer.graph.operators import iterate_tensors
from trainer.ops.attention import force_reference
from trainer.ops.losses import choose_chunk_positions, count_chunks, limit_chunk_positions

CHECKED_COUNT = 1021
"""Cost is measured at 2 and 3 rows or positions, and has to hold at this number, which is not a round one."""

TOLERANCE_OF_ONE = (
    0.05  # share of the cost by which a pass over one row or position may differ: its layout needs other copies
)


@dataclass(frozen=True)
class TrainingCost:
    """The cost of a forward and a backward pass over `T` tokens a row."""

    tokens_per_row: int
    per_row: Cost
    per_pass: Cost  # in addition, once for all rows of a micro-batch
    per_chunk: Cost  # in addition, once for each chunk of logits
    by_operator: dict[str, Cost]  # of a micro-batch of one row and one chunk
    by_module: dict[str, Cost]  # likewise, by the module that made the forward call
    forward_per_row: Cost  # of evaluation, forward only
    chunks_per_row: int  # of logits, on a GPU

    @property
    def total_per_row(self) -> Cost:
        """What a run is charged for a row: the cost of a micro-batch of one row on a GPU.

        A machine computes as many rows at once as fit, so what they share costs less. It is charged for each row, so
        that the charge depends on the graph alone.
        """
        return self.per_row + self.per_pass + self.per_chunk * self.chunks_per_row

    @property
    def flops_per_token(self) -> float:
        return self.total_per_row.flops / self.tokens_per_row

    @property
    def product_flops_per_token(self) -> float:
        return self.total_per_row.product_flops / self.tokens_per_row


def count_training_cost(model: GraphModel, row_counts: Iterable[int] = (), device: str = "cuda") -> TrainingCost:
    """Count a model whose tensors are on the `meta` device.

    `row_counts`: the numbers of rows that a micro-batch of the run may have. A graph could cost more at just these.
    `device`: of the run, which decides how many positions a chunk of logits has.
    Raises `GraphError` for operators of unknown cost, if shapes do not fit, or if costs do not grow evenly with rows
    or positions.
    """
    length, row_counts = model.traced_length, set(row_counts)
    positions = {1, 2, 3, length, CHECKED_COUNT, *list_chunk_positions(model, row_counts, device)}
    try:
        model.train()
        sample = compute_features(model)
        features = {rows: count_features(model, rows) for rows in {2, 3, CHECKED_COUNT, *row_counts}}
        logits = {number: count_logits(model, sample, number) for number in positions}
        model.eval()
        sample = compute_features(model)
        one_row = count_features(model, 1)
        scored = {number: count_logits(model, sample, number) for number in (1, 2, 3, length, CHECKED_COUNT)}
        model.train()
    except GraphError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise GraphError(f"the graph cannot be computed: {to_one_line(error)}") from error
    per_pass, per_row = fit_costs(features, "rows")
    per_chunk, per_position = fit_costs(logits, "positions")
    fit_costs(scored, "positions")
    return TrainingCost(
        tokens_per_row=length,
        per_row=per_row + per_position * length,
        per_pass=per_pass,
        per_chunk=per_chunk,
        by_operator=add_costs(extrapolate(features, "by_operator"), logits[length].by_operator),
        by_module=add_costs(extrapolate(features, "by_module"), logits[length].by_module),
        forward_per_row=one_row.total + scored[length].total,
        chunks_per_row=count_chunks(length, "cuda", model.vocabulary_size),
    )


def list_chunk_positions(model: GraphModel, row_counts: Iterable[int], device: str) -> set[int]:
    """Return the numbers of positions of the chunks of logits that a run computes."""
    totals = {rows * model.traced_length for rows in row_counts}
    vocabulary = model.vocabulary_size
    sizes = {total: choose_chunk_positions(total, limit_chunk_positions(device, vocabulary, total)) for total in totals}
    return {*sizes.values(), *(total % size for total, size in sizes.items() if total % size)}


def compute_features(model: GraphModel) -> Tensor:
    """Return features without data. Raise `GraphError` if features or logits have other shapes than declared."""
    with CostMeter():  # refuses what torch would not return from
        features = model.features(torch.zeros(2, model.traced_length, dtype=torch.int64, device="meta"))
        width = model.passes.logits.graph.inputs[0].shape[2]
        check_shape("features", features, (2, model.traced_length, width))
        check_shape("logits", model.logits(features[:, :2]), (2, 2, model.vocabulary_size))
    return features


def check_shape(name: str, value: Tensor, expected: tuple[int | str, ...]) -> None:
    if tuple(value.shape) != expected:
        raise GraphError(f"{name} returns {list(value.shape)} instead of {list(expected)}")


def fit_costs(meters: Mapping[int, CostMeter], unit: str) -> tuple[Cost, Cost]:
    """Return the constant part of the cost and that of each row or position. Raise `GraphError` if there are none."""
    each = meters[3].total - meters[2].total
    constant = meters[2].total - each * 2
    for number, meter in meters.items():
        expected, tolerance = constant + each * number, TOLERANCE_OF_ONE if number == 1 else 0.0
        if not math.isclose(meter.total.flops, expected.flops, rel_tol=tolerance) or each.flops < 0:
            raise GraphError(f"its cost does not grow evenly with the number of {unit}, so it cannot be counted")
    if constant.flops < 0:
        raise GraphError(f"its cost grows faster than the number of {unit}, so it cannot be counted")
    return constant, each


def extrapolate(meters: Mapping[int, CostMeter], name: str) -> dict[str, Cost]:
    """Return what one row costs, from the costs of two rows and of three."""
    two, three = (getattr(meters[rows], name) for rows in (2, 3))
    return {key: cost * 2 - three[key] for key, cost in two.items()}


def add_costs(left: Mapping[str, Cost], right: Mapping[str, Cost]) -> dict[str, Cost]:
    return {**left, **{name: cost + left.get(name, Cost()) for name, cost in right.items()}}


def count_features(model: GraphModel, rows: int) -> CostMeter:
    """Count the features of this many rows: forward, and in training backward."""
    meter = CostMeter()
    tokens = torch.zeros(rows, model.traced_length, dtype=torch.int64, device="meta")
    passes = model.passes
    with torch.set_grad_enabled(model.training):
        with measure_costs(meter):
            features = run_attributed(model, passes.features, tokens, meter)
        if not features.requires_grad:
            return meter
        for stored in get_stored_tensors(model, passes.logits):
            if stored.requires_grad:
                stored.grad = torch.empty_like(stored)  # to which those of shared weights are added
        gradient = torch.empty(features.shape, dtype=features.dtype, device="meta")
        with measure_costs(meter):
            features.backward(gradient)
    model.zero_grad(set_to_none=True)
    return meter


def count_logits(model: GraphModel, features: Tensor, positions: int) -> CostMeter:
    """Count the logits and the loss of a chunk of this many positions: forward, and in training backward.

    `features`: any of the model's, for their type and width.
    """
    meter = CostMeter()
    function = model.passes.logits
    with torch.set_grad_enabled(model.training):
        chunk = torch.empty(1, positions, features.size(-1), dtype=features.dtype, device="meta")
        targets = torch.zeros(positions, dtype=torch.int64, device="meta")
        parameters = [stored for stored in get_stored_tensors(model, function) if stored.requires_grad]
        with measure_costs(meter):
            logits = run_attributed(model, function, chunk.requires_grad_(model.training), meter)
            meter.module = "loss"
            loss = F.cross_entropy(logits.flatten(0, 1).float(), targets, reduction="sum")
            if model.training:
                torch.autograd.grad(loss, (chunk, *parameters), allow_unused=True)
    return meter


@contextmanager
def measure_costs(meter: CostMeter) -> Iterator[None]:
    with ExitStack() as stack:
        # Attention as matrix products, ours and torch's.
        stack.enter_context(force_reference())
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(meter)
        yield


def run_attributed(model: GraphModel, function: GraphFunction, value: Tensor, meter: CostMeter) -> Tensor:
    """Run a graph of one input and one output, and attribute every operator to its module."""
    result: Tensor
    (result,) = AttributingInterpreter(function.module, meter).run(
        value.device, value, *get_stored_tensors(model, function)
    )
    return result


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
