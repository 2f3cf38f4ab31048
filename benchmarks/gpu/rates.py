"""Rates of the GPU at the night's shapes: matrix products, copies, attention; and the precision that is chosen.

`python -m benchmarks.gpu.rates --device cuda`; on a CPU small shapes, which only show that it starts.
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

from trainer.bench.machine import describe_machine, find_versions
from trainer.ops.attention import attention, describe_kernels, select_path
from trainer.training.precision import choose_precision

TOKENS, WIDTH, VOCABULARY = 32768, 1536, 32768  # of a pass of 16 rows at depth 24
PRODUCTS = {
    "attention projection": (TOKENS, WIDTH, WIDTH),
    "MLP up": (TOKENS, WIDTH, 4 * WIDTH),
    "MLP down": (TOKENS, 4 * WIDTH, WIDTH),
    "gradient of MLP up": (WIDTH, TOKENS, 4 * WIDTH),
    "head of a chunk": (4096, WIDTH, VOCABULARY),
}
"""Sizes m, k, n of a product [m, k] @ [k, n]."""
ATTENTION = {"cuda": (16, 12, 2048, 128), "cpu": (1, 2, 64, 16)}  # rows, heads, positions, size of a head
WINDOWS = (None, 1024, 512)
COPIED_BYTES = {"cuda": 2**30, "cpu": 2**20}
SHRINK = {"cuda": 1, "cpu": 32}  # divisor of the products' sizes
REPEATS, WARM_UP = 20, 5


def measure_seconds(work: Callable[[], Any], device: torch.device) -> float:
    """Return the median duration of a call."""
    seconds = []
    for number in range(WARM_UP + REPEATS):
        synchronize(device)
        started = time.perf_counter()
        work()
        synchronize(device)
        if number >= WARM_UP:
            seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_product(sizes: tuple[int, int, int], device: torch.device) -> float:
    """Return the FLOP/s of one product in bf16."""
    m, k, n = (size // SHRINK[device.type] for size in sizes)
    a, b = (torch.randn(shape, device=device, dtype=torch.bfloat16) for shape in ((m, k), (k, n)))
    return 2 * m * k * n / measure_seconds(lambda: a @ b, device)


def measure_copy(device: torch.device) -> float:
    """Return the bytes read and written per second."""
    source = torch.empty(COPIED_BYTES[device.type], device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    return 2 * source.numel() / measure_seconds(lambda: target.copy_(source), device)


def measure_attention(window: int | None, device: torch.device) -> dict[str, Any]:
    """Return the path that is taken, and the seconds of the forward and the backward pass."""
    rows, heads, positions, size = ATTENTION[device.type]
    shape = (rows, positions, heads, size)
    query, key, value = (build_input(shape, device) for _ in range(3))
    gradient = torch.randn(rows, heads, positions, size, device=device, dtype=torch.bfloat16)

    def run_backward() -> Sequence[Tensor]:
        return torch.autograd.grad(output, (query, key, value), gradient, retain_graph=True)

    output = attention(query, key, value, window=window)
    return {
        "path": select_path(query, key, window=window),
        "forward": measure_seconds(lambda: attention(query, key, value, window=window), device),
        "backward": measure_seconds(run_backward, device),
    }


def build_input(shape: tuple[int, int, int, int], device: torch.device) -> Tensor:
    """Return `[B, H, T, D]`, laid out as the architecture's projections leave it."""
    return torch.randn(shape, device=device, dtype=torch.bfloat16).transpose(1, 2).requires_grad_()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args(argv)
    device = torch.device(options.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    content = {
        "machine": describe_machine(name, torch.get_num_threads()),
        "versions": find_versions(),
        "kernels": describe_kernels(device),
        "precision": choose_precision(device, torch.get_num_threads()),
        "products": {name: measure_product(sizes, device) for name, sizes in PRODUCTS.items()},
        "copy": measure_copy(device),
        "attention": {str(window or "full"): measure_attention(window, device) for window in WINDOWS},
    }
    sys.stdout.write(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
