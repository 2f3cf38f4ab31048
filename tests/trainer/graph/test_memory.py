"""Operators' memory and cost: the check of writes covers all aliases and writes, and every operator is counted."""

from __future__ import annotations

import functools
import itertools
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.graph.checks import check_graph, check_writes, find_aliased, find_written
from trainer.graph.files import Call, Graph, GraphError, Input
from trainer.graph.initialization import CostMeter
from trainer.graph.operators import (
    COMPOSITES,
    MODEL_PARTS,
    OPERATORS,
    RANDOM_OPERATORS,
    find_operator,
    find_schema,
    is_allowed,
    iterate_tensors,
    strip_variant,
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


# --- every operator that a graph may have is counted, forward and backward --------------------------------------------


CALLS: dict[str, Callable[[Callable[..., Tensor]], Any]] = {
    "dailytrain::rotate": lambda x: find_operator("dailytrain::rotate")(x(1, 2, 3, 4), x(2, 1, 4), x(2, 1, 2)),
    "dailytrain::recurrence": lambda x: find_operator("dailytrain::recurrence")(
        *(x(1, 2, 3, 4) for _ in range(3)), x(2, 4), x(2, 4), x(1, 2, 4, 4)
    ),
    "aten::addbmm": lambda x: torch.addbmm(x(3, 5), x(2, 3, 4), x(2, 4, 5)),
    "aten::addmv": lambda x: torch.addmv(x(3), x(3, 4), x(4)),
    "aten::avg_pool1d": lambda x: F.avg_pool1d(x(2, 3, 8), 2),
    "aten::baddbmm": lambda x: torch.baddbmm(x(2, 3, 5), x(2, 3, 4), x(2, 4, 5)),
    "aten::bilinear": lambda x: F.bilinear(x(4, 3), x(4, 5), x(2, 3, 5), x(2)),
    "aten::bmm": lambda x: torch.bmm(x(2, 3, 4), x(2, 4, 5)),
    "aten::col2im": lambda x: F.fold(x(1, 2, 3), (1, 4), (1, 2)),
    "aten::conv1d": lambda x: F.conv1d(x(2, 3, 8), x(4, 3, 2), x(4)),
    "aten::conv2d": lambda x: F.conv2d(x(2, 3, 8, 8), x(4, 3, 2, 2), x(4)),
    "aten::conv3d": lambda x: F.conv3d(x(2, 3, 4, 4, 4), x(4, 3, 2, 2, 2), x(4)),
    "aten::conv_transpose1d": lambda x: F.conv_transpose1d(x(2, 3, 8), x(3, 4, 2), x(4)),
    "aten::conv_transpose2d": lambda x: F.conv_transpose2d(x(2, 3, 8, 8), x(3, 4, 2, 2), x(4)),
    "aten::diagonal_scatter": lambda x: torch.diagonal_scatter(x(3, 3), x(3)),
    "aten::gru": lambda x: torch.gru(x(3, 2, 4), x(1, 2, 5), [x(15, 4), x(15, 5)], False, 1, 0.0, True, False, False),
    "aten::im2col": lambda x: F.unfold(x(1, 2, 4, 4), 2),
    "aten::index_add": lambda x: torch.index_add(x(3, 4), 0, INDICES, x(2, 4)),
    "aten::index_copy": lambda x: torch.index_copy(x(3, 4), 0, INDICES, x(2, 4)),
    "aten::index_fill": lambda x: torch.index_fill(x(3, 4), 0, INDICES, 1.0),
    "aten::index_select": lambda x: torch.index_select(x(3, 4), 0, INDICES),
    "aten::layer_norm": lambda x: F.layer_norm(x(2, 4), (4,), x(4), x(4)),
    "aten::linalg_eigh": lambda x: torch.linalg.eigh(x(4, 4)),
    "aten::linalg_eigvalsh": lambda x: torch.linalg.eigvalsh(x(4, 4)),
    "aten::linalg_qr": lambda x: torch.linalg.qr(x(4, 3)),
    "aten::lstm": lambda x: torch.lstm(
        x(3, 2, 4), (x(1, 2, 5), x(1, 2, 5)), [x(20, 4), x(20, 5)], False, 1, 0.0, True, False, False
    ),
    "aten::max_pool1d": lambda x: F.max_pool1d(x(2, 3, 8), 2),
    "aten::mv": lambda x: torch.mv(x(3, 4), x(4)),
    "aten::nll_loss": lambda x: F.nll_loss(x(2, 4), INDICES),
    "aten::rnn_relu": lambda x: torch.rnn_relu(*RECURRENT(x)),
    "aten::rnn_tanh": lambda x: torch.rnn_tanh(*RECURRENT(x)),
    "aten::select_scatter": lambda x: torch.select_scatter(x(3, 4), x(4), 0, 1),
}
"""Calls of operators that the samples do not fit."""
RECURRENT = lambda x: (x(3, 2, 4), x(1, 2, 5), [x(5, 4), x(5, 5)], False, 1, 0.0, True, False, False)  # noqa: E731
INDICES = torch.zeros(2, dtype=torch.int64, device="meta")
WITHOUT_COUNT = {"aten::where": "as many results as conditions hold, so torch has none without data"}


def to_meta(value: Any) -> Any:
    """Return an argument without data; tensors of numbers have gradients."""
    if isinstance(value, list):
        return [to_meta(item) for item in value]
    if isinstance(value, Tensor):
        meta = value.to("meta")
        return meta.requires_grad_().clone() if meta.is_floating_point() or meta.is_complex() else meta
    return "meta" if value == "cpu" else value


def count_backward(compute: Callable[[], Any]) -> None:
    with CostMeter():
        results = [result for result in iterate_tensors(compute()) if result.requires_grad]
        if results:
            torch.autograd.backward(results, [torch.empty_like(result) for result in results])


def explain_uncounted(name: str) -> str | None:
    """Return why an operator cannot be counted with samples with which it runs; None if it can."""
    problem: str | None = "no sample runs"
    for before, _, _ in itertools.islice(iterate_calls(name), 3):
        arguments = {key: to_meta(value) for key, value in before.items()}
        try:
            count_backward(functools.partial(find_operator(name), **arguments))
            return None
        except (RuntimeError, GraphError, TypeError) as error:
            problem = str(error).splitlines()[0]
            if "is not implemented" in problem:  # torch has no derivative, so a graph that asks for it does not load
                return None
    return problem


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_listed_operator_is_counted_forward_and_backward() -> None:
    found: dict[str, list[str | None]] = {}
    for overload in list_overloads():
        name = strip_variant(overload)
        if is_allowed(overload) and overload not in WITHOUT_COUNT:
            found.setdefault(name, []).append("a call of its own" if name in CALLS else explain_uncounted(overload))
    for name, call in CALLS.items():
        count_backward(functools.partial(call, lambda *shape: to_meta(torch.ones(shape))))
        found[name] = [None]
    unknown = {name: r for name, reasons in found.items() for r in reasons if r and "cost is unknown" in r}
    assert unknown == {}
    assert {name: reasons for name, reasons in found.items() if None not in reasons} == {}
