"""`dailytrain profile --arch NAME --out FOLDER`: measure the parts of a training step.

Takes the flags of `dailytrain train`, makes a few steps of that run and writes `trace.json.gz` (for chrome://tracing or
ui.perfetto.dev) and `profile.json` to the folder.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Column, Table

from trainer.bench import machine
from trainer.bench.profiling import WARM_UP, profile_run
from trainer.checkpoint.json_files import atomic_write_json
from trainer.cli.parser import Parser
from trainer.config.parsing import parse_config
from trainer.config.train_config import TrainConfig
from trainer.errors import ExitCode, ModelError, print_error
from trainer.ops import devices
from trainer.training.run import Run
from trainer.training.setup import build_run


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, or JSON. Raise `UserError` for an impossible run."""
    options, flags = parse_arguments(argv)
    budget = f"{WARM_UP + 3 * options.steps}steps"
    config = parse_config([*flags, "--out", str(options.out), "--budget", budget])
    try:
        content = profile_config(config, options.steps)
    except ModelError as error:
        return print_error("dailytrain profile", error, ExitCode.MODEL_ERROR)
    atomic_write_json(options.out / "profile.json", content)
    if options.json:
        sys.stdout.write(json.dumps(content, indent=1) + "\n")
    else:
        print_profile(content, Console())
    return 0


def profile_config(config: TrainConfig, steps: int) -> dict[str, Any]:
    """Build the run as training does and measure some of its steps."""
    trace = config.out / "trace.json.gz"
    run = build_run(config, Console(stderr=True))
    try:
        return {**describe_run(run), "steps": steps, **profile_run(run, steps, trace), "trace": str(trace)}
    finally:
        run.loader.close()


def describe_run(run: Run) -> dict[str, Any]:
    device, resolved = run.fabric.device, run.resolved
    name = "cpu" if device.type == "cpu" else devices.get_gpu_name(device)
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine.describe_machine(name, torch.get_num_threads()),
        "versions": machine.find_versions(),
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


def print_profile(content: dict[str, Any], console: Console) -> None:
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
    console.print(f"trace: {content['trace']} (chrome://tracing, ui.perfetto.dev)", highlight=False, soft_wrap=True)


def parse_arguments(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Return our own options and the flags of the run."""
    description = "Measure the parts of a training step. Other options are those of dailytrain train."
    parser = Parser(prog="dailytrain profile", description=description, allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write: the trace")
    parser.add_argument("--steps", type=int, default=8, help="steps of each measurement (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options, flags = parser.parse_known_args(argv)
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    return options, flags
