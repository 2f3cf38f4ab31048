"""Profile a training step: its parts with a clock, its operators with torch's profiler.

The methods that a step calls (loader, model, Fabric, optimizers) are wrapped, so that the real step is measured.
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

from trainer.distributed.devices import get_peak_memory_bytes
from trainer.ops.devices import synchronize
from trainer.training.loop import run_step
from trainer.training.run import Run

PARTS = ("data", "forward", "backward", "optimizer")
"""The chunked loss (`trainer.ops.losses`) computes the head's gradient in the forward pass."""
WARM_UP = 3  # steps before the measurement


@dataclass
class StepTimer:
    """Time each part of a step. On a GPU it synchronizes at both ends, which costs some overlap."""

    device: torch.device
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    is_running: bool = False

    @contextmanager
    def time_part(self, part: str) -> Iterator[None]:
        with record_function(part):
            if not self.is_running:
                yield
                return
            synchronize(self.device)
            started = time.perf_counter()
            yield
            synchronize(self.device)
            self.seconds[part] += time.perf_counter() - started

    def wrap(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed_call(*arguments: Any, **options: Any) -> Any:
            with self.time_part(part):
                return function(*arguments, **options)

        return timed_call


def attach_timer(timer: StepTimer, run: Run) -> None:
    """Wrap everything that a step calls."""
    target: Any
    for target, name, part in (
        (run.loader, "next_batch", "data"),
        (run.objective, "forward", "forward"),
        (run.fabric, "backward", "backward"),
        *((optimizer, name, "optimizer") for optimizer in run.optimizers for name in ("step", "zero_grad")),
    ):
        setattr(target, name, timer.wrap(part, getattr(target, name)))


def profile_run(run: Run, steps: int, trace: Path) -> dict[str, Any]:
    """Train `steps` three times: for the speed, the parts and the operators. Write the trace.

    `idle` is the share of an untimed step in which the GPU had no work; None on a CPU.
    """
    timer = StepTimer(run.fabric.device)
    attach_timer(timer, run)
    time_steps(run, WARM_UP)
    wall = time_steps(run, steps) / steps
    timer.is_running = True
    timed_wall = time_steps(run, steps)
    timer.is_running = False
    memory = get_peak_memory_bytes(run.fabric.device)
    with profile(activities=list_activities(run.fabric.device), acc_events=True) as profiler:
        time_steps(run, steps)
    profiler.export_chrome_trace(str(trace))
    shares = {part: timer.seconds[part] / timed_wall for part in PARTS}
    tokens_per_second = run.resolved.tokens_per_step / wall
    return {
        "seconds_per_step": wall,
        "tokens_per_second": tokens_per_second,
        **run.compute_mfu(tokens_per_second),
        "shares": {**shares, "other": 1 - sum(shares.values())},
        "peak_memory_bytes": memory,
        "idle": compute_idle_share(profiler, steps * wall) if run.fabric.device.type == "cuda" else None,
        "operators": list_operators(profiler, steps),
    }


def time_steps(run: Run, steps: int) -> float:
    """Train some steps in the middle of the schedule and return the seconds."""
    synchronize(run.fabric.device)
    started = time.perf_counter()
    for _ in range(steps):
        run_step(run, 0.5)
    synchronize(run.fabric.device)
    return time.perf_counter() - started


def list_activities(device: torch.device) -> list[ProfilerActivity]:
    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]


def compute_idle_share(profiler: profile, wall: float) -> float:
    """Return the share of `wall` seconds without a kernel. The profiler does not slow down kernels."""
    kernels = [
        (event.time_range.start, event.time_range.end)
        for event in profiler.events() or ()
        if event.device_type == DeviceType.CUDA and event.name not in PARTS
    ]
    return max(0.0, 1 - compute_union_length(kernels) / 1e6 / wall)


def compute_union_length(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of spans."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def list_operators(profiler: profile, steps: int, limit: int = 20) -> list[dict[str, Any]]:
    """Return the operators with the largest self time, on the GPU if there is one."""
    rows = [row for row in profiler.key_averages() if row.key not in PARTS]
    on_gpu = any(row.self_device_time_total for row in rows)
    self_time = {row.key: row.self_device_time_total if on_gpu else row.self_cpu_time_total for row in rows}
    total = sum(self_time.values()) or 1.0
    rows.sort(key=lambda row: self_time[row.key], reverse=True)
    return [
        {
            "name": row.key,
            "calls_per_step": row.count / steps,
            "seconds_per_step": self_time[row.key] / 1e6 / steps,
            "share": self_time[row.key] / total,
        }
        for row in rows[:limit]
    ]
