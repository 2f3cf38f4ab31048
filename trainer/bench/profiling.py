"""Where the time of a training step goes: its parts by the clock, its operators by torch's profiler.

The loop is watched from outside, through the objects that it calls (loader, model, Fabric, optimizers): it is the loop
itself that is measured.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from trainer.distributed.devices import memory_bytes
from trainer.train import train_step
from trainer.training.run import Run

PARTS = ("data", "forward", "backward", "optimizer")
"""The loss over chunks (`trainer.training.objective`) finds the gradient of the head in the forward pass."""

WARM_UP = 3
"""Steps before anything is measured."""


@dataclass
class Watch:
    """A clock on each part of a step. On a GPU it waits for the device at both ends, which costs some overlap."""

    device: torch.device
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    running: bool = False

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        with record_function(part):
            if not self.running:
                yield
                return
            synchronize(self.device)
            started = time.perf_counter()
            yield
            synchronize(self.device)
            self.seconds[part] += time.perf_counter() - started

    def around(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **options: Any) -> Any:
            with self.on(part):
                return function(*arguments, **options)

        return watched


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def attach(watch: Watch, run: Run) -> None:
    """Put the clock around everything that a step calls."""
    spot: Any
    for spot, name, part in (
        (run.loader, "next_batch", "data"),
        (run.objective, "forward", "forward"),
        (run.fabric, "backward", "backward"),
        *((optimizer, name, "optimizer") for optimizer in run.optimizers for name in ("step", "zero_grad")),
    ):
        setattr(spot, name, watch.around(part, getattr(spot, name)))


def measure(run: Run, steps: int, trace: Path) -> dict[str, Any]:
    """Train some steps three times over: for the speed, for the parts, and for the operators; write the trace.

    `idle` is the part of an unwatched step in which a GPU had nothing to do; None on a CPU.
    """
    watch = Watch(run.fabric.device)
    attach(watch, run)
    timed(run, WARM_UP)
    wall = timed(run, steps) / steps
    watch.running = True
    watched = timed(run, steps)
    watch.running = False
    memory = memory_bytes(run.fabric.device)
    with profile(activities=activities(run.fabric.device), acc_events=True) as profiler:
        timed(run, steps)
    profiler.export_chrome_trace(str(trace))
    shares = {part: watch.seconds[part] / watched for part in PARTS}
    tokens_per_second = run.resolved.tokens_per_step / wall
    return {
        "seconds_per_step": wall,
        "tokens_per_second": tokens_per_second,
        "mfu": tokens_per_second * run.flops_per_token / run.peak_flops if run.peak_flops else None,
        "shares": {**shares, "other": 1 - sum(shares.values())},
        "peak_memory_bytes": memory,
        "idle": idle(profiler, steps * wall) if run.fabric.device.type == "cuda" else None,
        "operators": operators(profiler, steps),
    }


def timed(run: Run, steps: int) -> float:
    """Train some steps in the middle of the schedule; return the seconds."""
    synchronize(run.fabric.device)
    started = time.perf_counter()
    for _ in range(steps):
        train_step(run, 0.5)
    synchronize(run.fabric.device)
    return time.perf_counter() - started


def activities(device: torch.device) -> list[ProfilerActivity]:
    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]


def idle(profiler: profile, wall: float) -> float:
    """Return the part of `wall` seconds that no kernel fills. Kernels take as long whether they are watched or not."""
    kernels = [
        (event.time_range.start, event.time_range.end)
        for event in profiler.events() or ()
        if event.device_type == DeviceType.CUDA and event.name not in PARTS
    ]
    return max(0.0, 1 - covered(kernels) / 1e6 / wall)


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of spans."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def operators(profiler: profile, steps: int, most: int = 20) -> list[dict[str, Any]]:
    """Return the operators that take most of the time themselves: on the GPU where there is one."""
    rows = [row for row in profiler.key_averages() if row.key not in PARTS]
    on_gpu = any(row.self_device_time_total for row in rows)
    spent = {row.key: row.self_device_time_total if on_gpu else row.self_cpu_time_total for row in rows}
    whole = sum(spent.values()) or 1.0
    rows.sort(key=lambda row: spent[row.key], reverse=True)
    return [
        {
            "name": row.key,
            "calls_per_step": row.count / steps,
            "seconds_per_step": spent[row.key] / 1e6 / steps,
            "share": spent[row.key] / whole,
        }
        for row in rows[:most]
    ]
