"""`dailytrain bench`: tokens per second of our systems and of peers, on one shape, in one run."""

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
from trainer.bench.results import results, show
from trainer.bench.spec import ON_GPU, PEERS, Shape, Spec
from trainer.bench.turns import Turns, timed_turns
from trainer.cli.parser import Parser

OURS = ("nanogpt", "gpt")
"""GPT-2's arrangement through our systems, and the baseline, which does more element-wise work."""

SECONDS = {"cpu": 40.0, "cuda": 120.0}
"""Of the whole benchmark, unless told otherwise."""

ENDING = 2.0
"""Seconds kept for the last questions and the end of the processes."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, or JSON; return 2, with one line on standard error, for bad input, 1 if everyone failed."""
    started = time.monotonic()
    options = arguments(argv)
    try:
        specs = contenders(options, shape_of(options))
    except ValueError as error:
        sys.stderr.write(f"dailytrain bench: {error}\n")
        return 2
    content = measured(specs, options, started)
    if options.json:
        sys.stdout.write(json.dumps(content, indent=1) + "\n")
    else:
        show(content, Console())
    for row in content["contenders"]:
        if row["error"]:
            sys.stderr.write(f"dailytrain bench: {row['name']}: {row['error']}\n")
    return 0 if any(row["tokens_per_second"] for row in content["contenders"]) else 1


def measured(specs: Sequence[Spec], options: argparse.Namespace, started: float) -> dict[str, Any]:
    """Start everyone, give out turns until the time is over, and return all figures as plain values."""
    shape = specs[0].shape
    seconds = options.seconds or SECONDS[shape.device] * (4 if options.compile else 1)
    with Turns(specs) as turns:
        deadline = started + seconds - ENDING
        repeats = timed_turns(turns, steps=options.steps, repeats=options.repeats, deadline=deadline)
        turns.report()
    device = next((row.facts["device"] for row in turns.rows if "device" in row.facts), shape.device)
    peak, source = peak_of(turns, device)
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine.described(device, shape.threads),
        "versions": machine.versions(),
        "shape": dataclasses.asdict(shape),
        "described": shape.described(),
        "steps_per_repeat": options.steps,
        "repeats": repeats,
        "peak_flops": peak,
        "peak_source": source,
        **results(turns, peak),
        "seconds": time.monotonic() - started,
    }


def peak_of(turns: Turns, device: str) -> tuple[float | None, str]:
    """Return the FLOP/s that MFU is told of, and where they are from."""
    peak = max((row.facts["peak"] for row in turns.rows if row.facts.get("peak")), default=None)
    if device == "cpu":
        return peak, "the fastest fp32 product of two matrices of 1024 x 1024 in this run"
    return peak, "dense bf16, from the vendor's data sheet"


def shape_of(options: argparse.Namespace) -> Shape:
    """Return the device's shape with what was given. Raises ValueError."""
    device = options.device
    if device == "auto":
        device = "cuda" if shutil.which("nvidia-smi") else "cpu"
    start = ON_GPU if device == "cuda" else Shape()
    names = [field.name for field in dataclasses.fields(Shape) if field.name != "device"]
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    if options.shape:
        given = {**parsed(options.shape), **given}
    return dataclasses.replace(start, **given)


def parsed(text: str) -> dict[str, int]:
    """Read `LAYERSxWIDTH`, with the usual heads of 64."""
    depth, _, width = text.partition("x")
    if not (depth.isdigit() and width.isdigit()):
        raise ValueError(f"--shape is LAYERSxWIDTH, such as 12x768, not {text!r}")
    return {"depth": int(depth), "width": int(width), "heads": max(1, int(width) // 64)}


def contenders(options: argparse.Namespace, shape: Shape) -> list[Spec]:
    """Return who takes part, in the order of the turns. Raises ValueError for a name that there is not."""
    from trainer.models import ARCHITECTURES

    names = options.only.split(",") if options.only else [*OURS, *PEERS]
    unknown = next((name for name in names if name not in (*ARCHITECTURES, *PEERS)), None)
    if unknown is not None:
        known = ", ".join(dict.fromkeys((*OURS, *PEERS, *ARCHITECTURES)))
        raise ValueError(f"there is no contender {unknown!r}; they are {known}")
    forms = [*([] if options.compiled_only else [False]), *([True] if options.compile or options.compiled_only else [])]
    return [Spec(name, compiled, shape) for compiled in forms for name in names]


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="dailytrain bench", description="Our systems beside litgpt's and torch's, on one shape.")
    parser.add_argument("--shape", help="LAYERSxWIDTH (4x256; on a GPU 12x768)")
    for field in dataclasses.fields(Shape):
        if field.name != "device":
            parser.add_argument(f"--{field.name.replace('_', '-')}", type=int, help=f"(on a CPU {field.default})")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--compile", action="store_true", help="also everyone compiled by torch.compile")
    parser.add_argument("--compiled-only", action="store_true", help="only the compiled forms")
    parser.add_argument("--only", help="contenders, with commas between them")
    parser.add_argument("--steps", type=int, default=2, help="timed steps of a turn (%(default)s)")
    parser.add_argument("--repeats", type=int, default=10, help="turns of each, at most (%(default)s)")
    parser.add_argument("--seconds", type=float, help="end by then (40; on a GPU 120; x4 compiled)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)
    if options.steps < 1 or options.repeats < 1:
        parser.error("--steps and --repeats must be at least 1")
    return options
