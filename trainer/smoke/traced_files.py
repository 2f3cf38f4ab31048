"""Read the graphs that the tracing sandbox left, and measure the full size. They are foreign data."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from trainer.errors import ModelError, attribute_to_model
from trainer.graph.files import TracedArchitecture
from trainer.graph.foreign_files import check_foreign_files
from trainer.graph.model import build_model_without_data, read_recipe
from trainer.graph.operators import NGRAM_MEMORY
from trainer.graph.reading import MAX_FILE_BYTES, read_traced
from trainer.models.base import Recipe
from trainer.optim import optimizers
from trainer.protocol import GRAPH_FILES
from trainer.sandbox.safe_files import UnsafeFileError, open_file

STATE_BYTES = {"muon": 4, "adamw": 8, "adamw8bit": 2, "row_adagrad": -4}
"""Bytes of optimizer state per parameter; weights and gradients take four each. A memory has no whole gradient, and a
number for each slice of a row is not counted."""


@dataclass(frozen=True)
class FullSize:
    """Contents and costs of the graphs of the full size."""

    summary: dict[str, Any]  # see `trainer.graph.summary`
    parameters_embedding: int
    state_bytes: int  # of weights, gradients and optimizer states, without activations


@dataclass(frozen=True)
class SandboxGraphs:
    """The graphs in a folder of the sandbox, checked and counted."""

    traced: TracedArchitecture
    summary: dict[str, Any]  # see `trainer.graph.summary`


def read_sandbox_graphs(out: Path, name: str) -> SandboxGraphs:
    """Return the graphs in a folder that the sandbox wrote. Raise `ModelError`."""
    files: dict[str, bytes] = {}
    try:
        for file in GRAPH_FILES:
            with open_file(out, f"{name}/{file}") as stream:
                files[file] = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, UnsafeFileError) as error:
        raise ModelError("It left no graphs.") from error
    with tempfile.TemporaryDirectory(prefix="graphs-") as folder:
        for file, content in files.items():
            Path(folder, file).write_bytes(content)
        with attribute_to_model("while its graphs were read"):
            return SandboxGraphs(summary=check_foreign_files(Path(folder)), traced=read_traced(Path(folder)))


def measure_full_size(graphs: SandboxGraphs) -> FullSize:
    """Return parameters, FLOPs and memory, without computing the graphs. Raise `ModelError`."""
    traced = graphs.traced
    with attribute_to_model("while its full size was counted"):
        try:
            model, recipe = build_model_without_data(traced), read_recipe(traced)
            return FullSize(graphs.summary, count_embedding_parameters(traced), count_state_bytes(model, recipe))
        except ValueError as error:
            raise ModelError(f"At its full size, {error}.") from error


def count_embedding_parameters(traced: TracedArchitecture) -> int:
    """Return the parameters of lookup tables, also if the head shares them."""
    calls = list(traced.training.features.iterate_calls())
    tables = {call.arguments[0] for call in calls if call.name == "aten::embedding"}
    tables |= {call.arguments[1] for call in calls if call.name == NGRAM_MEMORY}
    return sum(
        math.prod(tensor.shape)
        for tensor in traced.initialization.tensors
        if tensor.kind == "parameter" and not tables.isdisjoint(f"@{n}" for n in (tensor.name, *tensor.other_names))
    )


def count_state_bytes(model: nn.Module, recipe: Recipe) -> int:
    groups = optimizers.assign_parameters(model, recipe)
    states = sum(STATE_BYTES[group.optimizer] * p.numel() for group, members in groups for p in members.values())
    return states + sum(8 * p.numel() for p in model.parameters())
