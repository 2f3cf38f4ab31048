"""Memory and time of the loss, forward and backward: our chunks, torch's chunks, and all logits at once.

`python -m benchmarks.loss --device cuda`: the head of 124M over 32 rows of 1024 tokens; on a CPU 8 rows of 256 tokens
at width 256. Each contender has its own process, since the peak memory of a process only grows. `torch` is
`F.linear_cross_entropy` with its automatic options,
`torch, our chunk` the same with our number of positions in a chunk.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.distributed.devices import get_peak_memory_bytes
from trainer.models.base import LanguageModel
from trainer.ops.losses import limit_chunk_positions
from trainer.training.objective import Objective

REPEATS = 3
CONTENDERS = ("in chunks", "all at once")
TORCH_CONTENDERS = ("torch", "torch, our chunk")  # of torch 2.13 and newer
SHAPES = {"cpu": (8, 256, 256), "cuda": (32, 1024, 768)}
"""Rows, tokens in a row, width."""


class Head(LanguageModel):
    """A model without blocks: its features are parameters."""

    def __init__(self, rows: int, length: int, width: int, vocabulary_size: int) -> None:
        super().__init__()
        self.given = nn.Parameter(torch.randn(rows, length, width))
        self.head = nn.Linear(width, vocabulary_size, bias=False)

    def features(self, tokens: Tensor) -> Tensor:
        return self.given

    def logits(self, features: Tensor) -> Tensor:
        return self.head(features)


def compute_loss(name: str, model: Head, tokens: Tensor) -> Tensor:
    """Return the sum of the nats, computed as a contender does."""
    if name == "in chunks":
        return Objective(model)(tokens, tokens)
    features = model.given.flatten(0, 1)
    if name == "all at once":
        return F.cross_entropy(model.logits(features).float(), tokens.flatten(), reduction="sum")
    size = (
        limit_chunk_positions(tokens.device.type, model.head.out_features, tokens.numel())
        if name == "torch, our chunk"
        else None
    )
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=size)
    return F.linear_cross_entropy(features, model.head.weight, tokens.flatten(), reduction="sum", options=options)


def build_head(shape: tuple[int, int, int, int], device: torch.device) -> tuple[Head, Tensor]:
    """Return a model of this shape and random tokens."""
    return Head(*shape).to(device), torch.randint(0, shape[3], shape[:2], device=device)


def train_once(name: str, model: Head, tokens: Tensor) -> None:
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=tokens.is_cuda):
        loss = compute_loss(name, model, tokens)
    loss.backward()


def measure_loss(name: str, device_name: str, shape: tuple[int, int, int, int]) -> dict[str, Any]:
    """Return the seconds of the fastest repeat (CPU seconds of one thread, or of the GPU) and the additional memory.

    Weights and gradients exist before.
    """
    device = torch.device(device_name)
    on_gpu = device.type == "cuda"
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train_once(name, *build_head((1, 64, 64, 512), device))  # allocates the libraries' own memory
    model, tokens = build_head(shape, device)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = torch.cuda.memory_allocated() if on_gpu else get_peak_memory_bytes(device)
    clock = time.perf_counter if on_gpu else time.process_time
    seconds = []
    for _ in range(REPEATS):
        started = clock()
        train_once(name, model, tokens)
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(clock() - started)
    return {"seconds": min(seconds), "memory_bytes": get_peak_memory_bytes(device) - before}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--vocabulary", type=int, default=50304)
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    shape = (4, 256, 64, 8192) if options.smoke else (*SHAPES[options.device], options.vocabulary)
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        contenders = (*CONTENDERS, *(TORCH_CONTENDERS if hasattr(F, "linear_cross_entropy") else ()))
        losses = {name: pool.apply(measure_loss, (name, options.device, shape)) for name in contenders}
    sys.stdout.write(json.dumps({"shape": shape, "losses": losses}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
