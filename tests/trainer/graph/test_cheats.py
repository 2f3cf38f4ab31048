"""Cheats against graphs: each does not trace, or has no effect on the graph, or is charged for.

That later tokens gain nothing is in `tests/trainer/scoring/test_graph_scorer.py`.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.graph.counting import count_training_cost
from trainer.graph.export import TraceError
from trainer.graph.model import build_model, build_model_without_data
from trainer.graph.schema import GraphError, TracedArchitecture, parse_files
from trainer.graph.trace import trace_architecture

V, T = 64, 16
CHEATS = Path(__file__).parent / "cheats"


@pytest.fixture(scope="module", autouse=True)
def cheats_on_path() -> object:
    sys.path.insert(0, str(CHEATS))
    yield
    sys.path.remove(str(CHEATS))


def trace(module: ModuleType | SimpleNamespace) -> TracedArchitecture:
    config = module.Config(V, T)
    return parse_files(trace_architecture(module, config).to_files())  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def honest() -> TracedArchitecture:
    return trace(importlib.import_module("honest"))


WITHOUT_EFFECT = {
    "climbs_the_stack": "it walks to the frames of the loop",
    "looks_for_the_loop": "it searches all objects",
    "forks": "a helper trains on after the budget",
    "writes_metrics": "it writes files",
    "tries_the_network": "it opens a connection",
    "starts_a_program": "it starts a program",
    "reads_the_parents_memory": "it reads another process",
    "stops_the_clock": "it replaces time.perf_counter",
    "knows_the_length": "it overrides forward, which nothing calls",
    "knows_the_order": "it counts calls",
    "knows_the_shape": "it looks at the shape of a request",
    "laced_with_nan": "it overrides forward, which nothing calls",
    "peeks": "it overrides forward, which nothing calls",
    "remembers": "it overrides forward, which nothing calls",
    "unnormalised": "it overrides forward, which nothing calls",
}


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_side_effect_of_python_is_not_in_the_graph(
    name: str, honest: TracedArchitecture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import time

    for clock in ("perf_counter", "monotonic", "time", "process_time"):
        monkeypatch.setattr(time, clock, getattr(time, clock))  # what a cheat changes is put back
    monkeypatch.chdir(tmp_path)
    try:
        found = trace(importlib.import_module(name))
    except (TraceError, OSError):
        return  # in the tracing box it fails; here it may
    assert found.training == honest.training
    assert found.evaluation == honest.evaluation


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("name", ["hides_in_a_kernel", "hides_in_numpy", "hides_in_machine_code", "hides_in_a_thread"])
def test_work_outside_of_torch_does_not_trace(name: str) -> None:
    with pytest.raises(TraceError):
        trace(importlib.import_module(name))


def vary(**methods: object) -> SimpleNamespace:
    """Return the honest architecture with other methods."""
    base = importlib.import_module("honest")
    return SimpleNamespace(Config=base.Config, Model=type("Model", (base.Model,), methods), recipe=base.recipe)


def call_unlisted(self: nn.Module, tokens: Tensor) -> Tensor:
    return torch.special.bessel_j0(self.embedding(tokens))


def keep_state(self: nn.Module, tokens: Tensor) -> Tensor:
    x = self.embedding(tokens)
    self.seen.add_(1)
    return x + self.seen


def carry_text(self: nn.Module, tokens: Tensor) -> Tensor:
    return self.embedding(tokens) + torch.tensor(list(range(40_000)))[:16]


def decide_by_value(self: nn.Module, tokens: Tensor) -> Tensor:
    x = self.embedding(tokens)
    return x * 2 if x.sum() > 0 else x


def select_by_value(self: nn.Module, tokens: Tensor) -> Tensor:
    x = self.embedding(tokens)
    return x + x[x > 0].sum()


def train_first(self: nn.Module, config: object) -> None:
    importlib.import_module("honest").Model.__init__(self, config)
    optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
    loss = self.logits(self.features(torch.zeros(1, T, dtype=torch.int64))).square().mean()
    loss.backward()
    optimizer.step()


def add_seen(self: nn.Module, config: object) -> None:
    importlib.import_module("honest").Model.__init__(self, config)
    self.register_buffer("seen", torch.zeros(16))


def draw_own_numbers(self: nn.Module, config: object) -> None:
    importlib.import_module("honest").Model.__init__(self, config)
    with torch.no_grad():
        self.mix.weight.copy_(torch.randn(16, 16, generator=torch.Generator().manual_seed(7)))


REFUSED = {
    "an operator that is not in the list": ({"features": call_unlisted}, "special_bessel_j0, which is not in the list"),
    "a state that is written": ({"features": keep_state, "__init__": add_seen}, "keeps no state"),
    "held-out text as a constant": ({"features": carry_text}, "bytes of constant tensors"),
    "a branch on a value": ({"features": decide_by_value}, "a number is read from a tensor"),
    "a shape that depends on values": ({"features": select_by_value}, "shape of a result depends on values"),
    "training in the constructor": ({"__init__": train_first}, None),
    "a seed of its own": ({"__init__": draw_own_numbers}, "random generator of its own"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_cheat_does_not_trace(name: str) -> None:
    methods, reason = REFUSED[name]
    with pytest.raises(GraphError, match=reason):
        trace(vary(**methods))


def test_memory_of_other_rows_reads_as_zeros() -> None:
    def read_zeros(self: nn.Module, tokens: Tensor) -> Tensor:
        return self.embedding(tokens) + torch.zeros(tokens.size(0), T, 16)

    # The trace refuses `torch.empty`, so the files are changed by hand.
    files = trace(vary(features=read_zeros)).to_files()
    changed = {name: data.replace(b'"aten::zeros"', b'"aten::empty.memory_format"') for name, data in files.items()}
    assert changed != files
    torch.manual_seed(0)
    model = build_model(parse_files(changed)).eval()
    torch.full((4, T, 16), 1e9)
    tokens = torch.zeros(4, T, dtype=torch.int64)
    assert torch.equal(model.features(tokens), model.get_parameter("embedding.weight")[tokens])


def test_model_that_is_shallow_while_counted_is_charged_for_what_it_trains() -> None:
    def compute_more_with_gradients(self: nn.Module, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for _ in range(20 if self.training else 1):
            x = torch.tanh(self.mix(x))
        return x

    deep = count_training_cost(build_model_without_data(trace(vary(features=compute_more_with_gradients))))
    per_matrix = 3 * 2 * T * 16 * 16
    head = 3 * 2 * T * 16 * V
    assert deep.per_row.product_flops == 20 * per_matrix + head


@pytest.mark.parametrize(
    "work",
    [
        lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=1), n=T, dim=1),
        lambda x: F.conv1d(x.transpose(1, 2), torch.ones(16, 16, 3), padding=1).transpose(1, 2),
        lambda x: x.sort(-1).values,
        lambda x: torch.cdist(x, x) @ x,
        lambda x: x.cumsum(1).exp().log(),
        lambda x: torch.einsum("btd,bsd->bts", x, x) @ x,
    ],
    ids=["fourier", "convolution", "sort", "distances", "scan", "einsum"],
)
def test_no_operator_is_free(work: object, honest: TracedArchitecture) -> None:
    base = importlib.import_module("honest").Model

    def features(self: nn.Module, tokens: Tensor) -> Tensor:
        x = base.features(self, tokens)
        for _ in range(8):
            x = work(x)  # type: ignore[operator]
        return x

    plain = count_training_cost(build_model_without_data(honest)).per_row.flops
    assert (
        count_training_cost(build_model_without_data(trace(vary(features=features)))).per_row.flops > plain + 8 * 16 * T
    )


def test_random_numbers_in_evaluation_are_refused() -> None:
    def always_random(self: nn.Module, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        return x + torch.rand_like(x)

    with pytest.raises(GraphError, match="draws random numbers"):
        build_model(trace(vary(features=always_random)))


def test_overridden_train_has_no_effect(honest: TracedArchitecture) -> None:
    def train(self: nn.Module, mode: bool = True) -> nn.Module:
        os.environ["DAILYTRAIN_CHEAT"] = "1"
        return nn.Module.train(self, mode)

    assert trace(vary(train=train)).training == honest.training
    os.environ.pop("DAILYTRAIN_CHEAT", None)
