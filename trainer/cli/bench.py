"""`dailytrain bench`: tokens per second, MFU and the parts of a training step on this machine.

Takes the flags of `dailytrain train` and makes a few steps of that run. `--out` keeps `bench.json` and `trace.json.gz`
(for chrome://tracing or ui.perfetto.dev).
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Column, Table
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from trainer.checkpoint.files import atomic_write_json
from trainer.cli import Parser, parse_positive_integer
from trainer.config.parsing import parse_config
from trainer.distributed.devices import get_peak_memory_bytes
from trainer.errors import ExitCode, ModelError, print_error
from trainer.ops.devices import get_gpu_name, synchronize
from trainer.training.loop import build_run, run_step
from trainer.training.run import Run

PARTS = ("data", "forward", "backward", "optimizer")
"""The chunked loss (`trainer.ops.losses`) computes the head's gradient in the forward pass."""
WARM_UP = 3  # steps before the measurement
SHOWN_OPERATORS = 20


def main(argv: Sequence[str] | None = None) -> int:
    """Print tables, or JSON. Raise `UserError` for an impossible run."""
    options, flags = parse_arguments(argv)
    with tempfile.TemporaryDirectory() as temporary:
        out = options.out or Path(temporary)
        config = parse_config([*flags, "--out", str(out), "--budget", f"{WARM_UP + 2 * options.steps}steps"])
        try:
            run = build_run(config, Console(stderr=True))
            try:
                content = {**describe_run(run), **measure_run(run, options.steps, out / "trace.json.gz")}
            finally:
                run.loader.close()
        except ModelError as error:
            return print_error("dailytrain bench", error, ExitCode.MODEL_ERROR)
        atomic_write_json(out / "bench.json", content)
    if options.json:
        sys.stdout.write(json.dumps(content, indent=1) + "\n")
    else:
        print_tables(content, Console())
    return 0


def parse_arguments(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Return our own options and the flags of the run."""
    description = "Measure a training step on this machine. Other options are those of dailytrain train."
    parser = Parser(prog="dailytrain bench", description=description, allow_abbrev=False)
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to write: the results and the trace")
    parser.add_argument(
        "--steps", type=parse_positive_integer, default=8, help="steps of each measurement (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_known_args(argv)


def describe_run(run: Run) -> dict[str, Any]:
    device, resolved = run.fabric.device, run.resolved
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": "cpu" if device.type == "cpu" else get_gpu_name(device),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "arch": run.config.arch,
        "model": run.identity["model"],
        "precision": resolved.precision,
        "compiled": resolved.compile,
        "rows": resolved.batch,
        "rows_at_once": resolved.micro_batch,
        "sequence_length": resolved.sequence_length,
        "flops_per_token": run.flops_per_token,
        "peak_flops": run.peak_flops,
    }


def measure_run(run: Run, steps: int, trace: Path) -> dict[str, Any]:
    """Train `steps` twice: for the speed, then under the profiler for the parts. Write the trace.

    `idle` is the share of a step in which the GPU had no work; None on a CPU.
    """
    device = run.fabric.device
    time_steps(run, WARM_UP)
    wall = time_steps(run, steps) / steps
    memory = get_peak_memory_bytes(device)
    label_parts(run)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=activities, acc_events=True) as profiler:
        profiled_wall = time_steps(run, steps)
    profiler.export_chrome_trace(str(trace))
    rows = profiler.key_averages()
    shares = {part: sum(row.cpu_time_total for row in rows if row.key == part) / 1e6 / profiled_wall for part in PARTS}
    tokens_per_second = run.resolved.tokens_per_step / wall
    return {
        "steps": steps,
        "seconds_per_step": wall,
        "tokens_per_second": tokens_per_second,
        **run.compute_mfu(tokens_per_second),
        "shares": {**shares, "other": 1 - sum(shares.values())},
        "peak_memory_bytes": memory,
        "idle": compute_idle_share(profiler, steps * wall) if device.type == "cuda" else None,
        "operators": list_operators([row for row in rows if row.key not in PARTS], steps),
    }


def time_steps(run: Run, steps: int) -> float:
    """Train some steps in the middle of the schedule and return the seconds."""
    synchronize(run.fabric.device)
    started = time.perf_counter()
    for _ in range(steps):
        run_step(run, 0.5)
    synchronize(run.fabric.device)
    return time.perf_counter() - started


def label_parts(run: Run) -> None:
    """Give everything that a step calls a range in the profile, which ends when the GPU has computed it."""

    def label(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call_in_range(*arguments: Any, **options: Any) -> Any:
            with record_function(part):
                result = function(*arguments, **options)
                synchronize(run.fabric.device)
                return result

        return call_in_range

    target: Any
    for target, name, part in (
        (run.loader, "next_batch", "data"),
        (run.objective, "forward", "forward"),
        (run.fabric, "backward", "backward"),
        *((optimizer, name, "optimizer") for optimizer in run.optimizers for name in ("step", "zero_grad")),
    ):
        setattr(target, name, label(part, getattr(target, name)))


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


def list_operators(rows: Sequence[Any], steps: int) -> list[dict[str, Any]]:
    """Return the operators with the largest self time, on the GPU if there is one."""
    on_gpu = any(row.self_device_time_total for row in rows)
    self_time = {row.key: row.self_device_time_total if on_gpu else row.self_cpu_time_total for row in rows}
    total = sum(self_time.values()) or 1.0
    return [
        {
            "name": row.key,
            "calls_per_step": row.count / steps,
            "seconds_per_step": self_time[row.key] / 1e6 / steps,
            "share": self_time[row.key] / total,
        }
        for row in sorted(rows, key=lambda row: self_time[row.key], reverse=True)[:SHOWN_OPERATORS]
    ]


def print_tables(content: dict[str, Any], console: Console) -> None:
    mfu = ""
    if content["mfu"]:
        mfu = f", MFU {content['mfu']:.1%} ({content['mfu_windowed']:.1%} with windows, as nanochat counts)"
    console.print(
        f"{content['arch']}, {content['rows']} rows of {content['sequence_length']} tokens: "
        f"{content['seconds_per_step'] * 1e3:.1f} ms a step, {content['tokens_per_second']:,.0f} tokens/s{mfu}",
        highlight=False,
        soft_wrap=True,
    )
    parts = Table("part of a step", Column("share", justify="right"))
    for name, share in content["shares"].items():
        parts.add_row(name, f"{share:.1%}")
    if content["idle"] is not None:
        parts.add_row("GPU idle", f"{content['idle']:.1%}")
    console.print(parts)
    operators = Table("operator", *(Column(name, justify="right") for name in ("share", "ms a step", "calls")))
    for row in content["operators"]:
        milliseconds = f"{row['seconds_per_step'] * 1e3:.2f}"
        operators.add_row(row["name"], f"{row['share']:.1%}", milliseconds, f"{row['calls_per_step']:.0f}")
    console.print(operators)
