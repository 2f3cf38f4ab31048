"""Memory of operators' arguments: the static check of writes covers all aliases and writes."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.graph.checks import check_graph, check_writes, find_aliased, find_written
from trainer.graph.files import Call, Graph, GraphError, Input
from trainer.graph.operators import (
    COMPOSITES,
    MODEL_PARTS,
    OPERATORS,
    RANDOM_OPERATORS,
    find_operator,
    find_schema,
    iterate_tensors,
)

SAMPLES = (
    torch.eye(2) + 0.5,
    torch.tensor([0.25, 0.5, 0.25]),
    torch.arange(8.0).view(1, 2, 4) / 8,
    torch.arange(16.0).view(1, 2, 2, 4) / 16,
    torch.tensor(0.5),
    torch.zeros(2, 2, dtype=torch.int64),
    torch.ones(2, 2, dtype=torch.bool),
    torch.eye(2, dtype=torch.complex64),
)
MAX_ATTEMPTS, MAX_CALLS = 48, 12  # of each operator and sample
VALUES: dict[str, tuple[Any, ...]] = {
    "int": (1, 0, 2, -1),
    "number": (1, 0),
    "float": (0.5, 0.0),
    "bool": (False, True),
    "str": ("ij->ij", "mean", "constant", "none", "ij"),
    "List[int]": ([0], [1], [1, 1], [2, 2], [0, 1]),
    "Device": ("cpu",),
    "ScalarType": (torch.float32,),
    "MemoryFormat": (torch.contiguous_format,),
}


def list_overloads() -> list[str]:
    """Return the full names of all operators that a graph may call: they return tensors, and take no `out`."""
    found = list(MODEL_PARTS)
    for name in sorted({*OPERATORS, *COMPOSITES, *RANDOM_OPERATORS}):
        base = name.removeprefix("aten::").partition(".")[0]
        for variant in (base, f"{base}_"):
            packet = getattr(torch.ops.aten, variant, None)
            overloads = packet.overloads() if packet and name.startswith("aten::") else []
            for overload in (each for each in overloads if not each.startswith("prim_")):
                full = f"aten::{variant}" + ("" if overload == "default" else f".{overload}")
                schema = find_schema(full)
                returns_tensors = bool(schema.returns) and all(
                    "Tensor" in str(result.type) for result in schema.returns
                )
                if returns_tensors and not any(a.kwarg_only and a.alias_info for a in schema.arguments):
                    found.append(full)
    return list(dict.fromkeys(found))


def choose_values(type_name: str, sample: Tensor) -> tuple[Any, ...]:
    """Return values for an argument of one of torch's types."""
    if type_name.startswith("Optional["):
        return (None, *choose_values(type_name[9:-1], sample))
    if type_name == "Tensor":
        return (sample,)
    if "Tensor" in type_name:
        return ([sample, sample], [sample])
    return (*VALUES.get(type_name, ()), *([list(sample.shape)] if type_name == "List[int]" else []))


def clone(value: Any) -> Any:
    """Return a value whose tensors have memory of their own."""
    if isinstance(value, list):
        return [clone(item) for item in value]
    return value.clone() if isinstance(value, Tensor) else value


def iterate_calls(name: str) -> Iterator[tuple[dict[str, Any], dict[str, Any], Any]]:
    """Yield arguments with which an operator runs, as they were before and after, and its result."""
    function, declared = find_operator(name), find_schema(name).arguments
    for sample in SAMPLES:
        choices = [choose_values(str(argument.real_type), sample) for argument in declared]
        runs = 0
        for values in itertools.islice(itertools.product(*choices), MAX_ATTEMPTS):
            pairs = zip((argument.name for argument in declared), values, strict=True)
            before = {key: value for key, value in pairs if key != "generator"}
            given = {key: clone(value) for key, value in before.items()}
            try:
                with torch.no_grad():
                    result = function(**given)
            except (RuntimeError, TypeError, ValueError, IndexError):
                continue
            yield before, given, result
            runs += 1
            if runs == MAX_CALLS:
                break


def get_memory(value: Any) -> set[int]:
    return {t.untyped_storage().data_ptr() for t in iterate_tensors(value) if t.untyped_storage().nbytes()}


def is_changed(value: Any, before: Any) -> bool:
    pairs = zip(iterate_tensors(value), iterate_tensors(before), strict=True)
    return any(a.shape != b.shape or not bool(((a == b) | (a != a)).all()) for a, b in pairs)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_operators_share_and_change_only_the_memory_of_declared_arguments() -> None:
    ran, undeclared = set(), set()
    for name in list_overloads():
        for before, given, result in iterate_calls(name):
            ran.add(name)
            call = Call(name, (), {key: f"%{key}" if has_tensors(value) else value for key, value in given.items()})
            aliased, written = set(find_aliased(call)), set(find_written(call))
            for key, value in given.items():
                if get_memory(value) & get_memory(result) and f"%{key}" not in aliased:
                    undeclared.add(f"{name} may return {key}")
                if is_changed(value, before[key]) and f"%{key}" not in written:
                    undeclared.add(f"{name} writes to {key}")
    assert sorted(undeclared) == []
    assert len(ran) > 500
    assert {"aten::meshgrid", "aten::type_as", "aten::batch_norm", "aten::unsafe_chunk", "dailytrain::norm"} <= ran


def has_tensors(value: Any) -> bool:
    return any(True for _ in iterate_tensors(value))


def check_calls(*calls: Call) -> None:
    """Check a graph of one input, `%x [rows, 4]`, whose stored tensor is `@w`."""
    check_graph(Graph((Input("x", "float32", ("batch", 4)),), calls, (f"%{len(calls) - 1}",)))


BATCH_NORM = {"training": True, "momentum": 0.1, "eps": 1e-5, "cudnn_enabled": False}
CLEARED_ALIAS = (Call("aten::alias", ("%a",)), Call("aten::zero_", ("%0",)))


@pytest.mark.parametrize(
    "calls",
    [
        [Call("aten::type_as", ("@w", "%x")), Call("aten::zero_", ("%0",))],
        [Call("aten::type_as", (), {"other": "%x", "self": "@w"}), Call("aten::zero_", (), {"self": "%0"})],
        [Call("aten::view_as", (), {"self": "@w", "other": "%x"}), Call("aten::zero_", ("%0",))],
        [Call("aten::reshape", (), {"self": "@w", "shape": [-1]}), Call("aten::zero_", ("%0",))],
        [Call("aten::meshgrid", (["%x", "@w"],)), Call("result::item", ("%0", 1)), Call("aten::zero_", ("%1",))],
        [
            Call("aten::cos", ("%x",)),
            Call("aten::meshgrid", (["%0", "@w"],)),
            Call("result::item", ("%1", 1)),
            Call("aten::zero_", ("%2",)),
        ],
        [Call("aten::unsafe_chunk", ("@w", 2)), Call("result::item", ("%0", 0)), Call("aten::zero_", ("%1",))],
        [Call("aten::unbind.int", ("@w",)), Call("result::item", ("%0", 0)), Call("aten::zero_", ("%1",))],
        [Call("aten::einsum", ({"text": "ij->ji"}, ["@w"])), Call("aten::zero_", ("%0",))],
        [Call("aten::chain_matmul", (["@w"],)), Call("aten::zero_", ("%0",))],
        [Call("aten::conj_physical", ("@w",)), Call("aten::zero_", ("%0",))],
        [Call("aten::dropout", ("@w", 0.0, True)), Call("aten::zero_", ("%0",))],
        [Call("aten::to.dtype", ("@w", {"dtype": "float32"})), Call("aten::zero_", ("%0",))],
        [Call("aten::batch_norm", ("%x", None, None, "@w", "@w", True, 0.1, 1e-5, False))],
        [Call("aten::batch_norm", ("%x", None, None), {"running_mean": "@w", "running_var": "@w", **BATCH_NORM})],
        [Call("aten::instance_norm", ("%x", None, None, "@w", "@w", True, 0.1, 1e-5, False))],
        [Call("aten::add.out", ("%x", 1), {"out": "@w"})],
        [
            Call("aten::cos", ("%x",)),
            Call("region::no_grad", ("%0", "@w"), None, "", Graph((Input("a"), Input("b")), (), ("%b",))),
            Call("result::item", ("%1", 0)),
            Call("aten::zero_", ("%2",)),
        ],
        [Call("region::no_grad", ("%x",), None, "", Graph((Input("a"),), CLEARED_ALIAS, ("%1",)))],
    ],
)
def test_write_to_a_tensor_that_is_not_the_pass_s_own_is_refused(calls: list[Call]) -> None:
    with pytest.raises(GraphError, match=r"writes to|returns something|takes no such argument"):
        check_calls(*calls)


def test_write_to_what_a_pass_computes_is_allowed() -> None:
    check_calls(
        Call("aten::linear", ("%x", "@w")),
        Call("aten::view_as", ("%0", "%x")),
        Call("aten::add_.Tensor", (), {"self": "%1", "other": "@w"}),
        Call("aten::batch_norm", ("%2", None, None, "@w", "@w", False, 0.1, 1e-5, False)),
    )


def test_memory_of_the_check_grows_evenly_with_views_of_stored_tensors() -> None:
    """Each result may share the memory of all stored tensors before it."""

    def measure(count: int) -> int:
        calls = [Call("aten::einsum", ({"text": "i,i"}, ["@c0", "@c0"]))]
        for number in range(1, count):
            calls.append(Call("aten::einsum", ({"text": "i,i"}, [f"@c{number}", f"%{number - 1}"])))
        tracemalloc.start()
        check_writes(Graph((), tuple(calls), ()))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    measure(10)  # declarations of operators are found once
    assert measure(2000) < 6 * measure(500)
