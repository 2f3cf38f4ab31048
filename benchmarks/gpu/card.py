"""The card: every kernel path against the definition in fp32, and the rates of products and attention."""

from __future__ import annotations

import os
import platform
import subprocess
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu.stage import (
    compute_error,
    emit,
    get_device,
    is_rehearsal,
    measure_ms,
    report_failure,
    wait_for_turn,
)
from trainer.ops import attention as kernels
from trainer.ops.recurrence import chunked_recurrence, compute_recurrence

TOKENS, WIDTH, VOCABULARY = 32768, 1536, 32768  # of a pass of 16 rows at depth 24
PRODUCTS = {
    "attention projection": (TOKENS, WIDTH, WIDTH),
    "MLP up": (TOKENS, WIDTH, 4 * WIDTH),
    "MLP down": (TOKENS, 4 * WIDTH, WIDTH),
    "gradient of MLP up": (WIDTH, TOKENS, 4 * WIDTH),
    "head of a chunk": (8192, WIDTH, VOCABULARY),
}
"""Sizes m, k, n of a product [m, k] @ [k, n]."""
WINDOWS = (None, 1024, 768, 512)


def measure_card() -> None:
    """Versions, then each part; one that fails does not stop the others."""
    wait_for_turn()
    device = get_device()
    facts: dict[str, Any] = {"torch": torch.__version__, "python": platform.python_version(), "cores": os.cpu_count()}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {"gpu": properties.name, "gib": round(properties.total_memory / 2**30, 1), "clock": read_clock()}
        facts["allocator"] = [torch.cuda.get_allocator_backend(), os.environ.get("PYTORCH_ALLOC_CONF")]
        facts["newer_flash"] = {size: kernels.activate_flash_attention(device, [size]) for size in (64, 128)}
    emit(**facts, attention=kernels.describe_kernels(device))  # that of heads of 128 from here on
    for part in (check_attention, time_products, time_copies, time_attention, check_recurrence):
        with report_failure(part.__name__):
            part(device)


def read_clock() -> str:
    query = "clocks.sm,clocks.mem,power.draw,temperature.gpu,driver_version"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def check_attention(device: torch.device) -> None:
    """Each path beside the definition, outputs and gradients, and whether a second backward pass is equal."""
    rows, heads, length, size = (2, 2, 64, 16) if is_rehearsal() else (2, 4, 512, 128)
    documents = (torch.rand(rows, length, device=device) < 0.02).long().cumsum(1)
    window = length // 4
    cases: dict[str, dict[str, Any]] = {
        "full": {},
        "window": {"window": window},
        "documents": {"documents": documents},
        "window and documents": {"window": window, "documents": documents},
    }
    for name, options in cases.items():
        with report_failure(f"attention, {name}"):
            query, key, value = leaves = [build_input(rows, heads, length, size, device) for _ in range(3)]
            out = kernels.attention(query, key, value, **options)
            wanted = kernels.reference_attention(query, key, value, **options)
            direction = torch.randn_like(out)
            first, second = (torch.autograd.grad(out, leaves, direction, retain_graph=True) for _ in range(2))
            right = torch.autograd.grad(wanted, leaves, direction)
            error = max(compute_error(*pair) for pair in zip((out, *first), (wanted, *right), strict=True))
            repeat = max(float((a - b).abs().max()) for a, b in zip(first, second, strict=True))
            path = kernels.select_path(query, key, **options)
            emit(check=f"attention, {name}", path=path, error=error, second_backward=repeat)


def build_input(rows: int, heads: int, length: int, size: int, device: torch.device) -> Tensor:
    """Return `[B, H, T, D]`, laid out as the architecture's projections leave it."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.randn(rows, length, heads, size, device=device, dtype=dtype).transpose(1, 2).requires_grad_()


def time_copies(device: torch.device) -> None:
    """Within the card's memory, and from and to the host's, pinned or not."""
    size = 2**20 if is_rehearsal() else 2**30
    card, host = (torch.zeros(size, dtype=torch.uint8, device=place) for place in (device, "cpu"))
    pinned = host.pin_memory() if device.type == "cuda" else host
    copies = {
        "card": (card, card.clone()),
        "to card": (pinned, card),
        "from card": (card, pinned),
        "unpinned": (host, card),
    }
    for name, (source, target) in copies.items():
        milliseconds = measure_ms(lambda source=source, target=target: target.copy_(source, non_blocking=True))
        emit(copy=name, gigabytes_per_s=round(size / milliseconds / 1e6, 2))


def time_products(device: torch.device) -> None:
    """bf16, and fp8 with one scale for a matrix and one for each row, without the casts."""
    for name, sizes in PRODUCTS.items():
        m, k, n = (max(32, size // 256) for size in sizes) if is_rehearsal() else sizes
        a = torch.randn(m, k, device=device, dtype=torch.bfloat16)
        b = torch.randn(n, k, device=device, dtype=torch.bfloat16)
        emit(product=name, kind="bf16", tera_flops=round(2 * m * k * n / measure_ms(lambda a=a, b=b: a @ b.T) / 1e9, 1))
        if device.type == "cpu":
            continue
        x, w = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
        ones = [torch.ones(shape, device=device) for shape in ((), (), (m, 1), (1, n))]
        for kind, scales in (("fp8 tensorwise", ones[:2]), ("fp8 rowwise", ones[2:])):
            with report_failure(f"{kind}, {name}"):

                def multiply(x: Tensor = x, w: Tensor = w, scales: list[Tensor] = scales) -> Tensor:
                    options = {"scale_a": scales[0], "scale_b": scales[1], "out_dtype": torch.bfloat16}
                    return torch._scaled_mm(x, w.T, **options, use_fast_accum=True)

                emit(product=name, kind=kind, tera_flops=round(2 * m * k * n / measure_ms(multiply) / 1e9, 1))


def time_attention(device: torch.device) -> None:
    """At the shapes of depth 24: each of torch's kernels without a window, and ours by window."""
    rows, heads, length, size = (1, 2, 64, 16) if is_rehearsal() else (16, 12, 2048, 128)
    query, key, value = leaves = [build_input(rows, heads, length, size, device) for _ in range(3)]
    direction = torch.randn_like(query)

    def measure(name: str, attend: Any) -> None:
        with report_failure(f"attention, {name}"):
            out = attend()
            backward = measure_ms(lambda: torch.autograd.grad(out, leaves, direction, retain_graph=True))
            emit(attention_ms=name, forward=round(measure_ms(attend), 3), backward=round(backward, 3))

    backends = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION) if device.type == "cuda" else (SDPBackend.MATH,)
    for backend in backends:
        with sdpa_kernel(backend):
            measure(f"sdpa {backend.name}", lambda: F.scaled_dot_product_attention(query, key, value, is_causal=True))
    for window in WINDOWS:
        measure(f"ours, window {window}", lambda window=window: kernels.attention(query, key, value, window=window))


def check_recurrence(device: torch.device) -> None:
    """RWKV-5's kernels beside their form in torch, both in fp32 without TF32 against fp64: error and time."""
    rows, heads, length = (1, 2, 128) if is_rehearsal() else (8, 16, 2048)
    shapes = [*[(rows, heads, length, 64)] * 3, (heads, 64), (heads, 64), (rows, heads, 64, 64)]
    inputs = [torch.randn(shape, device=device) for shape in shapes]
    inputs[3] = (inputs[3] - 3).exp()
    directions = [torch.randn(shapes[number], device=device) for number in (2, 5)]

    def compute(form: Any, dtype: torch.dtype, rows: int) -> list[Tensor]:
        leaves = [(x if x.dim() == 2 else x[:rows]).to(dtype).requires_grad_() for x in inputs]
        outputs = form(*leaves)
        return [*outputs, *torch.autograd.grad(outputs, leaves, [x[:rows].to(dtype) for x in directions])]

    before = torch.get_float32_matmul_precision()
    wanted = compute(chunked_recurrence, torch.float64, 1)
    for precision in ("highest", "high"):
        torch.set_float32_matmul_precision(precision)
        for name, form in (("kernels", compute_recurrence), ("chunked form", chunked_recurrence)):
            with report_failure(f"recurrence, {name}, {precision}"):
                pairs = zip(compute(form, torch.float32, 1), wanted, strict=True)
                error = max(compute_error(*pair) for pair in pairs)
                ms = measure_ms(lambda form=form: compute(form, torch.float32, rows), 5)
                emit(check=f"recurrence, {name}", products=precision, error=error, both_ways_ms=round(ms, 3))
    torch.set_float32_matmul_precision(before)
