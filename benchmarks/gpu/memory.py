"""An n-gram memory: its steps on the GPU beside those on the CPU, and their cost by the rows of its table."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks import memory
from benchmarks.gpu.stage import compute_error, emit, get_device, is_rehearsal, report_failure, wait_for_turn
from trainer.models.base import ParameterGroup, Recipe
from trainer.models.ngram_memory import NGramMemory
from trainer.optim.optimizers import build_optimizers

ROWS, WIDTH, STEPS, PASSES = 2**14, 64, 3, 4


def measure_memory() -> None:
    wait_for_turn()
    for part in (check_steps, time_steps, check_waits):
        with report_failure(part.__name__):
            part(get_device())


def check_steps(device: torch.device) -> None:
    """Table and sums after a few steps with decay: beside the CPU, a second time, and with all rows in one pass."""
    rows, length = (4, 64) if is_rehearsal() else (32, 2048)
    tokens = torch.randint(512, (STEPS, rows, length))
    gradients = torch.randn(STEPS, rows, length, 1, WIDTH)
    for dtype in (torch.float32, torch.bfloat16):
        wanted, found, again = (
            train_memory(tokens.to(place), gradients.to(place, dtype), PASSES)
            for place in (torch.device("cpu"), device, device)
        )
        whole = train_memory(tokens.to(device), gradients.to(device, dtype), 1)
        errors = [compute_error(*(x.cpu() for x in pair)) for pair in zip(found, wanted, strict=True)]
        same = {name: all(map(torch.equal, found, other)) for name, other in (("twice", again), ("one pass", whole))}
        emit(gradients=str(dtype), error=max(errors), equal=same)


def train_memory(tokens: Tensor, gradients: Tensor, passes: int) -> list[Tensor]:
    """Return the table and its optimizer's state after a step for each of `tokens [steps, B, T]`."""
    model = NGramMemory(torch.full((ROWS, 1, WIDTH), 0.01, device=tokens.device), memory.ORDERS)
    group = ParameterGroup("memory", ("table",), "row_adagrad", 0.01, weight_decay=0.1)
    (optimizer,) = build_optimizers(model, Recipe((group,)))
    for step_tokens, step_gradients in zip(tokens, gradients, strict=True):
        for rows, gradient in zip(step_tokens.chunk(passes), step_gradients.chunk(passes), strict=True):
            with torch.autocast(rows.device.type, torch.bfloat16, enabled=gradient.dtype == torch.bfloat16):
                read = model(rows)
            read.backward(gradient)
        optimizer.step()
        optimizer.zero_grad()
    return [model.table.detach(), optimizer.state[model.table]["square"]]


def time_steps(device: torch.device) -> None:
    """At the tokens of a micro-batch of depth 12, as `python -m benchmarks.memory`."""
    exponents = (8, 10) if is_rehearsal() else (16, 18, 20, 22, 24, 26)
    size = ("--width", "16", "--tokens", "512") if is_rehearsal() else ("--width", "32", "--tokens", "65536")
    options = memory.parse_arguments(["--device", device.type, "--steps", "5" if is_rehearsal() else "20", *size])
    for exponent in exponents:
        emit(**memory.measure(2**exponent, options))


def check_waits(device: torch.device) -> None:
    """Does a step read anything from the GPU? From here on torch then raises."""
    if device.type == "cuda":
        tokens = torch.randint(512, (1, 8, 2048), device=device)
        gradients = torch.randn(1, 8, 2048, 1, WIDTH, device=device)
        torch.cuda.set_sync_debug_mode("error")
        train_memory(tokens, gradients, PASSES)
        emit(waits_for_gpu=False)
