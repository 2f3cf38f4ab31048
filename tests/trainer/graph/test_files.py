"""The four files: written files are read back, and invalid ones are refused with a reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks.cheats import forged_files
from tests.support.traced_models import edit_files, trace
from trainer.graph import reading
from trainer.graph.build import build_function
from trainer.graph.checks import is_random
from trainer.graph.counting import count_training_cost
from trainer.graph.files import Call, Graph, GraphError
from trainer.graph.model import build_model, build_model_without_data, read_recipe
from trainer.graph.reading import parse_files


def test_hash_changes_with_any_file() -> None:
    def change(table: dict[str, Any]) -> None:
        table["recipe"]["groups"][0]["learning_rate"] *= 2

    assert parse_files(edit_files(change, "recipe.json")).compute_hash() != trace("nanogpt").compute_hash()


@pytest.mark.parametrize(
    "change",
    [
        lambda recipe: recipe["schedule"].update(shape="cosin"),
        lambda recipe: recipe["groups"][0].update(optimizer="sgd"),
    ],
)
def test_read_recipe_with_unknown_choice_is_refused(change: Callable[[dict[str, Any]], None]) -> None:
    traced = parse_files(edit_files(lambda table: change(table["recipe"]), "recipe.json"))
    with pytest.raises(GraphError, match="is not one of"):
        read_recipe(traced)


def call(operator: str, *arguments: Any, **keywords: Any) -> Callable[[dict[str, Any]], None]:
    """A change that puts a call in front of the others of the features."""

    def change(table: dict[str, Any]) -> None:
        entry = {"operator": operator, "arguments": list(arguments), "keywords": keywords}
        table["features"]["calls"][0] = entry

    return change


def call_region(inputs: list[str], *arguments: Any, **keywords: Any) -> Callable[[dict[str, Any]], None]:
    """A change that puts a region with these inputs in front of the other calls of the features."""

    def change(table: dict[str, Any]) -> None:
        call("region::no_grad", *arguments, **keywords)(table)
        graph = {"inputs": [{"name": name} for name in inputs], "calls": [], "outputs": []}
        table["features"]["calls"][0]["graph"] = graph

    return change


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
        (call("aten::cos", json.loads("[" * 250 + "]" * 250)), "nested more than 3 deep"),
        (call("result::item", "%tokens", 0), "several results and a fixed number"),
        (call("size::add", "%tokens", 1), "takes sizes and whole numbers"),
        (call("aten::sym_size.int", "@embedding.weight", 0), "takes an input of the graph"),
        (call("aten::sym_size.int", "%tokens", 2), "index out of range"),
        (call("aten::arange", "%tokens"), "argument end is of another type"),
        (call("aten::relu", "%tokens", 1), "takes no such argument"),
        (call("aten::arange", 2**63), "more than 64 bits"),
        (lambda table: table["features"].update(outputs=["%99999"]), "refers to nothing before it"),
        (lambda table: table["features"]["outputs"].append("%0"), "one input and one output"),
        (lambda table: table.update(version=99), "not of version 1"),
        (lambda table: table["features"]["calls"][0].update(module="<script>"), "is not a valid name"),
        (call("aten::cos", "@unknown"), "reads unknown, which the initialization does not compute"),
        (call("aten::cumsum", "@embedding.weight", 0, dtype=1), "argument dtype is of another type"),
        (call("aten::cumsum", "@embedding.weight", dim=0, self="%tokens"), "takes no such argument"),
        (call("aten::cumsum", "@embedding.weight"), "also takes dim"),
        (call("aten::to.prim_Device", "@embedding.weight", 0), "has no operator"),
        (call("aten::sort.int", [3, 1]), "returns something other than tensors"),
        (call("size::add", 1), "also takes right"),
        (call("size::add", 1, right=2), "takes no such argument"),
        (call("size::neg", 1, 2), "takes no such argument"),
        (call("result::item", "%tokens", 0, 1), "takes no such argument"),
        (call("dailytrain::norm", "@embedding.weight"), "also takes gain"),
        (call("dailytrain::norm", "@embedding.weight", None, 1), "takes no such argument"),
        (call("dailytrain::softcap", "@embedding.weight", cap="@embedding.weight"), "argument cap is of another type"),
        (call_region(["a", "a"], "%tokens", "%tokens"), "names that differ"),
        (call_region(["0"], "%tokens"), "are no numbers"),
        (call_region(["a"], ["%tokens"]), "takes results and numbers"),
        (call_region(["a"], "%tokens", b=1), "takes results and numbers"),
    ],
)
def test_invalid_graph_is_refused(change: Callable[[dict[str, Any]], None], reason: str) -> None:
    with pytest.raises(GraphError, match=reason):
        build_model(parse_files(edit_files(change)))


def forge_size(*calls: tuple[Any, ...]) -> dict[str, bytes]:
    """Return files whose features begin with the number of rows, `%0`, and these calls of `size::*`."""

    def change(table: dict[str, Any]) -> None:
        table["features"]["calls"] = [
            {"operator": name, "arguments": arguments}
            for name, *arguments in (("aten::sym_size.int", "%tokens", 0), *calls)
        ]
        table["features"]["outputs"] = ["%tokens"]

    return edit_files(change)


@pytest.mark.parametrize(
    "calls",
    [
        [("size::mul", "%0", "%0")],
        [("size::mod", "%0", 64)],
        [("size::floordiv", "%0", 2)],
        [("size::floordiv", "%0", 0)],
        [("size::max", "%0", 2)],
        [("size::neg", "%0")],
        [("size::sub", 1021, "%0")],
        [("size::min", "%0", 1000)],
        [("size::mul", "%0", 2**40), ("size::mul", "%1", 2)],
    ],
)
def test_size_that_is_no_multiple_of_rows_is_refused(calls: list[tuple[Any, ...]]) -> None:
    with pytest.raises(GraphError, match=r"size::\w+, (whose result|integer division)"):
        build_model(parse_files(forge_size(*calls)))


@pytest.mark.parametrize(
    "call",
    [
        ("aten::slice.Tensor", "%tokens", 0, "%0", 9),
        ("aten::arange.start_step", "%0", 99, 1),
        ("aten::arange.start_step", 0, 99, "%0"),
        ("aten::unfold", "%tokens", 1, "%0", 1),
        ("aten::diagonal", "%tokens", "%0"),
    ],
)
def test_argument_that_shrinks_the_result_cannot_depend_on_rows(call: tuple[Any, ...]) -> None:
    with pytest.raises(GraphError, match="cannot depend on rows and positions"):
        build_model(parse_files(forge_size(call)))


@pytest.mark.parametrize("change", [forged_files.size_that_falls, forged_files.size_by_difference])
def test_sizes_of_logits_that_fall_with_positions_are_refused(change: Callable[[forged_files.Append], str]) -> None:
    with pytest.raises(GraphError, match=r"falls when rows or positions grow|cannot depend on rows and positions"):
        build_model(parse_files(forged_files.forge(change, "logits")(trace("nanogpt").to_files())))


def test_sizes_that_are_multiples_of_rows_load() -> None:
    calls = [("size::mul", 96, "%0"), ("size::floordiv", "%1", 32), ("size::sub", "%2", 1), ("size::max", "%0", 1)]
    build_model(parse_files(forge_size(*calls, ("size::mod", "%1", 8))))


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"version": 1}', b'{"version": NaN}', b"[" * 100_000])
def test_invalid_json_is_refused(content: bytes) -> None:
    with pytest.raises(GraphError):
        parse_files({**trace("nanogpt").to_files(), "train.json": content})


def test_factory_without_a_device_runs_on_the_device_of_the_run() -> None:
    function = build_function(Graph((), (Call("aten::arange", (4,)),), ("%0",)))
    assert function.run(torch.device("meta"), (), {})[0].device.type == "meta"


def test_initialization_that_cannot_be_computed_is_refused() -> None:
    def make_negative_size(table: dict[str, Any]) -> None:
        table["graph"]["calls"][0] = {"operator": "aten::zeros", "arguments": [[-4]]}

    with pytest.raises(GraphError, match=r"the initialization cannot be computed: .*negative"):
        build_model(parse_files(edit_files(make_negative_size, "init.json")))


@pytest.mark.parametrize("part", ["features", "logits"])
def test_graph_that_returns_another_shape_is_refused(part: str) -> None:
    def squeeze_result(table: dict[str, Any]) -> None:
        calls = table[part]["calls"]
        calls.append({"operator": "aten::sum.dim_IntList", "arguments": [table[part]["outputs"][0], [-1], True]})
        table[part]["outputs"] = [f"%{len(calls) - 1}"]

    with pytest.raises(GraphError, match=rf"{part} returns \[2, \d+, 1\] instead of"):
        count_training_cost(build_model_without_data(parse_files(edit_files(squeeze_result))))


def test_vocabulary_of_another_size_is_refused() -> None:
    def enlarge(table: dict[str, Any]) -> None:
        table["vocabulary_size"] = table["model"]["vocabulary_size"] = 10**6

    with pytest.raises(GraphError, match=r"logits returns \[2, 2, 96\] instead of \[2, 2, 1000000\]"):
        count_training_cost(build_model_without_data(parse_files(edit_files(enlarge, "recipe.json"))))


def test_random_operator_in_evaluation_is_refused() -> None:
    change = call("aten::rand_like", "%tokens")
    with pytest.raises(GraphError, match="draws random numbers"):
        build_model(parse_files(edit_files(change, "eval.json")))


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
    graphs = [parsed.initialization.graph, *parsed.list_graphs()]
    monkeypatch.setattr(reading, "MAX_NODES", max(len(list(graph.iterate_calls())) for graph in graphs) + 1)
    with pytest.raises(GraphError, match="calls together"):
        parse_files(files)


def set_tensor(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda table: table["tensors"][0].update(fields)


def add_constant(name: str, shape: list[int], data: str = "") -> Callable[[dict[str, Any]], None]:
    return lambda table: table["constants"].update({name: {"dtype": "float32", "shape": shape, "data": data}})


@pytest.mark.parametrize(
    "change",
    [
        *(set_tensor(other_names=[name]) for name in ("training", "traced_length", "_parameters", "_modules")),
        *(set_tensor(other_names=[name]) for name in ("a.forward", "a.b.training", "embedding.weight.a")),
        *(add_constant(name, [0]) for name in ("a.b", "features", "embedding")),
        *(add_constant("fixed", shape) for shape in ([2**70, 0], [2**40, 2**40])),
        *(add_constant("fixed", [2], data) for data in ("AA*AAAAAAAAA=", "AAAAA", "\u00e4AAA")),
        set_tensor(dtype="int64"),
        *(set_tensor(shape=shape) for shape in ([2**70, 4], [2**62, 4], [2**40, 2**40])),
    ],
)
def test_stored_tensor_that_no_module_can_have_is_refused(change: Callable[[dict[str, Any]], None]) -> None:
    with pytest.raises(GraphError):
        build_model_without_data(parse_files(edit_files(change, "init.json")))


@pytest.mark.parametrize("kind", ["parameter", "buffer", "non_persistent_buffer"])
def test_parse_files_with_saved_complex128_names_the_tensor(kind: str) -> None:
    files = edit_files(set_tensor(dtype="complex128", kind=kind), "init.json")
    if kind == "non_persistent_buffer":
        parse_files(files)
        return
    reason = rf"the {kind} embedding\.weight has the type complex128, which a checkpoint cannot hold: convert it to"
    with pytest.raises(GraphError, match=reason):
        parse_files(files)


@pytest.mark.parametrize("size", ["x", -5, 0, True, 1.5, 2**70, None])
@pytest.mark.parametrize("name", ["vocabulary_size", "sequence_length"])
def test_size_of_recipe_that_is_no_positive_number_is_refused(name: str, size: Any) -> None:
    def change(table: dict[str, Any]) -> None:
        table[name] = table["model"][name] = size

    with pytest.raises(GraphError, match=f"as {name}"):
        parse_files(edit_files(change, "recipe.json"))


@pytest.mark.parametrize(("file", "number"), [("recipe.json", "0.9"), ("init.json", "0.0")])
def test_number_beyond_64_bits_is_refused(file: str, number: str) -> None:
    files = trace("nanogpt").to_files()
    changed = files[file].replace(number.encode(), b"1e999", 1)
    assert changed != files[file]
    with pytest.raises(GraphError, match="is larger than any number"):
        parse_files({**files, file: changed})
