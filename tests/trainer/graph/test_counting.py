"""What a step of a graph costs, against formulas written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.cheats import forged_files
from tests.support.traced_models import T, V, build_config, trace
from trainer.accounting.flops import count_flops
from trainer.graph.counting import TrainingCost, count_training_cost
from trainer.graph.model import build_model_without_data
from trainer.graph.schema import Call, GraphError, parse_files
from trainer.graph.summary import describe_traced
from trainer.models import ARCHITECTURES, load_architecture
from trainer.models.base import pad_vocabulary


def count(name: str, **fields: object) -> TrainingCost:
    return count_training_cost(build_model_without_data(trace(name, **fields)))


def test_products_of_nanogpt_equal_the_formula() -> None:
    cost, width = count("nanogpt"), build_config("nanogpt").width
    forward = 2 * (2 * T * 12 * width**2 + 2 * 2 * T * T * width) + 2 * T * width * pad_vocabulary(V)
    assert cost.forward_per_row.product_flops == forward
    assert cost.per_row.product_flops + cost.per_pass.product_flops == 3 * forward


@pytest.mark.parametrize("name", ["gpt", "smear"])
def test_products_equal_torchs_own_counter(name: str) -> None:
    cost = count(name)
    counted = count_flops(load_architecture(name).Model(build_config(name)), torch.zeros(1, T, dtype=torch.int64))
    assert cost.per_row.product_flops + cost.per_pass.product_flops == counted * T


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_element_wise_work_costs_something(name: str) -> None:
    cost = count(name)
    assert cost.per_row.product_flops < cost.per_row.flops < 1.5 * cost.per_row.product_flops


def test_costs_of_modules_and_operators_add_up() -> None:
    cost = count("gpt")
    whole = cost.per_row.flops + cost.per_pass.flops
    assert sum(c.flops for c in cost.by_module.values()) == whole
    assert sum(c.flops for c in cost.by_operator.values()) == whole
    # The backward pass is attributed to its modules too: a matrix costs three products.
    width = build_config("gpt").width
    assert cost.by_module["blocks.0.mlp.up"].product_flops == 3 * 2 * T * width * 4 * width


def test_flops_per_token_share_the_cost_of_a_pass() -> None:
    cost = count("rwkv5")
    assert cost.per_pass.flops > 0  # the tables of decay powers
    assert cost.flops_per_token(8) == (cost.per_row.flops + cost.per_pass.flops / 8) / T


def test_summary_has_hash_sizes_and_costs() -> None:
    traced = trace("litgpt")
    content = describe_traced(traced)
    assert content["hash"] == traced.compute_hash()
    assert content["parameters"] == sum(
        t.number_of_elements for t in traced.initialization.tensors if t.kind == "parameter"
    )
    assert content["state"] > 0  # litgpt's rotary tables
    assert content["scoring_flops_per_token"] < content["flops_per_token"] / 2
    assert {row["name"] for row in content["operators"]} >= {"aten::mm", "aten::bmm"}


def test_summary_for_the_rows_of_a_step_is_what_training_counts() -> None:
    content = describe_traced(trace("rwkv5"), rows_per_step=8)
    assert content["flops_per_token"] == count("rwkv5").flops_per_token(8)
    assert content["flops_per_token"] < describe_traced(trace("rwkv5"))["flops_per_token"]


def test_count_of_tensors_with_other_shapes_raises_graph_error() -> None:
    traced = trace("nanogpt")
    tensors = tuple(
        replace(tensor, shape=(4, 4)) if len(tensor.shape) == 2 else tensor for tensor in traced.initialization.tensors
    )
    changed = replace(traced, initialization=replace(traced.initialization, tensors=tensors))
    with pytest.raises(GraphError, match="cannot be computed"):
        count_training_cost(build_model_without_data(changed))


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


def test_work_at_the_numbers_of_rows_of_the_run_only_is_refused() -> None:
    files = forged_files.forge(forged_files.size_by_slice)(trace("nanogpt").to_files())
    model = build_model_without_data(parse_files(files))
    count_training_cost(model)  # empty at the numbers of rows that are always counted
    with pytest.raises(GraphError, match="does not grow evenly"):
        count_training_cost(model, [1, 32, 64])
