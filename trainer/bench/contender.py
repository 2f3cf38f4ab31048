"""One contender's process: builds a model and an optimizer, then makes steps when it is told to.

`python -m trainer.bench.contender SPEC`, SPEC being JSON of `Spec`. One line of JSON answers each line of standard
input: `run N` makes N steps, `peak` multiplies matrices, `report` says what it cost. The first line, before any
question, says that it is ready. What anything else prints goes to standard error.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer import flops
from trainer.bench.peers import BUILT
from trainer.bench.spec import Shape, Spec
from trainer.models import architecture
from trainer.models.base import LanguageModel

Step = Callable[[Tensor, Tensor], object]

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


def peer(spec: Spec, device: torch.device) -> tuple[nn.Module, Step]:
    """torch's fused AdamW over everything, the loss over all logits at once, nothing measured on the way."""
    model = BUILT[spec.name](spec.shape).to(device)
    loss_of = torch.compile(WithLoss(model)) if spec.compiled else WithLoss(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step(inputs: Tensor, targets: Tensor) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = loss_of(inputs, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return model, step


def ours(spec: Spec, device: torch.device) -> tuple[nn.Module, Step]:
    """The architecture with its own recipe, through what the training loop is made of."""
    from trainer import optim
    from trainer.loss import Objective
    from trainer.train import keep_memory

    if device.type == "cpu":
        keep_memory()
    module = architecture(spec.name)
    config = sized(module, spec.shape)
    model = module.Model(config).to(device)
    optimizers = optim.build(model, module.recipe(config))
    objective = Objective(model)
    if spec.compiled:
        objective.features = torch.compile(objective.features, dynamic=False)
        objective.nats = torch.compile(objective.nats, dynamic=False)

    def step(inputs: Tensor, targets: Tensor) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = objective(inputs, targets) / targets.numel()
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        assert math.isfinite(float(loss.detach() + norm))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return model, step


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
        self.before = resident()
        self.model, self.step = (ours if spec.ours else peer)(spec, self.device)
        rows = torch.randint(0, shape.vocabulary_size, (BATCHES, shape.batch, shape.sequence_length + 1))
        self.batches = [(row[:, :-1].contiguous(), row[:, 1:].contiguous()) for row in rows.to(self.device)]
        self.made = 0

    def ready(self) -> dict[str, Any]:
        """Make the first steps, which compile, allocate and fill optimizer states."""
        started = time.perf_counter()
        self.steps(2)
        self.settle()
        return {
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "first_steps_seconds": time.perf_counter() - started,
            "device": torch.cuda.get_device_name() if self.device.type == "cuda" else "cpu",
            "known_peak": flops.peak(self.device),
        }

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.step(*self.batches[self.made % BATCHES])
            self.made += 1

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

    def peak(self) -> dict[str, Any]:
        return {"flops": matmul_peak(self.device)}

    def report(self) -> dict[str, Any]:
        """Memory above what the process had before the model was built; FLOPs of a forward and backward pass."""
        on_gpu = self.device.type == "cuda"
        memory = torch.cuda.max_memory_allocated() if on_gpu else resident() - self.before
        row = self.batches[0][0][:1]
        counted = self.model if isinstance(self.model, LanguageModel) else Answers(self.model)
        return {"memory_bytes": memory, "flops_per_token": flops.count(counted, row).per_token}


def import_what_it_needs(spec: Spec) -> None:
    """Have libraries in memory before it is measured: litgpt alone brings two hundred megabytes."""
    if spec.ours:
        importlib.import_module("trainer.train")
        architecture(spec.name)
    elif spec.name == "litgpt":
        importlib.import_module("litgpt")


def resident() -> int:
    """Return the most memory this process has had, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def matmul_peak(device: torch.device, size: int = 1024, times: int = 8) -> float:
    """Return the FLOP/s of the fastest of some fp32 products of two matrices [size, size]."""
    a, b = torch.randn(2, size, size, device=device)
    fastest = math.inf
    for _ in range(times):
        started = time.perf_counter()
        torch.mm(a, b)
        if device.type == "cuda":
            torch.cuda.synchronize()
        fastest = min(fastest, time.perf_counter() - started)
    return 2 * size**3 / fastest


def serve(spec: Spec, questions: TextIO, answers: TextIO) -> None:
    """Answer questions until there are no more."""

    def say(content: dict[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    contender = Contender(spec)
    say(contender.ready())
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
