"""`dailytrain try ARCH`: train an idea and a small ladder of the baseline on this machine, and compare them.

The baseline's ladder is trained once and reused; each further idea costs only its own runs. Flags of `dailytrain train`
for the model and the recipe (`--model.depth=3`) are part of the idea.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from trainer.accounting.cores import count_cores
from trainer.cli.multiplier import UNITS, print_table
from trainer.cli.parser import Parser
from trainer.config.train_config import COMPARISON_CORPUS, DEFAULT_TOKENIZER, SHORT_TEXT
from trainer.data.dataset import Dataset, get_cache_folder, prepare_dataset
from trainer.errors import ExitCode, print_error
from trainer.scoring.multiplier import Axis, TrackComparison, compare_entries, parse_results
from trainer.trials.plan import BASELINE, BUDGET, RUNGS, SEEDS, Entry, TrialPlan, plan_trials
from trainer.trials.plot import LossPlot
from trainer.trials.trial_runner import TrialError, TrialRunner

PRESET = "cpu-ladder"
ENTRY_FLAGS = ("--model.", "--recipe.")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the verdict on standard output, everything else on standard error. Raise `UserError` for bad input."""
    options, flags = parse_arguments(argv)
    try:
        return try_idea(options, flags)
    except TrialError as error:
        message = f"{error} (finished runs are kept: repeat the command to continue)"
        return print_error("dailytrain try", message, ExitCode.INFRASTRUCTURE)
    except KeyboardInterrupt:
        message = "interrupted; finished runs are kept: repeat the command to continue"
        return print_error("dailytrain try", message, ExitCode.INTERRUPTED)


def try_idea(options: argparse.Namespace, flags: Sequence[str]) -> int:
    idea = Entry(arch=options.arch, flags=tuple(flags))
    dataset = open_dataset(options)
    plan = plan_trials(
        idea,
        budget=options.budget,
        rungs=options.rungs,
        seeds=options.seeds,
        dataset=dataset.hash,
        preset=PRESET,
        folder=options.home,
        eager=options.eager,
    )
    records = run_plan(plan, TrialRunner(dataset.folder, PRESET, options.jobs, options.eager))
    comparison = compare_records(plan, records, options.axis)
    plot = LossPlot.from_comparison(comparison, parse_results(records))
    picture = save_results(plan, records, comparison, plot, options.home)
    if options.json:
        content = {**comparison.to_dict(), "runs": records, "picture": str(picture)}
        sys.stdout.write(json.dumps(content, indent=2, allow_nan=False) + "\n")
        return ExitCode.OK
    print_table(comparison)
    sys.stdout.write(
        f"\n{plot.to_text()}\n"
        f"bits per byte over training {UNITS[comparison.axis]}: o {plan.baseline.name}, x {plan.idea.name}\n"
        f"Picture: {picture}\n"
    )
    return ExitCode.OK


def open_dataset(options: argparse.Namespace) -> Dataset:
    if options.dataset is not None:
        return Dataset.open(options.dataset)
    return prepare_dataset(options.corpus, options.tokenizer, limit_bytes=SHORT_TEXT, progress=True)


def run_plan(plan: TrialPlan, runner: TrialRunner) -> list[dict[str, Any]]:
    """Return a record for each trial in the plan's order. Print each one when it is ready."""
    console, total = Console(stderr=True), len(plan.trials)
    records: dict[Path, dict[str, Any]] = {}
    with console.status(f"0 of {total} runs") as status:
        for trial, record in runner.run_trials(plan.trials):
            records[trial.folder] = record
            status.update(f"{len(records)} of {total} runs")
            line = f"{len(records):3} of {total}  {trial}: {record['bits_per_byte']:.4f} bits per byte"
            console.print(line, highlight=False, markup=False)
    return [records[trial.folder] for trial in plan.trials]


def compare_records(plan: TrialPlan, records: Sequence[dict[str, Any]], axis: Axis) -> TrackComparison:
    """Compare the idea with the ladder. The full budget is the mean compute of the baseline's runs at rung 1."""
    full = [
        record[axis]
        for trial, record in zip(plan.trials, records, strict=True)
        if trial.entry == plan.baseline and trial.share == 1 and record[axis]
    ]
    return compare_entries(
        parse_results(list(records)), plan.baseline.name, axis, sum(full) / len(full) if full else None
    )


def save_results(
    plan: TrialPlan, records: Sequence[dict[str, Any]], comparison: TrackComparison, plot: LossPlot, folder: Path
) -> Path:
    """Write the records and the picture; return the picture's path."""
    name = "".join(letter if letter.isalnum() else "-" for letter in plan.idea.name)[:80]
    (folder / f"{name}.json").write_text(json.dumps({"runs": list(records)}, indent=1))
    picture = folder / f"{name}.svg"
    title = f"{plan.idea.name} and {plan.baseline.name}"
    plot.save_svg(picture, title, plan.baseline.name, plan.idea.name, UNITS[comparison.axis])
    return picture


def build_parser() -> Parser:
    parser = Parser(
        prog="dailytrain try",
        description="Train an idea and a small ladder of the baseline here, and print its compute multiplier.",
        epilog="Flags like --model.depth=3 or --recipe.matrices.learning_rate=0.01 are part of the idea.",
    )
    add = parser.add_argument
    add("arch", help=f"a name from `dailytrain arch list`; {BASELINE} alone trains only the ladder")
    add("--budget", default=BUDGET, help="of the idea's runs, which is rung 1 of the ladder (%(default)s)")
    add("--rungs", type=parse_shares, default=RUNGS, help="of the ladder, as shares of the budget (0.25,0.5,1,2)")
    add("--seeds", type=int, default=SEEDS, help="runs at each rung and of the idea (%(default)s)")
    add("--axis", choices=sorted(UNITS), default="flops", help="what compute means (%(default)s)")
    add("--corpus", default=COMPARISON_CORPUS, help="text to train on and to score (%(default)s)")
    add("--tokenizer", default=DEFAULT_TOKENIZER, help="%(default)s")
    add("--dataset", type=Path, help="a prepared dataset instead")
    add("--jobs", type=int, default=count_cores(), help="runs at a time, one thread each (%(default)s)")
    add(
        "--home",
        type=Path,
        default=get_cache_folder().parent / "trials",
        metavar="DIR",
        help="where it keeps its files (%(default)s)",
    )
    add("--eager", action="store_true", help="train Python modules, for debugging, instead of traced graphs")
    add("--json", action="store_true", help="print JSON")
    return parser


def parse_arguments(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    parser = build_parser()
    options, rest = parser.parse_known_args(argv)
    unknown = [flag for flag in rest if not flag.startswith(ENTRY_FLAGS) or "=" not in flag]
    if unknown:
        parser.error(f"there is no option {unknown[0]}; flags of the idea are written --model.NAME=VALUE")
    if options.jobs < 1:
        parser.error("--jobs must be at least 1")
    return options, rest


def parse_shares(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be numbers separated by commas, not {text!r}") from None
