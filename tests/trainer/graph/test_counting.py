"""Costs of a step of a graph, against formulas written by hand."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.cheats import forged_files
from tests.support.traced_models import T, V, build_config, trace
from trainer.accounting.flops import count_flops
from trainer.graph.counting import TrainingCost, count_training_cost, list_chunk_positions
from trainer.graph.files import Call, GraphError
from trainer.graph.initialization import CostMeter
from trainer.graph.model import build_model, build_model_without_data
from trainer.graph.operators import COMPOSITES, FORMULAS, strip_variant
from trainer.graph.reading import parse_files
from trainer.models import gpt
from trainer.models.base import Recipe, pad_vocabulary
from trainer.training.model_sources import BuiltModel


@functools.cache
def count(name: str, **fields: object) -> TrainingCost:
    return count_training_cost(build_model_without_data(trace(name, **fields)))


def test_products_of_nanogpt_equal_the_formula() -> None:
    cost, width = count("nanogpt"), build_config("nanogpt").width
    forward = 2 * (2 * T * 12 * width**2 + 2 * 2 * T * T * width) + 2 * T * width * pad_vocabulary(V)
    assert cost.forward_per_row.product_flops == forward
    assert cost.per_row.product_flops + cost.per_pass.product_flops == 3 * forward


def test_products_of_gpt_equal_torchs_own_counter() -> None:
    cost = count("gpt")
    counted = count_flops(gpt.Model(build_config("gpt")), torch.zeros(1, T, dtype=torch.int64))
    assert cost.per_row.product_flops + cost.per_pass.product_flops == counted * T


@pytest.mark.parametrize(
    ("compute", "flops"),
    [
        # a matrix product could be written as these, block by block
        (lambda ones: torch.addcmul(ones(3, 5), ones(3, 5), ones(5)), 2 * 15),
        (lambda ones: torch.addcmul(ones(3, 5), ones(3, 5), ones(5), value=0.5), 3 * 15),
        (lambda ones: torch.addcdiv(ones(3, 5), ones(3, 5), ones(5)), 2 * 15),
        (lambda ones: torch.lerp(ones(3, 5), ones(3, 5), ones(5)), 3 * 15),
        (lambda ones: torch.add(ones(3, 5), ones(5), alpha=2), 2 * 15),
        (lambda ones: torch.sub(ones(3, 5), ones(5)), 15),
        (lambda ones: torch.rsub(ones(3, 5), ones(3, 5), alpha=3), 2 * 15),
        # 3 x 5 products, each added to an element
        (lambda ones: torch.addr(ones(3, 5), ones(3), ones(5)), 2 * 15),
        (lambda ones: torch.addmv(ones(3), ones(3, 5), ones(5)), 2 * 15 + 3),
        # 2 x 8 probabilities are summed and divided; each of 2 x 4 draws is a random number, and a search in 3 steps
        (lambda ones: torch.multinomial(ones(2, 8), 4, replacement=True), 2 * 16 + 8 * (1 + 3)),
        # 2 x 8 random numbers are drawn, divided, and sorted in 3 steps each
        (lambda ones: torch.multinomial(ones(2, 8), 4), 2 * 16 + 16 * 3),
        (lambda ones: torch.multinomial(ones(8), 1), 2 * 8 + 8 * 3),
        # complex: 4 products of real numbers in one, so 4 times the 2 x 3 x 5 of a matrix and a vector
        (lambda ones: torch.mv(ones(3, 5).cfloat(), ones(5).cfloat()), 4 * 15 + 4 * 5 + 4 * 2 * 15),
        (lambda ones: ones(8).cfloat() * ones(8), 4 * 8 + 4 * 8),
        (lambda ones: ones(8).double().sin(), 2 * 8 + 2 * 8),
        (lambda ones: ones(8).cdouble().sin(), 8 * 8 + 8 * 8),
        # 5 n log2 n counts real operations
        (lambda ones: torch.fft.fft(ones(8).cfloat()), 4 * 8 + 5 * 8 * 3),
        # 6 windows of 3
        (lambda ones: F.avg_pool1d(ones(1, 2, 5), 3, 1), 6 * 3),
        (lambda ones: F.max_pool2d(ones(1, 2, 5), (1, 3), 1), 6 * 3),
        # windows of 2, 3 and 2 elements
        (lambda ones: F.adaptive_avg_pool1d(ones(1, 2, 5), 3), 2 * (2 + 3 + 2)),
        # 3 x 5 inputs, 2 outputs: each weight is multiplied by two numbers, and added
        (lambda ones: F.bilinear(ones(1, 3), ones(1, 5), ones(2, 3, 5)), 3 * 30),
        # 3 windows of 2 are added to 4 elements
        (lambda ones: F.fold(ones(1, 2, 3), (1, 4), (1, 2)), 6 + 4),
    ],
)
def test_operator_costs_what_a_hand_count_says(compute: Callable[[Callable[..., Tensor]], Tensor], flops: int) -> None:
    def ones(*shape: int) -> Tensor:
        return torch.empty(shape, device="meta")

    meter = CostMeter()
    arguments = functools.cache(ones)
    for shape in ((3, 5), (3,), (5,), (2, 8), (8,), (1, 2, 5), (1, 2, 3), (1, 3), (1, 5), (2, 3, 5)):
        arguments(*shape)  # outside of the meter
    with meter:
        compute(arguments)
    assert meter.total.flops == flops


def test_costs_of_modules_and_operators_add_up() -> None:
    cost = count("gpt")
    whole = cost.per_row.flops + cost.per_pass.flops + cost.per_chunk.flops
    assert sum(c.flops for c in cost.by_module.values()) == whole
    assert sum(c.flops for c in cost.by_operator.values()) == whole
    # The backward pass is attributed to its modules too: a matrix costs three products.
    width = build_config("gpt").width
    assert cost.by_module["blocks.0.mlp.up"].product_flops == 3 * 2 * T * width * 4 * width


def test_lists_of_operators_name_no_overloads() -> None:
    listed = {*FORMULAS, *COMPOSITES}
    assert {strip_variant(name) for name in listed} == listed, "entries that are never found"


def test_run_charges_constant_work_for_each_row_whatever_its_micro_batch() -> None:
    built = BuiltModel(build_model(trace("rwkv5")), Recipe(()), {}, traced=trace("rwkv5"))
    charged = set()
    for micro_batch, device in ((4, "cpu"), (2, "cuda")):
        resolved: Any = SimpleNamespace(rows_per_device=4, micro_batch=micro_batch, sequence_length=T, device=device)
        charged.add(built.count_flops(torch.zeros(1, T), resolved))
    cost = count("rwkv5")
    assert cost.per_pass.flops > 0  # the tables of decay powers
    assert charged == {(cost.per_row.flops + cost.per_pass.flops + cost.per_chunk.flops) / T}


def test_logits_cost_a_part_for_each_chunk() -> None:
    cost = count("nanogpt")
    # The gradient of the loss, and the two numbers that its backward pass reads.
    assert cost.per_chunk.flops == 3
    assert replace(cost, chunks_per_row=4).flops_per_token - cost.flops_per_token == pytest.approx(3 * 3 / T)


def test_work_that_grows_in_leaps_of_rows_is_refused() -> None:
    traced = trace("nanogpt")
    features = traced.training.features
    first = len(features.calls)
    calls = (
        Call("aten::sym_size.int", ("%tokens", 0)),
        Call("size::floordiv", (f"%{first}", 4)),
        Call("aten::zeros", ([f"%{first + 1}", 4096],)),
        Call("aten::cos", (f"%{first + 2}",)),
    )
    changed = replace(features, calls=(*features.calls, *calls))
    cheat = replace(traced, training=replace(traced.training, features=changed))
    with pytest.raises(GraphError, match="no sum of multiples of rows"):
        count_training_cost(build_model_without_data(cheat))


@pytest.mark.parametrize("change", [forged_files.size_past_a_row, forged_files.compare_positions])
def test_logits_whose_cost_is_not_even_in_positions_are_refused(change: Callable[[forged_files.Append], str]) -> None:
    files = forged_files.forge(change, "logits")(trace("nanogpt").to_files())
    with pytest.raises(GraphError, match="does not grow evenly with the number of positions"):
        count_training_cost(build_model_without_data(parse_files(files)))


def test_constant_work_in_logits_is_charged_for_each_chunk() -> None:
    files = forged_files.forge(forged_files.work_in_each_chunk, "logits")(trace("nanogpt").to_files())
    cost = count_training_cost(build_model_without_data(parse_files(files)))
    assert cost.per_chunk.flops > forged_files.WORK
    assert replace(cost, chunks_per_row=8).flops_per_token > 8 * forged_files.WORK / T


def test_positions_of_the_chunks_of_a_run_are_counted() -> None:
    model = build_model_without_data(trace("nanogpt"))
    # On a CPU, logits of 96 tokens are computed on up to 43,690 positions.
    assert list_chunk_positions(model, [1, 1408], "cpu") == {T, 22528}
    assert list_chunk_positions(model, [43691], "cpu") == {T, 43690}


def test_work_only_at_the_row_counts_of_the_run_is_refused() -> None:
    files = forged_files.forge(forged_files.size_by_reshape)(trace("nanogpt").to_files())
    model = build_model_without_data(parse_files(files))
    count_training_cost(model)  # empty at the numbers of rows that are always counted
    with pytest.raises(GraphError, match="does not grow evenly"):
        count_training_cost(model, [1, 32, 64])


@pytest.mark.parametrize("name", [b'"aten::squeeze"', b'"aten::squeeze.default"'])
def test_work_at_one_row_only_is_refused(name: bytes) -> None:
    files = forged_files.forge(forged_files.squeeze_rows)(trace("nanogpt").to_files())
    changed = {file: data.replace(b'"aten::squeeze"', name) for file, data in files.items()}
    with pytest.raises(GraphError, match="not in the list"):
        build_model_without_data(parse_files(changed))


def test_operators_cost_at_least_one_for_each_element_written() -> None:
    def count(function: Any, *shapes: tuple[int, ...]) -> int:
        meter, tensors = CostMeter(), [torch.empty(shape, device="meta") for shape in shapes]
        with meter:
            function(*tensors)
        return meter.total.flops

    assert count(lambda x: torch.linalg.qr(x, mode="complete"), (128, 1)) >= 128 * 128
    assert count(torch.mm, (64, 0), (0, 64)) == 64 * 64
    assert count(torch.mm, (64, 2), (2, 64)) == 2 * 2 * 64 * 64
