"""Traced architectures of a few thousand parameters, and their modules with the same initial values."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.graph.files import TracedArchitecture
from trainer.graph.model import GraphModel, build_model
from trainer.graph.reading import parse_files
from trainer.graph.trace import trace_architecture
from trainer.models import load_architecture
from trainer.models.base import LanguageModel
from trainer.ops.devices import get_row_gradients
from trainer.training.objective import Objective

V, T = 96, 32
DEPTH = {"litgpt": 1}  # of the others: 2


class TracedModel(NamedTuple):
    traced: TracedArchitecture
    module: LanguageModel
    graph: GraphModel


@lru_cache
def trace(name: str, **fields: Any) -> TracedArchitecture:
    """Trace an architecture and read its files back, as a site does."""
    module = load_architecture(name)
    return parse_files(trace_architecture(module, build_config(name, **fields)).to_files())


def build_config(name: str, **fields: Any) -> Any:
    return dataclasses.replace(load_architecture(name).Config.sized(DEPTH.get(name, 2), V, T), **fields)  # type: ignore[type-var]


def edit_files(
    change: Callable[[dict[str, Any]], None], file: str = "train.json", name: str = "nanogpt", **fields: Any
) -> dict[str, bytes]:
    """Return the files of a traced architecture with the table of one of them changed."""
    files = trace(name, **fields).to_files()
    table = json.loads(files[file])
    change(table)
    return {**files, file: json.dumps(table).encode()}


def build_pair(name: str, seed: int = 3, **fields: Any) -> TracedModel:
    """Return module and graph model, both initialized from the seed and then moved away from zeros."""
    traced = trace(name, **fields)
    torch.manual_seed(seed)
    module = load_architecture(name).Model(build_config(name, **fields))
    torch.manual_seed(seed)
    graph = build_model(traced)
    for (own, parameter), (other, copy) in zip(module.named_parameters(), graph.named_parameters(), strict=True):
        assert own == other
        assert torch.equal(parameter, copy)
    with torch.no_grad():
        for parameter, copy in zip(module.parameters(), graph.parameters(), strict=True):
            noise = 0.1 * torch.randn_like(parameter)
            parameter.add_(noise)
            copy.add_(noise)
    return TracedModel(traced, module, graph)


def sample_rows(rows: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return random inputs and targets, `[rows, T]` each."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, V, (rows, T + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def compute_gradients(objective: Objective, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Return the loss and the gradients of all weights, those of a memory's rows as a whole table."""
    objective.model.zero_grad()
    with nullcontext() if dtype == torch.float32 else torch.autocast("cpu", dtype):
        loss = objective(*sample_rows())
    loss.backward()
    found = {"loss": loss.detach()}
    for name, parameter in objective.model.named_parameters():
        if parameter.grad is not None:
            found[name] = parameter.grad.clone()
        elif (gradients := get_row_gradients(parameter)) is not None:
            found[name] = torch.zeros_like(parameter)
            for rows, sums, _ in gradients.iterate_sums():
                found[name].flatten(1)[rows] += sums
    return found


def compute_loss(model: LanguageModel, inputs: Tensor, targets: Tensor) -> Tensor:
    logits = model.logits(model.features(inputs)).float()
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
