"""Every operator that a graph may have is counted, forward and backward."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.trainer.graph.test_memory import iterate_calls, list_overloads
from trainer.graph.files import GraphError
from trainer.graph.initialization import CostMeter
from trainer.graph.operators import find_operator, is_allowed, iterate_tensors, strip_variant

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
"""Calls of operators that the samples of `test_memory` do not fit."""
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
