"""The operator that reads an n-gram memory: traced, counted, trained as rows, and refused where it could lose them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.traced_models import build_pair, compute_gradients, edit_files, sample_rows, trace
from trainer.graph.files import GraphError
from trainer.graph.model import build_model, build_model_without_data, read_recipe
from trainer.graph.operators import NGRAM_MEMORY
from trainer.graph.reading import parse_files
from trainer.graph.summary import describe_traced
from trainer.ops.devices import get_row_gradients
from trainer.optim.optimizers import build_optimizers
from trainer.optim.row_adagrad import RowAdagrad
from trainer.smoke.traced_files import count_embedding_parameters
from trainer.training.objective import Objective

ROWS = 50


def assert_equal(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    assert found["memory.table"].any()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=name)


def test_graph_of_a_memory_computes_the_losses_and_gradients_of_its_module() -> None:
    pair = build_pair("gpt", memory_rows=ROWS)
    calls = [call.operator for call in pair.traced.training.features.iterate_calls()]
    assert calls.count(NGRAM_MEMORY) == 1
    assert_equal(compute_gradients(Objective(pair.graph)), compute_gradients(Objective(pair.module)))


def test_cost_of_a_memory_counts_rows_that_are_read_and_bytes_that_are_stored() -> None:
    traced = [trace("gpt", memory_rows=rows, memory_blocks="none") for rows in (ROWS, 1000 * ROWS)] + [trace("gpt")]
    small, large, plain = map(describe_traced, traced)
    width = 128
    for name in ("flops_per_token", "bytes_per_token", "reference_seconds_per_token"):
        assert small[name] == pytest.approx(large[name], rel=1e-3 if "bytes" in name else 0.05)
    # Two rows are read, added and given to the stream; gradients are added to two rows.
    assert small["flops_per_token"] - plain["flops_per_token"] > 5 * width
    assert large["stored_bytes"] - small["stored_bytes"] == 2 * 999 * ROWS * width * 4
    assert large["parameters"] - small["parameters"] == 2 * 999 * ROWS * width
    assert count_embedding_parameters(traced[0]) - count_embedding_parameters(traced[2]) == 2 * ROWS * width


def test_recipe_of_a_traced_memory_steps_rows() -> None:
    traced = trace("gpt", memory_rows=ROWS)
    model = build_model(traced)
    optimizers = build_optimizers(model, read_recipe(traced))
    (rows,) = [each for each in optimizers if isinstance(each, RowAdagrad)]
    model.logits(model.features(sample_rows()[0])).square().sum().backward()
    (memory,) = model.list_memories()
    rows.step()
    is_changed = memory.table.flatten(1).any(1)
    assert 0 < is_changed.sum() < len(is_changed)
    model.zero_grad()
    assert list(get_row_gradients(memory.table).iterate_sums()) == []  # type: ignore[union-attr]


Arguments = list[Any]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda memory, add: add("aten::sum", memory[1]), "reads once and in no other way"),
        (lambda memory, _: memory.__setitem__(1, "@embedding.weight"), "no parameter"),
        (lambda memory, _: memory.__setitem__(3, True), "the tokens of the pass"),
        (lambda memory, _: memory.__setitem__(0, "%0"), "other than the tokens of the pass"),
    ],
    ids=["read twice", "another parameter", "a flag as a number", "other tokens"],
)
def test_forged_read_of_a_memory_is_refused(change: Callable[[Arguments, Any], None], message: str) -> None:
    def edit(table: dict[str, Any]) -> None:
        calls = table["features"]["calls"]
        call = next(call for call in calls if call["operator"] == NGRAM_MEMORY)
        change(call["arguments"], lambda name, *values: calls.append({"operator": name, "arguments": list(values)}))

    with pytest.raises(GraphError, match=message):
        build_model_without_data(parse_files(edit_files(edit, name="gpt", memory_rows=ROWS)))
