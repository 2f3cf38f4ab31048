"""A graph computes what the Python that it was traced from computes, to the last bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.gpt_models import OPTIONS
from tests.support.traced_models import T, V, build_pair, compute_loss, sample_rows
from trainer.models import ARCHITECTURES, rwkv5

GPT_SIZE = {"width": 32, "heads": 2, "end_of_text": 7}


def check_parity(name: str, **fields: Any) -> None:
    """Compare loss and gradients in fp32, and the logits of evaluation."""
    _, module, graph = build_pair(name, **fields)
    inputs, targets = sample_rows()
    expected, found = (compute_loss(model, inputs, targets) for model in (module, graph))
    assert torch.equal(expected, found)
    expected.backward()
    found.backward()
    for (name_, parameter), copy in zip(module.named_parameters(), graph.parameters(), strict=True):
        assert (parameter.grad is None) == (copy.grad is None), name_
        assert parameter.grad is None or torch.equal(parameter.grad, copy.grad), name_
    with torch.no_grad():
        assert torch.equal(module.eval()(inputs), graph.eval()(inputs))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in ("gpt", "rwkv5", "moe") else pytest.mark.slow) for n in ARCHITECTURES]
)
def test_graph_of_architecture_equals_its_module(name: str) -> None:
    check_parity(name)


@pytest.mark.slow
@pytest.mark.parametrize("option", [name for name in OPTIONS if "other way" not in name and name != "one block"])
def test_graph_of_gpt_option_equals_its_module(option: str) -> None:
    check_parity("gpt", **{**GPT_SIZE, **OPTIONS[option]})


@pytest.mark.slow
@pytest.mark.parametrize("version", rwkv5.VERSIONS)
def test_graph_of_rwkv5_version_equals_its_module(version: float) -> None:
    check_parity("rwkv5", width=64, version=version)


@pytest.mark.parametrize("name", ["gpt", "rwkv5"])
def test_graph_under_autocast_equals_its_module(name: str) -> None:
    _, module, graph = build_pair(name)
    inputs, _ = sample_rows()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected, found = module(inputs), graph(inputs)
        streams = module.features(inputs).dtype, graph.features(inputs).dtype
    assert torch.allclose(expected.float(), found.float(), atol=0.05, rtol=0.05)
    assert name != "gpt" or streams == (torch.bfloat16, torch.bfloat16)


def test_graph_of_short_rows_pads_them_and_longer_rows_are_refused() -> None:
    _, module, graph = build_pair("gpt")
    inputs, _ = sample_rows()
    with torch.no_grad():
        assert torch.allclose(module(inputs[:, :11]), graph(inputs[:, :11]), atol=1e-5)
    assert graph(inputs[:, :11]).shape == (3, 11, V)
    with pytest.raises(ValueError, match=f"a row of {T + 1} tokens is longer than the {T} that were traced"):
        graph.features(torch.zeros(1, T + 1, dtype=torch.int64))


def test_state_dict_of_graph_fits_its_module_and_shared_weights_stay_shared() -> None:
    _, module, graph = build_pair("gpt", tied_head=True)
    module.load_state_dict(graph.state_dict())
    assert sum(p.numel() for p in graph.parameters()) == sum(p.numel() for p in module.parameters())
    assert list(graph.state_dict()) == list(module.state_dict())
