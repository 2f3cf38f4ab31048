"""The process of a contender: build a model and an optimizer, then train steps on command.

`python -m trainer.bench.contender SPEC`, where SPEC is a `ContenderSpec` as JSON. The reply to each command, a line on
standard input, is a line of JSON: `warm_up` trains the first steps, `run N` times N more, `report` returns costs.
A first line of JSON, before any command, describes the model. All other output goes to standard error.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.accounting import flops
from trainer.bench.peers import PEER_BUILDERS
from trainer.bench.spec import ContenderSpec, Shape
from trainer.config.resolve import ResolvedConfig
from trainer.distributed.devices import get_peak_memory_bytes, import_fabric
from trainer.errors import ExitCode, to_one_line
from trainer.models import load_architecture
from trainer.models.base import LanguageModel
from trainer.ops import devices
from trainer.optim import muon, optimizers
from trainer.optim.optimizers import compile_steps

StepFunction = Callable[[], object]
Batch = tuple[Tensor, Tensor]  # inputs and targets [B, T] in main memory, pinned if they go to a GPU

BATCHES = 8  # distinct batches of random tokens, used in rotation


# --- the two kinds of contenders --------------------------------------------------------------------------------------


class PeerModel(LanguageModel):
    """A peer's model as a `LanguageModel`, for counting FLOPs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def features(self, tokens: Tensor) -> Tensor:
        return self.model(tokens)

    def logits(self, features: Tensor) -> Tensor:
        return features


class PeerWithLoss(nn.Module):
    """A peer's model with its loss, compiled as one graph."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten())


def build_peer(spec: ContenderSpec, batches: Sequence[Batch]) -> tuple[nn.Module, StepFunction]:
    """Build a peer with torch's fused AdamW for all parameters and the loss over all logits at once."""
    device = torch.device(spec.shape.device)
    model = PEER_BUILDERS[spec.name](spec.shape).to(device)
    compute_loss = torch.compile(PeerWithLoss(model)) if spec.compiled else PeerWithLoss(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    rows = itertools.cycle(batches)

    def step() -> None:
        inputs, targets = (tensor.to(device, non_blocking=True) for tensor in next(rows))
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = compute_loss(inputs, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return model, step


def build_ours(spec: ContenderSpec, batches: Sequence[Batch]) -> tuple[nn.Module, StepFunction]:
    """Build an architecture with its recipe, trained by `trainer.training.loop.train_step` on random tokens."""
    from trainer.distributed.devices import build_fabric
    from trainer.training.compilation import choose_optimizer_backend
    from trainer.training.grad_spikes import GradientSpikeFilter
    from trainer.training.loop import train_step
    from trainer.training.setup import prepare_objective
    from trainer.training.step_values import StepValues

    resolved = build_resolved_config(spec)
    module = load_architecture(spec.name)
    config = build_model_config(module, spec.shape)
    fabric = build_fabric(resolved.device, resolved.devices, resolved.strategy, resolved.precision, None)
    raw_model = module.Model(config).to(fabric.device)
    recipe = module.recipe(config)
    model = fabric.setup_module(prepare_objective(raw_model, recipe, resolved))
    backend = choose_optimizer_backend(resolved)
    built = optimizers.build_optimizers(raw_model, recipe, resolved.muon_precision, backend)
    wrapped = [fabric.setup_optimizers(optimizer) for optimizer in built]
    compile_steps(built)
    optimizers.set_learning_rates(wrapped, recipe.schedule.scale(0.5, 0))
    spike_filter, rows = GradientSpikeFilter(resolved.spikes), itertools.cycle(batches)
    # As in the training loop.
    gc.collect()
    gc.freeze()
    gc.disable()

    values: StepValues | None = None

    def step() -> None:
        nonlocal values
        settings = (resolved.micro_batch, spike_filter, recipe.clip)
        values = train_step(fabric, model, wrapped, next(rows), *settings, before=values)

    return raw_model, step


def build_resolved_config(spec: ContenderSpec) -> ResolvedConfig:
    """Return the shape as the configuration of a run."""
    shape = spec.shape
    return ResolvedConfig(
        device=shape.device,
        devices=1,
        depth=shape.depth,
        sequence_length=shape.sequence_length,
        batch=shape.batch,
        micro_batch=shape.batch,
        packing="blocks",
        precision="bf16" if shape.device == "cuda" else "fp32",
        muon_precision=muon.choose_precision(shape.device),
        compile=spec.compiled,
        activation_checkpointing=False,
        strategy="single",
        spikes="skip",
        evaluations=1,
        dev_tokens=1,
        sample_tokens=0,
    )


def build_model_config(module: Any, shape: Shape) -> Any:
    """Return an architecture's configuration of this shape, by its depth alone if that gives the width."""
    config = module.Config.sized(shape.depth, shape.vocabulary_size, shape.sequence_length)
    if getattr(config, "width", shape.width) == shape.width:
        return config
    return dataclasses.replace(config, width=shape.width, heads=shape.heads)


# --- the process ------------------------------------------------------------------------------------------------------


class ContenderWorker:
    def __init__(self, spec: ContenderSpec) -> None:
        shape = spec.shape
        torch.set_num_threads(shape.threads)
        torch.set_float32_matmul_precision("high")  # as the loop: TF32 where there is no autocast
        torch.manual_seed(0)
        self.spec, self.device = spec, torch.device(shape.device)
        import_libraries(spec)
        self.initial_memory = get_peak_memory_bytes(self.device)
        rows = torch.randint(0, shape.vocabulary_size, (BATCHES, shape.batch, shape.sequence_length + 1))
        batches = [(row[:, :-1].contiguous(), row[:, 1:].contiguous()) for row in rows]
        if self.device.type == "cuda":
            batches = [(inputs.pin_memory(), targets.pin_memory()) for inputs, targets in batches]
        self.model, self.step = (build_ours if spec.is_ours else build_peer)(spec, batches)
        self.row = batches[0][0][:1].to(self.device)

    def describe_model(self) -> dict[str, Any]:
        return {
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "device": devices.get_gpu_name() if self.device.type == "cuda" else "cpu",
        }

    def warm_up(self) -> dict[str, Any]:
        """Train the first steps, which compile, allocate memory and create optimizer states."""
        started = time.perf_counter()
        self.train_steps(2)
        self.release_memory()
        return {"first_steps_seconds": time.perf_counter() - started}

    def train_steps(self, number: int) -> None:
        for _ in range(number):
            self.step()

    def release_memory(self) -> None:
        """Wait for the GPU and free its cached memory for the next contender."""
        devices.synchronize(self.device)
        devices.release_cached_memory(self.device)

    def run(self, number: int) -> dict[str, Any]:
        """Time `number` steps. On a GPU one untimed step first allocates the memory again."""
        if self.device.type == "cuda":
            self.train_steps(1)
        devices.synchronize(self.device)
        started = time.perf_counter()
        self.train_steps(number)
        devices.synchronize(self.device)
        seconds = time.perf_counter() - started
        self.release_memory()
        return {"seconds": seconds}

    def report(self) -> dict[str, Any]:
        """Return the memory used since before the model was built, FLOPs per token of a forward and backward pass, and
        the peak FLOP/s for MFU."""
        counted = self.model if isinstance(self.model, LanguageModel) else PeerModel(self.model)
        return {
            "memory_bytes": get_peak_memory_bytes(self.device) - self.initial_memory,
            "flops_per_token": flops.count_flops(counted, self.row),
            "peak": flops.find_peak_flops(self.device, "fp32", torch.get_num_threads()),
        }


def import_libraries(spec: ContenderSpec) -> None:
    """Import libraries before memory is measured: litgpt alone takes 200 MB."""
    if spec.is_ours:
        load_architecture(spec.name)
        importlib.import_module("trainer.training.setup")
        import_fabric()
    elif spec.name == "litgpt":
        importlib.import_module("litgpt")


def serve_commands(spec: ContenderSpec, commands: TextIO, output: TextIO) -> None:
    """Execute commands until the input ends."""

    def write(content: dict[str, Any]) -> None:
        output.write(json.dumps(content) + "\n")
        output.flush()

    worker = ContenderWorker(spec)
    write(worker.describe_model())
    for line in commands:
        name, *number = line.split()
        write(getattr(worker, name)(*map(int, number)))


def main() -> int:
    """Serve commands on standard input and output. Report an error in one line."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not mix with the results
    try:
        serve_commands(ContenderSpec.from_json(sys.argv[1]), sys.stdin, output)
    except (torch.OutOfMemoryError, MemoryError):
        sys.stderr.write("out of memory at this shape\n")
    except BrokenPipeError:
        pass
    except Exception as error:
        sys.stderr.write(f"{type(error).__name__}: {to_one_line(error)[:300]}\n")
    else:
        return ExitCode.OK
    return ExitCode.INFRASTRUCTURE


if __name__ == "__main__":
    raise SystemExit(main())
