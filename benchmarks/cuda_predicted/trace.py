"""Trace one micro-batch of a run as training compiles it, on the fake H100."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.cuda_predicted.recording import CompiledGraph, record_compiled_graphs
from trainer.config.model_config import configure_model
from trainer.config.parsing import parse_config
from trainer.config.train_config import ResolvedConfig, resolve_config
from trainer.graph.build import build_constants
from trainer.graph.counting import count_training_cost
from trainer.graph.files import TracedArchitecture
from trainer.graph.model import GraphModel, build_model_without_data, read_recipe
from trainer.graph.trace import trace_architecture
from trainer.models import load_architecture
from trainer.ops.losses import count_chunks
from trainer.optim.optimizers import build_optimizers, compile_steps
from trainer.training.compilation import compile_objective
from trainer.training.loop import choose_optimizer_backend
from trainer.training.objective import Objective
from trainer.training.precision import convert_tables, convert_to_fp8

VOCABULARY = 32_768
END_OF_TEXT = 0


@dataclass(frozen=True)
class TracedStep:
    """The compiled graphs of a micro-batch."""

    resolved: ResolvedConfig
    features: tuple[CompiledGraph, CompiledGraph]  # forward and backward
    loss: tuple[CompiledGraph, CompiledGraph]  # of one chunk of positions
    loss_chunks: int
    muon: tuple[CompiledGraph, ...]  # a step of each shape of matrices
    table_steps: tuple[CompiledGraph, ...]  # of one table in bf16, of each shape
    tables: int  # in bf16
    feature_dtype: str
    parameters: int
    width: int
    counted_flops_per_token: float  # of products, counted from the architecture's graphs without a device

    @property
    def graphs(self) -> tuple[CompiledGraph, ...]:
        return (*self.features, *self.loss)

    @property
    def product_flops_per_token(self) -> float:
        """FLOPs of matrix products in the compiled graphs, without attention."""
        features, loss = (
            sum(operation.flops for graph in graphs for operation in graph.operations if operation.is_product)
            for graphs in (self.features, self.loss)
        )
        return (features + self.loss_chunks * loss) / (self.resolved.micro_batch * self.resolved.sequence_length)

    @property
    def stream_size(self) -> int:
        """Numbers in the residual stream of all rows."""
        return self.resolved.micro_batch * self.resolved.sequence_length * self.width


def trace_training(arch: str, flags: tuple[str, ...], out: Path) -> TracedStep:
    """Trace a micro-batch of the preset `daily-h100` with these flags. Raises if a function is not one graph."""
    config = parse_config(["--preset", "daily-h100", "--arch", arch, *flags, "--out", str(out)])
    resolved = resolve_config(config, "cuda")
    module = load_architecture(arch)
    model_config = configure_model(module, config, resolved, END_OF_TEXT, VOCABULARY)
    traced = trace_architecture(module, model_config)
    records = record_compiled_graphs()
    torch.set_float32_matmul_precision("high")
    with FakeTensorMode(allow_non_fake_inputs=True):
        stored = {
            tensor.name: torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype), device="cuda")
            for tensor in traced.initialization.tensors
        }
        constants = build_constants(traced.initialization)
        model = GraphModel(traced, stored | {name: torch.empty_like(c, device="cuda") for name, c in constants.items()})
        recipe = read_recipe(traced)
        if resolved.precision == "fp8":
            convert_to_fp8(model)
        if resolved.table_precision == "bf16":
            convert_tables(model, recipe)
        objective = Objective(model.train())
        compile_objective(objective, resolved)
        shape = (resolved.micro_batch, resolved.sequence_length)
        tokens, targets = (torch.empty(shape, dtype=torch.int64, device="cuda") for _ in range(2))
        with torch.autocast("cuda", torch.bfloat16):
            features = objective.compute_features(tokens)
            loss = objective.compute_loss(features, targets)
        loss.backward()
        passes = pair_graphs(records)
        optimizers = build_optimizers(model, recipe, "bf16", choose_optimizer_backend(resolved))
        compile_steps(optimizers)
    updates = records[len(passes) * 2 :]
    tables = [parameter for parameter in model.parameters() if parameter.dtype == torch.bfloat16]
    return TracedStep(
        resolved=resolved,
        **passes,
        muon=tuple(graph for graph in updates if graph.flops),
        table_steps=tuple(graph for graph in updates if not graph.flops),
        tables=len(tables),
        loss_chunks=count_chunks(tokens.numel(), "cuda", VOCABULARY),
        feature_dtype=str(features.dtype).removeprefix("torch."),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        width=features.size(-1),
        counted_flops_per_token=count_product_flops(traced, resolved),
    )


def count_product_flops(traced: TracedArchitecture, resolved: ResolvedConfig) -> float:
    cost = count_training_cost(build_model_without_data(traced), [resolved.micro_batch], "cuda")
    return cost.product_flops_per_token


def pair_graphs(records: list[CompiledGraph]) -> dict[str, Any]:
    """Sort the graphs, which were compiled in the order: features, loss, backward of the loss, backward of features."""
    forward = [graph for graph in records if not graph.is_backward]
    backward = [graph for graph in records if graph.is_backward]
    assert len(forward) == len(backward) == 2, [graph.is_backward for graph in records]
    by_size = [sorted(graphs, key=lambda graph: -len(graph.operations)) for graphs in (forward, backward)]
    features, loss = zip(*by_size, strict=True)
    return {"features": features, "loss": loss}
