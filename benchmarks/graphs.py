"""Speed of a traced architecture against its Python: `python -m benchmarks.graphs`.

Both train on the same rows in turns in one process, so that a busy machine slows both. Printed: the median time of a
forward and backward pass (CPU seconds of one thread, or seconds of a GPU), their ratio, the difference of loss and
gradients, and the time to trace and to compile.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from trainer.graph.model import build_model
from trainer.graph.trace import trace_architecture
from trainer.models import ARCHITECTURES, load_architecture
from trainer.models.base import LanguageModel
from trainer.training.objective import Objective

SHAPES = {"cpu": {"depth": 4, "rows": 8, "length": 256}, "cuda": {"depth": 12, "rows": 16, "length": 2048}}
VOCABULARY_SIZE = 8192


def compare(name: str, device: torch.device, rounds: int, is_compiled: bool) -> dict[str, Any]:
    shape = SHAPES[device.type]
    module = load_architecture(name)
    config = module.Config.sized(shape["depth"], VOCABULARY_SIZE, shape["length"])
    started = time.perf_counter()
    traced = trace_architecture(module, config)
    trace_seconds = time.perf_counter() - started
    models: dict[str, LanguageModel] = {}
    for kind, build in (("module", lambda: module.Model(config)), ("graph", lambda: build_model(traced))):
        torch.manual_seed(1)
        models[kind] = build().to(device)
    tokens = torch.randint(0, VOCABULARY_SIZE, (shape["rows"], shape["length"] + 1), device=device)
    passes, compile_seconds = {}, {}
    for kind, model in models.items():
        objective = Objective(model)
        if is_compiled:
            objective.features = torch.compile(model.features, dynamic=False)
        passes[kind] = build_pass(objective, tokens, device)
        started = time.perf_counter()
        passes[kind]()
        compile_seconds[kind] = time.perf_counter() - started
    times: dict[str, list[float]] = {kind: [] for kind in passes}
    losses = {}
    for number in range(rounds):
        for kind in sorted(passes, reverse=number % 2 == 1):
            models[kind].zero_grad(set_to_none=True)
            started = read_clock(device)
            losses[kind] = passes[kind]()
            times[kind].append(read_clock(device) - started)
    medians = {kind: statistics.median(values) for kind, values in times.items()}
    gradients = zip(models["module"].parameters(), models["graph"].parameters(), strict=True)
    return {
        "arch": name,
        "compiled": is_compiled,
        "trace_seconds": round(trace_seconds, 2),
        "first_pass_seconds": {kind: round(seconds, 2) for kind, seconds in compile_seconds.items()},
        "seconds": {kind: round(seconds, 4) for kind, seconds in medians.items()},
        "graph_over_module": round(statistics.median(map(divide, times["graph"], times["module"])), 4),
        "loss_difference": abs(losses["graph"] - losses["module"]),
        "gradient_difference": max(
            (float((a.grad - b.grad).abs().max()) for a, b in gradients if a.grad is not None and b.grad is not None),
        ),
    }


def divide(above: float, below: float) -> float:
    return above / below


def build_pass(objective: Objective, tokens: Tensor, device: torch.device) -> Callable[[], float]:
    def run() -> float:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = objective(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        return float(loss.detach()) / tokens[:, 1:].numel()

    return run


def read_clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.graphs")
    parser.add_argument("--arch", action="append", choices=list(ARCHITECTURES), help="default: all")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--compile", action="store_true", help="compile both with torch.compile")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    for name in options.arch or ARCHITECTURES:
        row = compare(name, torch.device(options.device), options.rounds, options.compile)
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
