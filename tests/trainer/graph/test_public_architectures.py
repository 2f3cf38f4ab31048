"""Public architectures of different kinds: traced, compared with their modules, trained, counted."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.architectures import PUBLIC_ARCHITECTURES, load_public_architecture
from trainer.accounting.flops import count_flops
from trainer.graph.counting import count_training_cost
from trainer.graph.files import TracedArchitecture
from trainer.graph.model import GraphModel, build_model, build_model_without_data, read_recipe
from trainer.graph.reading import parse_files
from trainer.graph.trace import trace_architecture

V, P = 96, 128  # tokens, and rows of an embedding or head
T, D, W, H = 24, 2, 32, 2  # tokens in a row, depth, width, heads
ROWS = 3
OVERRIDES: dict[str, dict[str, Any]] = {"delta_net": {"chunk": 8}}

pytestmark = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # RMSNorm under autocast
all_architectures = pytest.mark.parametrize("name", PUBLIC_ARCHITECTURES)


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


@all_architectures
def test_graph_of_read_files_trains_like_module_to_the_last_bit(name: str) -> None:
    files = trace(name).to_files()
    again = parse_files(files)
    assert again.to_files() == files
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


@all_architectures
def test_graph_model_sees_no_later_token(name: str) -> None:
    _, model = build_both(name)
    model.eval()
    tokens, changed, cut = sample_tokens(), sample_tokens(), T - 7
    changed[:, cut:] = sample_tokens(seed=1)[:, cut:]
    with torch.no_grad():
        difference = (model(tokens) - model(changed)).abs().amax((0, 2))
    # Fourier transforms mix all positions and cancel the later ones up to rounding.
    assert difference[:cut].max() < (1e-5 if name == "hyena" else 1e-30)
    assert difference[cut:].min() > 1e-3


# --- costs ------------------------------------------------------------------------------------------------------------


def linear(positions: int, inputs: int, outputs: int) -> int:
    """A matrix product forward, and one for each of its two gradients."""
    return 6 * positions * inputs * outputs


def attend(length: int, width: int) -> int:
    """Scores and weighted values of all pairs of positions."""
    return 2 * linear(length, length, width)


def attention(length: int, width: int) -> int:
    """Attention with its projections."""
    return linear(length, width, 3 * width) + attend(length, width) + linear(length, width, width)


def mlp(length: int, width: int) -> int:
    return 2 * linear(length, width, 4 * width)


def block(length: int = T, width: int = W) -> int:
    return attention(length, width) + mlp(length, width)


HEAD = linear(T, W, P)
CHUNK = 8
SIZE, CHUNKS = W // H, T // CHUNK  # width of a head; chunks of a row


def count_delta_net() -> int:
    """In each chunk three products of `[C, C]` matrices, one for the gradient of the solved system. The first state is
    zero and has no gradient; the last one is not computed."""
    inside = 3 * linear(CHUNK, CHUNK, SIZE) * CHUNKS + 2 * CHUNK * CHUNK * 2 * SIZE * CHUNKS
    states = 2 * CHUNK * SIZE * SIZE * (2 * (3 * CHUNKS - 1) + 3 * (CHUNKS - 1))
    projections = linear(T, W, 3 * W) + linear(T, W, H) + linear(T, W, W)
    return D * (projections + H * (inside + states) + mlp(T, W)) + HEAD


def count_mamba() -> int:
    inner, rank, states, kernel = 2 * W, 2, 8, 4
    convolution = linear(T + kernel - 1, inner, kernel)
    select, step = linear(T, inner, rank + 2 * states), linear(T, rank, inner)
    return D * (linear(T, W, 2 * inner) + convolution + select + step + linear(T, inner, W)) + HEAD


def count_hyena() -> int:
    """The filters do not depend on the row; their input has no gradient."""
    inner, hidden, frequencies, kernel, order = 3 * W, 32, 8, 3, 2
    filters = 4 * T * (1 + 2 * frequencies) * hidden + linear(T, hidden, hidden) + linear(T, hidden, order * W)
    convolution = linear(T + kernel - 1, inner, kernel)
    return D * (linear(T, W, inner) + convolution + filters + linear(T, W, W) + mlp(T, W)) + HEAD


PRODUCT_FLOPS: dict[str, Callable[[], int]] = {
    "delta_net": count_delta_net,
    "mamba": count_mamba,
    "lstm": lambda: D * (2 * linear(T, W, 4 * W) - 2 * W * 4 * W) + HEAD,  # the first state has no gradient
    "hyena": count_hyena,
}
"""Matrix products and convolutions of one row, forward and backward, of those that torch's counter may not know."""


@all_architectures
def test_counted_products_equal_the_formula_or_torchs_own_counter(name: str) -> None:
    cost = count_training_cost(build_model_without_data(trace(name)))
    products = cost.per_row.product_flops + cost.per_pass.product_flops
    model, tokens = load_public_architecture(name).Model(build_config(name)), torch.zeros(1, T, dtype=torch.int64)
    assert products == (PRODUCT_FLOPS[name]() if name in PRODUCT_FLOPS else T * count_flops(model, tokens))
    others = cost.per_row.flops + cost.per_pass.flops - products
    assert 0.005 * products < others < 1.5 * products
    assert cost.per_pass.flops >= 0
    assert 0.3 < cost.forward_per_row.product_flops / products < 0.45
