"""Files with any value changed load, or are refused with a `GraphError`: nothing else is raised."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from benchmarks.cheats.base import Config, T, V, vary
from trainer.graph.counting import count_training_cost
from trainer.graph.files import GraphError
from trainer.graph.model import build_model, build_model_without_data, read_recipe
from trainer.graph.reading import parse_files
from trainer.graph.trace import trace_architecture

REPLACEMENTS: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    3,
    2**70,
    0.5,
    "text",
    "%99",
    "@unknown",
    [],
    [-1],
    {},
    {"a": 1},
    2**62,
    "training",
    "a.forward",
)

Place = tuple[str | int, ...]


def load(files: dict[str, bytes]) -> None:
    """Do what a node does before it trains."""
    traced = parse_files(files)
    read_recipe(traced)
    build_model(traced)
    count_training_cost(build_model_without_data(traced))


def iterate_places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Yield the path of each value in nested tables and lists."""
    yield place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from iterate_places(item, (*place, key))


def change_one(table: Any, place: Place) -> Iterator[tuple[str, Any]]:
    """Yield copies of a table in which the value at a place is another, is missing, or stands twice."""
    *outer, key = place

    def copy_table() -> tuple[Any, Any]:
        changed = copy.deepcopy(table)
        parent = changed
        for part in outer:
            parent = parent[part]
        return changed, parent

    for replacement in REPLACEMENTS:
        changed, parent = copy_table()
        parent[key] = replacement
        yield f"{place} = {replacement!r}", changed
    changed, parent = copy_table()
    del parent[key]
    yield f"without {place}", changed
    if isinstance(key, int):
        changed, parent = copy_table()
        parent.insert(key, parent[key])
        yield f"{place} twice", changed


@pytest.mark.slow
@pytest.mark.parametrize("name", ["init.json", "train.json", "recipe.json"])
def test_files_with_one_change_load_or_raise_graph_error(name: str) -> None:
    files = trace_architecture(vary(), Config(V, T)).to_files()
    table = json.loads(files[name])
    wrong = []
    for place in iterate_places(table):
        for description, changed in change_one(table, place) if place else ():
            torch.manual_seed(0)
            try:
                load({**files, name: json.dumps(changed).encode()})
            except GraphError as error:
                wrong += [f"{description}: several lines"] if "\n" in str(error) else []
            except Exception as error:
                wrong.append(f"{description}: {type(error).__name__}: {error}")
    assert wrong == []
