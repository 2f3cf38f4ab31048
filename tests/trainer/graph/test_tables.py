"""Embeddings that a graph only looks up and casts are kept in bf16, with the same forward pass."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.graph.model import GraphModel, build_model
from trainer.graph.trace import trace_architecture
from trainer.models import load_architecture
from trainer.training.precision import convert_tables

VOCABULARY, LENGTH = 96, 32


def build(arch: str = "gpt", **fields: Any) -> tuple[GraphModel, Any]:
    """Return a traced model and its recipe, without parameters that are zero at the start."""
    module = load_architecture(arch)
    config = module.Config.sized(2, VOCABULARY, LENGTH)
    config = dataclasses.replace(config, **fields)
    torch.manual_seed(0)
    model = build_model(trace_architecture(module, config))
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return model, module.recipe(config)


def list_bf16(model: GraphModel) -> list[str]:
    return [name for name, parameter in model.named_parameters() if parameter.dtype == torch.bfloat16]


def compute(model: GraphModel, tokens: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(tokens)
    (logits * torch.linspace(-1, 1, logits.numel()).view_as(logits)).sum().backward()
    return logits, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("arch", "fields", "names"),
    [
        ("gpt", {}, ["embedding.weight", "blocks.1.attention.value_embedding.weight"]),
        ("gpt", {"tied_head": True}, ["blocks.1.attention.value_embedding.weight"]),
        ("rwkv5", {}, []),
    ],
)
def test_only_tables_that_are_looked_up_and_cast_are_in_bf16(
    arch: str, fields: dict[str, Any], names: list[str]
) -> None:
    model, recipe = build(arch, **fields)
    assert convert_tables(model, recipe) == len(names)
    assert list_bf16(model) == names


def test_tables_of_other_optimizers_stay_in_fp32() -> None:
    model, recipe = build()
    groups = tuple(
        dataclasses.replace(group, optimizer="adamw8bit") if group.name == "embedding" else group
        for group in recipe.groups
    )
    assert convert_tables(model, dataclasses.replace(recipe, groups=groups)) == 1


def test_forward_pass_is_the_same_and_gradients_are_rounded_once() -> None:
    model, recipe = build()
    with torch.no_grad():
        for parameter in model.parameters():  # no weight is lost in bf16
            parameter.copy_(parameter.bfloat16())
    tokens = torch.randint(0, 8, (64, LENGTH), generator=torch.Generator().manual_seed(1))  # of a few, often
    wanted, gradients = compute(model, tokens)
    model.zero_grad()
    convert_tables(model, recipe)
    found, narrow = compute(model, tokens)
    assert torch.equal(found, wanted)
    assert narrow.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert torch.equal(narrow[name], gradient.to(narrow[name].dtype)), name


def test_converted_model_also_computes_in_fp32() -> None:
    model, recipe = build()
    convert_tables(model, recipe)
    assert model.eval()(torch.zeros(1, LENGTH, dtype=torch.int64)).dtype == torch.float32
