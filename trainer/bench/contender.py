"""One contender's process: builds a model and an optimizer, then makes steps when it is told to.

`python -m trainer.bench.contender SPEC`, SPEC being JSON of `Spec`. One line of JSON answers each line of standard
input: `first` makes the first steps, `run N` times N more, `report` says what it cost. The first line, before any
question, says that the model is built. What anything else prints goes to standard error.
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
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.accounting import flops
from trainer.bench.peers import BUILT
from trainer.bench.spec import Shape, Spec
from trainer.config.resolve import ResolvedConfig
from trainer.config.train_config import TrainConfig
from trainer.distributed.devices import memory_bytes
from trainer.models import load_architecture
from trainer.models.base import LanguageModel
from trainer.optim import muon, optimizers
from trainer.training import precision

Step = Callable[[], object]
Batch = tuple[Tensor, Tensor]
"""Inputs and targets `[B, T]`, in main memory: pinned, for a GPU."""

BATCHES = 8
"""Different batches of random tokens, taken in turn."""


# --- the two kinds ----------------------------------------------------------------------------------------------------


class Answers(LanguageModel):
    """A peer's model as FLOPs are counted."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def features(self, tokens: Tensor) -> Tensor:
        return self.model(tokens)

    def logits(self, features: Tensor) -> Tensor:
        return features


class WithLoss(nn.Module):
    """A peer's model with its loss, to be compiled as one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten())


def peer(spec: Spec, batches: Sequence[Batch]) -> tuple[nn.Module, Step]:
    """torch's fused AdamW over everything, the loss over all logits at once, nothing measured on the way."""
    device = torch.device(spec.shape.device)
    model = BUILT[spec.name](spec.shape).to(device)
    loss_of = torch.compile(WithLoss(model)) if spec.compiled else WithLoss(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    rows = itertools.cycle(batches)

    def step() -> None:
        inputs, targets = (half.to(device, non_blocking=True) for half in next(rows))
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = loss_of(inputs, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return model, step


def ours(spec: Spec, batches: Sequence[Batch]) -> tuple[nn.Module, Step]:
    """The architecture with its own recipe in the training loop's own hands: `trainer.train.train_step` of a run that
    has no folder and takes random tokens for text."""
    from trainer.distributed.devices import make_fabric
    from trainer.train import train_step
    from trainer.training.grad_spikes import GradientSpikeFilter
    from trainer.training.run import Run
    from trainer.training.setup import prepare_objective

    resolved = resolution(spec)
    module = load_architecture(spec.name)
    config = sized(module, spec.shape)
    fabric = make_fabric(resolved, None)
    model = module.Model(config).to(fabric.device)
    recipe = module.recipe(config)
    objective, resolved = prepare_objective(model, recipe, resolved, batches[0][0], undecided=False)
    nothing: Any = None  # what a step does not look at
    run = Run(
        config=TrainConfig(out=Path(os.devnull), arch=spec.name),
        resolved=resolved,
        fabric=fabric,
        dataset=nothing,
        raw_model=model,
        objective=objective,
        model=fabric.setup_module(objective),
        optimizers=[
            fabric.setup_optimizers(optimizer) for optimizer in optimizers.build(model, recipe, resolved.muon_precision)
        ],
        recipe=recipe,
        flop_count=nothing,
        integrity=nothing,
        spike_filter=GradientSpikeFilter(resolved.spikes),
        loader=cast(Any, SimpleNamespace(next_batch=itertools.cycle(batches).__next__)),
        identity={},
    )
    # As the loop does.
    gc.collect()
    gc.freeze()
    gc.disable()
    return model, lambda: train_step(run, 0.5)


def resolution(spec: Spec) -> ResolvedConfig:
    """Return the shape in the words of a run."""
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
        muon_precision=muon.units(shape.device),
        compile=spec.compiled,
        activation_checkpointing=False,
        strategy="single",
        spike_filter="skip",
        evaluations=1,
        dev_tokens=1,
        sample_tokens=0,
    )


def sized(module: Any, shape: Shape) -> Any:
    """Return an architecture's configuration at this shape: by its dial, or else by the width and heads given."""
    config = module.Config.sized(shape.depth, shape.vocabulary_size, shape.sequence_length)
    if getattr(config, "width", shape.width) == shape.width:
        return config
    return dataclasses.replace(config, width=shape.width, heads=shape.heads)


# --- the process ------------------------------------------------------------------------------------------------------


class Contender:
    def __init__(self, spec: Spec) -> None:
        shape = spec.shape
        torch.set_num_threads(shape.threads)
        torch.set_float32_matmul_precision("high")  # as the loop: TF32 where there is no autocast
        torch.manual_seed(0)
        self.spec, self.device = spec, torch.device(shape.device)
        import_what_it_needs(spec)
        self.before = memory_bytes(self.device)
        rows = torch.randint(0, shape.vocabulary_size, (BATCHES, shape.batch, shape.sequence_length + 1))
        batches = [(row[:, :-1].contiguous(), row[:, 1:].contiguous()) for row in rows]
        if self.device.type == "cuda":
            batches = [(inputs.pin_memory(), targets.pin_memory()) for inputs, targets in batches]
        self.model, self.step = (ours if spec.ours else peer)(spec, batches)
        self.row = batches[0][0][:1].to(self.device)

    def built(self) -> dict[str, Any]:
        return {
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "device": torch.cuda.get_device_name() if self.device.type == "cuda" else "cpu",
        }

    def first(self) -> dict[str, Any]:
        """Make the first steps, which compile, allocate and fill optimizer states."""
        started = time.perf_counter()
        self.steps(2)
        self.settle()
        return {"first_steps_seconds": time.perf_counter() - started}

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.step()

    def settle(self) -> None:
        """Wait for a GPU and give back what only the next step needs, to whose turn it is now."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def run(self, number: int) -> dict[str, Any]:
        """Make timed steps. On a GPU one goes before them, which takes back the memory that `settle` gave away."""
        if self.device.type == "cuda":
            self.steps(1)
            torch.cuda.synchronize()
        started = time.perf_counter()
        self.steps(number)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - started
        self.settle()
        return {"seconds": seconds}

    def report(self) -> dict[str, Any]:
        """Memory above what the process had before the model was built; FLOPs of a forward and backward pass; the
        FLOP/s that MFU is a part of."""
        counted = self.model if isinstance(self.model, LanguageModel) else Answers(self.model)
        return {
            "memory_bytes": memory_bytes(self.device) - self.before,
            "flops_per_token": flops.count_flops(counted, self.row).per_token,
            "peak": precision.find_peak_flops(self.device, "fp32", torch.get_num_threads()),
        }


def import_what_it_needs(spec: Spec) -> None:
    """Have libraries in memory before it is measured: litgpt alone brings two hundred megabytes."""
    if spec.ours:
        load_architecture(spec.name)
        importlib.import_module("trainer.training.setup")
        importlib.import_module("lightning.fabric")
    elif spec.name == "litgpt":
        importlib.import_module("litgpt")


def serve(spec: Spec, questions: TextIO, answers: TextIO) -> None:
    """Answer questions until there are no more."""

    def say(content: dict[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    contender = Contender(spec)
    say(contender.built())
    for line in questions:
        name, *number = line.split()
        say(getattr(contender, name)(*map(int, number)))


def main() -> int:
    """Serve over standard input and output; 1, with one line on standard error, if it cannot."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a library that prints must not spoil the answers
    try:
        serve(Spec.from_json(sys.argv[1]), sys.stdin, answers)
    except (torch.OutOfMemoryError, MemoryError):
        return complain("out of memory at this shape")
    except BrokenPipeError:
        return 1
    except Exception as error:
        return complain(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    return 0


def complain(sentence: str) -> int:
    sys.stderr.write(f"{sentence}\n")
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
