"""Positions outside of a tensor: every operator that takes positions refuses them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.cheats import forged_files
from benchmarks.cheats.base import WIDTH, Config, Model, T, V, vary
from tests.trainer.graph.test_memory import list_overloads
from trainer.graph.build import check_passes
from trainer.graph.counting import count_training_cost
from trainer.graph.files import GraphError
from trainer.graph.model import build_model_without_data
from trainer.graph.operators import UNCHECKED_ARGUMENTS, find_operator, find_schema, is_allowed, strip_variant
from trainer.graph.reading import parse_files
from trainer.graph.trace import trace_architecture

POSITIONS = re.compile(r"index|indices|offsets|sorter|repeats|target|batch_sizes|tensor_indices_or_sections")
WRONG = (torch.tensor([[0, 4]]), torch.tensor([[-5, 0]]))  # of 4
TABLE, ROW = torch.ones(1, 4), torch.ones(1, 2)
VALUES: dict[str, Any] = {
    "self": TABLE,
    "weight": torch.ones(4, 1),
    "dim": 1,
    "src": ROW,
    "source": ROW,
    "values": torch.tensor(1.0),
    "value": 1,
    "reduce": "sum",
}
"""Arguments of operators by name."""


def list_operators_with_positions() -> list[str]:
    return [
        name
        for name in list_overloads()
        if is_allowed(name)
        and name != "aten::take_along_dim"  # takes positions modulo the size
        and any(
            "Tensor" in str(a.type)
            and POSITIONS.fullmatch(a.name)
            and UNCHECKED_ARGUMENTS.get(strip_variant(name)) != a.name
            for a in find_schema(name).arguments
        )
    ]


def choose_arguments(name: str, positions: torch.Tensor) -> dict[str, Any]:
    given = {}
    for argument in find_schema(name).arguments:
        if POSITIONS.fullmatch(argument.name) and "Tensor" in str(argument.type):
            flat = positions[0]
            in_row = "index_" in name or "embedding" in name
            if "List" in str(argument.type):
                given[argument.name] = [torch.zeros_like(flat), flat]
            else:
                given[argument.name] = flat if in_row or argument.name == "target" else positions
        elif argument.name in VALUES:
            given[argument.name] = VALUES[argument.name]
    if "loss" in name:
        given["self"] = torch.ones(2, 4)
        given.pop("weight", None)
    if re.match(r"aten::scatter_?\.(reduce|value_r)", name):
        given["reduce"] = "add"
    if "value" in given and str(next(a.type for a in find_schema(name).arguments if a.name == "value")) == "Tensor":
        given["value"] = torch.tensor(1.0)
    return {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in given.items()}


@pytest.mark.filterwarnings("ignore")
def test_operators_with_positions_outside_of_a_tensor_raise() -> None:
    names = list_operators_with_positions()
    for name in names:
        find_operator(name)(**choose_arguments(name, torch.tensor([[0, 3]])))  # the arguments are right otherwise
        for wrong in WRONG:
            with pytest.raises((RuntimeError, IndexError), match=r"bound|range"):
                find_operator(name)(**choose_arguments(name, wrong))
    kinds = {strip_variant(name) for name in names}
    assert {"aten::embedding", "aten::take", "aten::index_put", "aten::scatter_add", "aten::gather"} <= kinds


def test_take_along_dim_outside_of_a_tensor_returns_its_elements() -> None:
    table = torch.arange(4.0)[None]
    for position in (4, -5, 2**40, -(2**40)):
        assert torch.take_along_dim(table, torch.tensor([[position]]), 1).item() in range(4)


@pytest.mark.parametrize("change", [forged_files.read_foreign_memory, forged_files.sort_by_foreign_positions])
def test_graph_with_unchecked_positions_is_refused(change: Any) -> None:
    files = trace_architecture(vary(), Config(V, T)).to_files()
    with pytest.raises(GraphError, match=r"not in the list|torch does not check"):
        check_passes(parse_files(forged_files.forge(change)(files)))


@pytest.mark.parametrize("change", [forged_files.attend_to_one_row, forged_files.attend_to_short_documents])
def test_graph_whose_attention_would_read_foreign_memory_is_refused(change: Any) -> None:
    files = trace_architecture(vary(), Config(V, T)).to_files()
    with pytest.raises(GraphError, match="attention takes"):
        count_training_cost(build_model_without_data(parse_files(forged_files.forge(change)(files))))


@pytest.mark.parametrize(
    "name",
    [
        *("lstm.data", "gru.data", "repeat_interleave.Tensor", "tensor_split.tensor_indices_or_sections"),
        *("gather.dimname", "softmax.Dimname", "sum.dim_DimnameList", "rand.names"),
    ],
)
def test_overload_that_takes_sizes_from_a_tensor_or_names_is_not_allowed(name: str) -> None:
    assert not is_allowed(f"aten::{name}")


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_one_length_are_traced_as_reductions(mode: str) -> None:
    def features(self: Model, tokens: Tensor) -> Tensor:
        windows = F.pad(tokens, (2, 0)).unfold(1, 3, 1)
        return F.embedding_bag(windows.flatten(0, 1), self.embedding.weight, mode=mode).view(-1, T, WIDTH)

    traced = trace_architecture(vary(features=features), Config(V, T))  # compares values and gradients
    assert not any("embedding_bag" in call.operator for call in traced.training.features.iterate_calls())
