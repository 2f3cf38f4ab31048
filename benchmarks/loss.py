"""Memory and time of the loss, forward and backward: in chunks, as we train, and with all logits at once.

`python -m benchmarks.loss --device cuda`: the head of 124M over 32 rows of 1024 tokens; on a CPU 8 rows of 256 tokens
at width 256, with the same vocabulary. On a CPU memory is what the process grew by, so the smaller one comes first.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.distributed.devices import get_peak_memory_bytes
from trainer.models.base import LanguageModel
from trainer.training.objective import Objective

REPEATS = 5

SHAPES = {"cpu": (8, 256, 256, 50304), "cuda": (32, 1024, 768, 50304)}
"""Rows, tokens in a row, width, vocabulary."""


class Head(LanguageModel):
    """A model that is all head: its features are given."""

    def __init__(self, rows: int, length: int, width: int, vocabulary_size: int) -> None:
        super().__init__()
        self.given = nn.Parameter(torch.randn(rows, length, width))
        self.head = nn.Linear(width, vocabulary_size, bias=False)

    def features(self, tokens: Tensor) -> Tensor:
        return self.given

    def logits(self, features: Tensor) -> Tensor:
        return self.head(features)


def measured(loss: Callable[[], Tensor], device: torch.device) -> dict[str, Any]:
    """Return seconds of the fastest repeat, and the memory beyond weights and gradients, which are there before."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if on_gpu else get_peak_memory_bytes(device)
    fastest = float("inf")
    for _ in range(REPEATS):
        started = time.perf_counter()
        loss().backward()
        if on_gpu:
            torch.cuda.synchronize()
        fastest = min(fastest, time.perf_counter() - started)
    return {"seconds": fastest, "memory_bytes": get_peak_memory_bytes(device) - before}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    device = torch.device(options.device)
    rows, length, width, vocabulary_size = (4, 256, 64, 8192) if options.smoke else SHAPES[device.type]
    torch.manual_seed(0)
    model = Head(rows, length, width, vocabulary_size).to(device)
    tokens = torch.randint(0, vocabulary_size, (rows, length), device=device)
    objective = Objective(model)

    def at_once() -> Tensor:
        return F.cross_entropy(model.logits(model.given).flatten(0, 1).float(), tokens.flatten(), reduction="sum")

    rows_of_table = {}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    for name, loss in (("in chunks", lambda: objective(tokens, tokens)), ("all at once", at_once)):
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            rows_of_table[name] = measured(loss, device)
    sys.stdout.write(
        json.dumps({"shape": [rows, length, width, vocabulary_size], "losses": rows_of_table}, indent=1) + "\n"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
