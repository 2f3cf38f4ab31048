"""`dailytrain bench`: tokens per second of our implementation and of others, on one shape."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from trainer.bench import machine
from trainer.bench.results import build_results, print_results
from trainer.bench.round_robin import RoundRobin, run_repeats
from trainer.bench.spec import GPU_SHAPE, PEERS, ContenderSpec, Shape, ShapeError
from trainer.cli.parser import Parser, add_device_flag
from trainer.errors import ExitCode, UserError, print_error

SHAPE_HELP = {
    "depth": "blocks",
    "width": "size of the residual stream",
    "heads": "attention heads",
    "sequence_length": "tokens in a row",
    "batch": "rows in a step",
    "vocabulary_size": "tokens of the vocabulary",
    "threads": "CPU threads of torch",
}

OURS = ("nanogpt", "gpt")
"""GPT-2's architecture in our implementation, and the baseline, which does more element-wise work."""
SECONDS = {"cpu": 40.0, "cuda": 120.0}  # default duration of the whole benchmark
PEAK_SOURCES = {
    "cpu": "the fastest fp32 product of two matrices of 1024 x 1024 in this run",
    "cuda": "dense bf16, from the vendor's data sheet",
}
ENDING = 2.0  # seconds reserved for the reports and the end of the processes


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table or JSON; return 1 if all contenders failed. Raise `UserError` for an impossible shape."""
    started = time.monotonic()
    options = parse_arguments(argv)
    content = run_benchmark(build_specs(options, build_shape(options)), options, started)
    if options.json:
        sys.stdout.write(json.dumps(content, indent=1) + "\n")
    else:
        print_results(content, Console())
    for row in content["contenders"]:
        if row["error"]:
            print_error("dailytrain bench", f"{row['name']}: {row['error']}", ExitCode.INFRASTRUCTURE)
    succeeded = any(row["tokens_per_second"] for row in content["contenders"])
    return ExitCode.OK if succeeded else ExitCode.INFRASTRUCTURE


def run_benchmark(specs: Sequence[ContenderSpec], options: argparse.Namespace, started: float) -> dict[str, Any]:
    """Start the contenders, run repeats until the time is over, and return all results as plain values."""
    shape = specs[0].shape
    seconds = options.seconds or SECONDS[shape.device] * (4 if options.compile else 1)
    with RoundRobin(specs) as round_robin:
        deadline = started + seconds - ENDING
        repeats = run_repeats(round_robin, steps=options.steps, repeats=options.repeats, deadline=deadline)
        round_robin.report()
    device = next((row.facts["device"] for row in round_robin.results if "device" in row.facts), shape.device)
    peak = max((row.facts["peak"] for row in round_robin.results if row.facts.get("peak")), default=None)
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine.describe_machine(device, shape.threads),
        "versions": machine.find_versions(),
        "shape": dataclasses.asdict(shape),
        "described": shape.describe(),
        "steps_per_repeat": options.steps,
        "repeats": repeats,
        "peak_flops": peak,
        "peak_source": PEAK_SOURCES["cpu" if device == "cpu" else "cuda"],
        **build_results(round_robin, peak),
        "seconds": time.monotonic() - started,
    }


def build_shape(options: argparse.Namespace) -> Shape:
    """Return the default shape of the device, changed by the options."""
    device = options.device
    if device == "auto":
        device = "cuda" if shutil.which("nvidia-smi") else "cpu"
    start = GPU_SHAPE if device == "cuda" else Shape()
    names = [field.name for field in dataclasses.fields(Shape) if field.name != "device"]
    changes = {name: value for name in names if (value := getattr(options, name)) is not None}
    if options.shape:
        changes = {**parse_shape(options.shape), **changes}
    return dataclasses.replace(start, **changes)


def parse_shape(text: str) -> dict[str, int]:
    """Parse `LAYERSxWIDTH`; the size of heads is 64."""
    depth, _, width = text.partition("x")
    if not (depth.isdigit() and width.isdigit()):
        raise ShapeError(f"--shape is LAYERSxWIDTH, such as 12x768, not {text!r}")
    return {"depth": int(depth), "width": int(width), "heads": max(1, int(width) // 64)}


def build_specs(options: argparse.Namespace, shape: Shape) -> list[ContenderSpec]:
    """Return the contenders in the order of their turns."""
    from trainer.models import ARCHITECTURES

    names = options.only.split(",") if options.only else [*OURS, *PEERS]
    unknown = next((name for name in names if name not in (*ARCHITECTURES, *PEERS)), None)
    if unknown is not None:
        known = ", ".join(dict.fromkeys((*OURS, *PEERS, *ARCHITECTURES)))
        raise UserError(f"there is no contender {unknown!r}; they are {known}")
    forms = [*([] if options.compiled_only else [False]), *([True] if options.compile or options.compiled_only else [])]
    return [ContenderSpec(name, compiled, shape) for compiled in forms for name in names]


def build_parser() -> Parser:
    parser = Parser(prog="dailytrain bench", description="Compare our speed with litgpt and plain torch.")
    parser.add_argument("--shape", help="LAYERSxWIDTH (4x256; on a GPU 12x768)")
    for field in dataclasses.fields(Shape):
        if field.name != "device":
            parser.add_argument(
                f"--{field.name.replace('_', '-')}",
                type=int,
                help=f"{SHAPE_HELP[field.name]} (on a CPU {field.default})",
            )
    add_device_flag(parser)
    parser.add_argument("--compile", action="store_true", help="also compiled by torch.compile")
    parser.add_argument("--compiled-only", action="store_true", help="only the compiled forms")
    parser.add_argument("--only", help="contenders, separated by commas")
    parser.add_argument("--steps", type=int, default=2, help="timed steps of a turn (%(default)s)")
    parser.add_argument("--repeats", type=int, default=10, help="turns of each, at most (%(default)s)")
    parser.add_argument("--seconds", type=float, help="end by then (40; on a GPU 120; x4 compiled)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = build_parser()
    options = parser.parse_args(argv)
    if options.steps < 1 or options.repeats < 1:
        parser.error("--steps and --repeats must be at least 1")
    return options
