"""`dailytrain sweep SPACE.toml`: ablations and small searches over options, read off one ladder of the baseline.

Finished runs are kept: the same command continues an interrupted sweep. With `--server` a site runs the ablations.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from trainer.accounting.cores import count_cores
from trainer.cli.multiplier import UNITS, print_table
from trainer.cli.parser import Parser
from trainer.cli.site_api import add_site_flags
from trainer.cli.sweep_at_site import run_at_site
from trainer.cli.try_idea import PRESET, open_dataset
from trainer.config.train_config import COMPARISON_CORPUS, DEFAULT_TOKENIZER
from trainer.data.dataset import get_cache_folder
from trainer.errors import ExitCode, print_error
from trainer.trials.plan import BASELINE
from trainer.trials.sweep import RESULTS, Sweep, SweepRun
from trainer.trials.sweep_plot import save_multiplier_svg
from trainer.trials.sweep_space import DRAW, load_space
from trainer.trials.trial_runner import TrialError, TrialRunner

COMMAND = "dailytrain sweep"
KEPT = "finished runs are kept: repeat the command to continue"
PICTURE = "sweep.svg"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table on standard output, progress on standard error. Raise `UserError` for bad input."""
    options = build_parser().parse_args(argv)
    if options.jobs < 1:
        build_parser().error("--jobs must be at least 1")
    space = load_space(options.space)
    if options.server:
        return run_at_site(space, options)
    dataset = open_dataset(options)
    folder = options.out or get_cache_folder().parent / "sweeps" / options.space.stem
    runner = TrialRunner(dataset.folder, PRESET, options.jobs, uses_dev=space.score == "dev", keep_failures=True)
    sweep = Sweep(space, folder, dataset.hash, PRESET, runner)
    try:
        sweep.run(print_run)
    except TrialError as error:
        return print_error(COMMAND, f"{error} ({KEPT})", ExitCode.INFRASTRUCTURE)
    except KeyboardInterrupt:
        return print_error(COMMAND, f"interrupted; {KEPT}", ExitCode.INTERRUPTED)
    return finish(sweep, options)


def print_run(run: SweepRun, row: Mapping[str, Any], done: int, total: int) -> None:
    result = row.get("failed") or f"{row['bits_per_byte']:.4f} bits per byte"
    line = f"{done:3} of {total}  {run.name}, {run.trial.budget}, seed {run.trial.seed}: {result}"
    Console(stderr=True).print(line, highlight=False, markup=False)


def finish(sweep: Sweep, options: argparse.Namespace) -> int:
    """Compare the entries; write `sweep.json` and the picture; print the table."""
    comparison = sweep.compare(options.axis)
    sweep.save(comparison)
    picture = sweep.folder / PICTURE
    save_multiplier_svg(comparison, picture, f"{sweep.space.budget} against {BASELINE}, by {UNITS[options.axis]}")
    if options.json:
        sys.stdout.write(json.dumps(sweep.to_dict(comparison), indent=2, allow_nan=False) + "\n")
        return ExitCode.OK
    print_table(comparison)
    for name, entry in sweep.entries.items():
        if name.startswith(DRAW) and any(row["entry"] == name for row in sweep.rows):
            sys.stdout.write(f"{name}: {entry.name}\n")
    for row in sweep.rows:
        if "failed" in row:
            sys.stdout.write(f"{row['entry']}, seed {row['seed']} failed: {row['failed']}\n")
    sys.stdout.write(f"Runs: {sweep.folder / RESULTS}\nPicture: {picture}\n")
    return ExitCode.OK


def build_parser() -> Parser:
    parser = Parser(
        prog=COMMAND,
        description="Run ablations or a small search over options, and print each one's compute multiplier.",
        epilog="docs/how-to/sweeps.md explains the file.",
    )
    add = parser.add_argument
    add("space", type=Path, metavar="SPACE.toml", help="what to run")
    add("--axis", choices=sorted(UNITS), default="flops", help="what compute means (%(default)s)")
    add("--corpus", default=COMPARISON_CORPUS, help="text to train on and to score (%(default)s)")
    add("--tokenizer", default=DEFAULT_TOKENIZER, help="%(default)s")
    add("--dataset", type=Path, help="a prepared dataset instead")
    add("--jobs", type=int, default=count_cores(), help="runs at a time, one thread each (%(default)s)")
    add("--out", type=Path, metavar="DIR", help="folder of the sweep (default: by the file's name, in the cache)")
    add_site_flags(parser)
    add("--json", action="store_true", help="print JSON")
    return parser
