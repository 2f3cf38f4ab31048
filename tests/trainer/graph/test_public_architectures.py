"""Public architectures of different kinds: traced, compared with their modules, trained."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.architectures import COMPACT_ARCHITECTURES, PUBLIC_ARCHITECTURES, load_public_architecture
from tests.support.paths import REPOSITORY
from trainer.graph.files import TracedArchitecture
from trainer.graph.model import GraphModel, build_model, read_recipe
from trainer.graph.reading import parse_files
from trainer.graph.summary import describe_traced
from trainer.graph.trace import trace_architecture

V, T, D, W, ROWS = 96, 24, 2, 32, 3  # vocabulary, tokens in a row, depth, width, rows
OVERRIDES: dict[str, dict[str, Any]] = {"delta_net": {"chunk": 8}}

pytestmark = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # RMSNorm under autocast
all_architectures = pytest.mark.parametrize("name", PUBLIC_ARCHITECTURES)
quick_architecture = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("mamba", "alibi") else pytest.mark.slow)
        for name in (*PUBLIC_ARCHITECTURES, *COMPACT_ARCHITECTURES)
    ],
)


def build_config(name: str) -> Any:
    sized = load_public_architecture(name).Config.sized(D, V, T)
    return dataclasses.replace(sized, width=W, **OVERRIDES.get(name, {}))  # type: ignore[type-var]


@functools.cache
def trace(name: str) -> TracedArchitecture:
    """Trace once for all tests."""
    return trace_architecture(load_public_architecture(name), build_config(name))


def build_both(name: str) -> tuple[nn.Module, GraphModel]:
    """Return the module and the graph model of one seed."""
    torch.manual_seed(3)
    module = load_public_architecture(name).Model(build_config(name))
    torch.manual_seed(3)
    return module, build_model(parse_files(trace(name).to_files()))


def sample_tokens(seed: int = 0) -> Tensor:
    return torch.randint(0, V, (ROWS, T), generator=torch.Generator().manual_seed(seed))


def compute_gradients(model: Any) -> tuple[Tensor, dict[str, Tensor | None]]:
    """Return the loss on random tokens and its gradients, from one random state."""
    torch.manual_seed(5)
    loss = F.cross_entropy(
        model.logits(model.features(sample_tokens())).flatten(0, 1).float(), sample_tokens().flatten()
    )
    loss.backward()
    return loss, {name: parameter.grad for name, parameter in model.named_parameters()}


def assert_equal_training(module: nn.Module, graph: GraphModel) -> None:
    loss, gradients = compute_gradients(module)
    graph_loss, graph_gradients = compute_gradients(graph)
    assert torch.equal(loss, graph_loss)
    assert list(gradients) == list(graph_gradients)
    for name, gradient in gradients.items():
        other = graph_gradients[name]
        assert (gradient is None) == (other is None), name
        assert gradient is None or torch.equal(gradient, other), name


@quick_architecture
def test_graph_of_read_files_trains_like_module_to_the_last_bit(name: str) -> None:
    files = trace(name).to_files()
    again = parse_files(files)
    assert again.to_files() == files
    assert describe_traced(again)["product_flops_per_token"] > 0
    assert read_recipe(again) == load_public_architecture(name).recipe(build_config(name))
    with torch.autocast("cpu", torch.bfloat16):
        assert_equal_training(*build_both(name))
    module, graph = build_both(name)
    assert_equal_training(module, graph)
    module.eval()
    graph.eval()
    with torch.no_grad():
        assert torch.equal(module(sample_tokens()), graph(sample_tokens()))
        # A graph pads short rows, so sums may have another order.
        short = sample_tokens()[:, : T - 5]
        torch.testing.assert_close(graph(short), module(short), rtol=1e-4, atol=1e-4)


@quick_architecture
def test_graph_model_sees_no_later_token(name: str) -> None:
    _, model = build_both(name)
    model.eval()
    tokens, changed, cut = sample_tokens(), sample_tokens(), T - 7
    changed[:, cut:] = sample_tokens(seed=1)[:, cut:]
    with torch.no_grad():
        difference = (model(tokens) - model(changed)).abs().amax((0, 2))
    # Fourier transforms mix all positions and cancel the later ones up to rounding.
    assert difference[:cut].max() < (1e-5 if name in ("hyena", "long_convolution") else 1e-30)
    assert difference[cut:].min() > 1e-3


# --- the figures of docs/reference/graph-models.md --------------------------------------------------------------------

ROW = re.compile(r"^\| `(\w+)` \| [^|]+ \| (\d+) \| ([^|]+) \|", re.MULTILINE)
PAGE = (REPOSITORY / "docs/reference/graph-models.md").read_text("utf-8")
FIGURES = {name: figures for name, *figures in ROW.findall(PAGE)}


def test_page_has_a_row_for_each_public_architecture() -> None:
    assert set(FIGURES) == set(PUBLIC_ARCHITECTURES)
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == {*PUBLIC_ARCHITECTURES, *COMPACT_ARCHITECTURES}


@pytest.mark.slow
@all_architectures
def test_page_has_calls_and_flops_of_the_architecture(name: str) -> None:
    module = load_public_architecture(name)
    config = dataclasses.replace(module.Config.sized(4, 512, 256), width=256)  # type: ignore[type-var]
    found = describe_traced(trace_architecture(module, config))
    calls = sum(sum(found["calls"][part].values()) for part in ("features", "logits"))
    products = found["product_flops_per_token"] / 1e6
    other = found["flops_per_token"] / 1e6 - products
    assert FIGURES[name] == [str(calls), f"{products:.1f} + {other:.2f}"]
