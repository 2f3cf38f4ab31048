"""The four files: what is written can be read, and what is not valid is refused with a reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.traced_models import trace
from trainer.graph import schema
from trainer.graph.build import is_random
from trainer.graph.model import build_model
from trainer.graph.recipe import read_recipe
from trainer.graph.schema import Call, GraphError, parse_files, read_traced
from trainer.models import load_architecture
from trainer.protocol import GRAPH_FILES


def edit(change: Callable[[dict[str, Any]], None], file: str = "train.json") -> dict[str, bytes]:
    """Return the files of a traced architecture with one of them changed."""
    files = trace("nanogpt").to_files()
    table = json.loads(files[file])
    change(table)
    return {**files, file: json.dumps(table).encode()}


def test_written_files_are_read_back(tmp_path: Path) -> None:
    traced = trace("rwkv5")
    traced.write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(GRAPH_FILES)
    again = read_traced(tmp_path)
    assert again == traced
    assert again.compute_hash() == traced.compute_hash()


def test_hash_changes_with_any_file() -> None:
    def change(table: dict[str, Any]) -> None:
        table["recipe"]["groups"][0]["learning_rate"] *= 2

    assert parse_files(edit(change, "recipe.json")).compute_hash() != trace("nanogpt").compute_hash()


def test_recipe_is_read_back() -> None:
    module = load_architecture("nanogpt")
    config = module.Config(**trace("nanogpt").recipe["model"])
    assert read_recipe(trace("nanogpt")) == module.recipe(config)


def call(operator: str, *arguments: Any) -> Callable[[dict[str, Any]], None]:
    """A change that puts a call in front of the others of the features."""

    def change(table: dict[str, Any]) -> None:
        table["features"]["calls"][0] = {"operator": operator, "arguments": list(arguments)}

    return change


def replace_output(table: dict[str, Any]) -> None:
    table["features"]["outputs"] = ["%99999"]


def add_output(table: dict[str, Any]) -> None:
    table["features"]["outputs"] *= 2


def remove_version(table: dict[str, Any]) -> None:
    table["version"] = 99


def name_badly(table: dict[str, Any]) -> None:
    table["features"]["calls"][0]["module"] = "<script>"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (call("aten::from_file", {"text": "/etc/passwd"}), "aten::from_file is not in the list"),
        (call("os::system", {"text": "true"}), "os::system is not in the list"),
        (call("aten::_softmax_backward_data", "%tokens"), "not in the list"),
        (call("aten::set_", "@embedding.weight"), "not in the list"),
        (call("aten::add_.Scalar", "@embedding.weight", 1), "writes to embedding.weight"),
        (call("aten::zero_", "%tokens"), "writes to tokens"),
        (call("aten::add.Tensor", "%5", 1), "'%5' refers to nothing before it"),
        (call("aten::add.Tensor", "__import__", 1), "refers to nothing before it"),
        (call("aten::add.Tensor", {"code": "1"}, 1), "cannot be an argument"),
        (call("not an operator"), "is not the name of an operator"),
        (call("result::item", "%tokens", 0), "several results and a fixed number"),
        (call("size::add", "%tokens", 1), "takes sizes and whole numbers"),
        (call("aten::sym_size.int", "@embedding.weight", 0), "takes an input of the graph"),
        (call("aten::sym_size.int", "%tokens", 2), "index out of range"),
        (call("aten::arange", "%tokens"), "argument end is of another type"),
        (call("aten::relu", "%tokens", 1), "takes no such argument"),
        (call("aten::arange", 2**63), "more than 64 bits"),
        (replace_output, "refers to nothing before it"),
        (add_output, "one input and one output"),
        (remove_version, "not of version 1"),
        (name_badly, "is not a valid name"),
    ],
)
def test_invalid_graph_is_refused(change: Callable[[dict[str, Any]], None], reason: str) -> None:
    with pytest.raises(GraphError, match=reason):
        build_model(parse_files(edit(change)))


def forge_size(*calls: tuple[Any, ...]) -> dict[str, bytes]:
    """Return files whose features begin with the number of rows, `%0`, and these calls of `size::*`."""

    def change(table: dict[str, Any]) -> None:
        table["features"]["calls"] = [
            {"operator": name, "arguments": arguments}
            for name, *arguments in (("aten::sym_size.int", "%tokens", 0), *calls)
        ]
        table["features"]["outputs"] = ["%tokens"]

    return edit(change)


@pytest.mark.parametrize(
    "calls",
    [
        [("size::mul", "%0", "%0")],
        [("size::mod", "%0", 64)],
        [("size::floordiv", "%0", 2)],
        [("size::floordiv", "%0", 0)],
        [("size::max", "%0", 2)],
        [("size::min", "%0", 1000)],
        [("size::mul", "%0", 2**40), ("size::mul", "%1", 2)],
    ],
)
def test_size_that_is_no_multiple_of_rows_is_refused(calls: list[tuple[Any, ...]]) -> None:
    with pytest.raises(GraphError, match=r"size::\w+, (whose result|integer division)"):
        build_model(parse_files(forge_size(*calls)))


def test_sizes_that_are_multiples_of_rows_load() -> None:
    calls = [("size::mul", 96, "%0"), ("size::floordiv", "%1", 32), ("size::sub", "%2", 1), ("size::max", "%0", 1)]
    build_model(parse_files(forge_size(*calls, ("size::mod", "%1", 8))))


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"version": 1}', b'{"version": NaN}', b"[" * 100_000])
def test_invalid_json_is_refused(content: bytes) -> None:
    with pytest.raises(GraphError):
        parse_files({**trace("nanogpt").to_files(), "train.json": content})


def test_random_operator_in_evaluation_is_refused() -> None:
    change = call("aten::rand_like", "%tokens")
    with pytest.raises(GraphError, match="draws random numbers"):
        build_model(parse_files(edit(change, "eval.json")))


def test_missing_file_is_named(tmp_path: Path) -> None:
    trace("nanogpt").write(tmp_path)
    (tmp_path / "eval.json").unlink()
    with pytest.raises(GraphError, match=r"eval.json is missing"):
        read_traced(tmp_path)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (Call("aten::scaled_dot_product_attention", ("%0", "%0", "%0", None, 0.1)), True),
        (Call("aten::scaled_dot_product_attention", ("%0", "%0", "%0"), {"dropout_p": 0.1}), True),
        (Call("aten::scaled_dot_product_attention", ("%0", "%0", "%0"), {"is_causal": True}), False),
        (Call("aten::lstm.input", ("%0", [], [], True, 2, 0.1, True, False, True)), True),
        (Call("aten::lstm.input", ("%0", [], [], True, 2, 0.1, False, False, True)), False),
        (Call("aten::gru.input", ("%0", "%1", [], True, 2, 0.0, True, False, True)), False),
    ],
)
def test_is_random_of_attention_and_recurrent_layers_depends_on_dropout(call: Call, expected: bool) -> None:
    assert is_random(call) is expected


def test_parse_files_with_too_many_calls_in_all_graphs_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    files = trace("nanogpt").to_files()
    parsed = parse_files(files)
    graphs = [
        parsed.initialization.graph,
        *(getattr(p, n) for p in (parsed.training, parsed.evaluation) for n in ("features", "logits")),
    ]
    largest = max(len(list(graph.iterate_calls())) for graph in graphs)
    monkeypatch.setattr(schema, "MAX_NODES", largest + 1)
    with pytest.raises(GraphError, match="calls together"):
        parse_files(files)
