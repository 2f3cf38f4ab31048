"""`dailytrain profile --arch NAME --out FOLDER`: where the time of a training step goes.

Takes what `dailytrain train` takes, makes a few steps of that run and leaves `trace.json.gz` (for chrome://tracing or
ui.perfetto.dev) and `profile.json` in the folder.
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

from trainer import errors
from trainer.bench import machine
from trainer.bench.profiling import WARM_UP, profile_run
from trainer.checkpoint.json_files import atomic_write_json
from trainer.cli.parser import Parser
from trainer.config.parsing import parse_config
from trainer.config.train_config import TrainConfig
from trainer.errors import ModelError
from trainer.models import ARCHITECTURES
from trainer.training import entry_integrity
from trainer.training.run import Run
from trainer.training.setup import build_run


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, or JSON; return 2, with one line on standard error, for a run that cannot be."""
    options, rest = arguments(argv)
    budget = f"{WARM_UP + 3 * options.steps}steps"
    try:
        config = parse_config([*rest, "--out", str(options.out), "--budget", budget])
        content = profiled(config, options.steps)
    except ValueError as error:
        return complain(error, errors.ExitCode.USER_ERROR)
    except ModelError as failure:
        return complain(failure, errors.ExitCode.MODEL_ERROR)
    atomic_write_json(options.out / "profile.json", content)
    if options.json:
        sys.stdout.write(json.dumps(content, indent=1) + "\n")
    else:
        show(content, Console())
    return 0


def complain(error: Exception, code: int) -> int:
    sys.stderr.write(f"dailytrain profile: {' '.join(str(error).split())}\n")
    return code


def profiled(config: TrainConfig, steps: int) -> dict[str, Any]:
    """Set the run up as training does, and measure some steps of it."""
    trace = config.out / "trace.json.gz"
    with entry_integrity.EntryIntegrity(ARCHITECTURES.get(config.arch, entry_integrity.BASE)) as guard:
        run = build_run(config, Console(stderr=True), guard)
        try:
            return {**described(run), "steps": steps, **profile_run(run, steps, trace), "trace": str(trace)}
        finally:
            run.loader.close()


def described(run: Run) -> dict[str, Any]:
    device = run.fabric.device
    name = "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)
    resolved = run.resolved
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


def show(content: dict[str, Any], console: Console) -> None:
    mfu = f", MFU {content['mfu']:.1%}" if content["mfu"] else ""
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


def arguments(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Return our own options and those of the run."""
    about = "Where the time of a training step goes. Other options are those of dailytrain train."
    parser = Parser(prog="dailytrain profile", description=about, allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write: the trace")
    parser.add_argument("--steps", type=int, default=8, help="steps of each measurement (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options, rest = parser.parse_known_args(argv)
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    return options, rest
