"""`dailytrain try IDEA`: train an idea and a small ladder of the baseline on this machine, and compare them.

The baseline's ladder is trained once and reused; each further idea costs only its own runs. Flags of `dailytrain train`
for the model and the recipe (`--model.depth=3`) are part of the idea. A file of settings (`trainer.trials.plan`) names
several ideas.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from trainer.accounting.cores import count_cores
from trainer.cli import Parser
from trainer.cli.multiplier import UNITS, print_table
from trainer.config.train_config import COMPARISON_CORPUS, DEFAULT_TOKENIZER, SHORT_TEXT
from trainer.data.dataset import Dataset, get_cache_folder, prepare_dataset
from trainer.errors import ExitCode, print_error
from trainer.scoring.multiplier import Axis, TrackComparison, compare_entries, parse_results
from trainer.trials.plan import (
    BASELINE,
    BUDGET,
    RUNGS,
    SEEDS,
    Entry,
    PlanError,
    Trial,
    TrialPlan,
    load_ideas,
    plan_trials,
)
from trainer.trials.plot import LossPlot
from trainer.trials.trial_runner import TrialError, TrialRunner

COMMAND = "dailytrain try"
PRESET = "cpu-ladder"
ENTRY_FLAGS = ("--model.", "--recipe.")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the verdict on standard output, everything else on standard error. Raise `UserError` for bad input."""
    options, flags = parse_arguments(argv)
    try:
        return try_ideas(options, flags)
    except TrialError as error:
        message = f"{error} (finished runs are kept: repeat the command to continue)"
        return print_error(COMMAND, message, ExitCode.INFRASTRUCTURE)
    except KeyboardInterrupt:
        message = "interrupted; finished runs are kept: repeat the command to continue"
        return print_error(COMMAND, message, ExitCode.INTERRUPTED)


def try_ideas(options: argparse.Namespace, flags: Sequence[str]) -> int:
    baseline, ideas, title = parse_ideas(options.idea, flags)
    dataset = open_dataset(options)
    plan = plan_trials(
        baseline,
        ideas,
        title=title,
        budget=options.budget,
        rungs=options.rungs,
        seeds=options.seeds,
        dataset=dataset.hash,
        preset=PRESET,
        folder=options.home,
        eager=options.eager,
    )
    runner = TrialRunner(dataset.folder, PRESET, options.jobs, options.eager, uses_dev=options.score == "dev")
    rows = run_plan(plan, runner)
    for trial, record in rows:
        if "failed" in record and (trial.entry == baseline or len(ideas) == 1):
            return print_error(COMMAND, f"{trial}: {record['failed']}", ExitCode.MODEL_ERROR)
    records = [record for _, record in rows if "failed" not in record]
    comparison = compare_records(plan, rows, options.axis)
    plot = LossPlot.from_comparison(comparison, parse_results(records))
    picture = save_results(plan, records, comparison, plot, options.home)
    if options.json:
        content = {**comparison.to_dict(), "runs": records, "picture": str(picture)}
        sys.stdout.write(json.dumps(content, indent=2, allow_nan=False) + "\n")
        return ExitCode.OK
    print_table(comparison)
    sys.stdout.write(
        f"\n{plot.to_text()}\n"
        f"bits per byte over training {UNITS[comparison.axis]}: o {plan.baseline.name}, x {plan.title}\n"
        f"{describe_more_seeds(comparison, options.seeds)}"
        f"Picture: {picture}\nRuns that a repeated command reuses: {options.home}\n"
    )
    return ExitCode.OK


def parse_ideas(name: str, flags: Sequence[str]) -> tuple[Entry, list[Entry], str]:
    """Return the baseline, the ideas, and a title for all of them."""
    if name.endswith(".toml"):
        if flags:
            raise PlanError(f"{flags[0]} belongs into {name}, in the table of an idea")
        return *load_ideas(Path(name)), Path(name).stem
    baseline, idea = Entry(arch=BASELINE), Entry(arch=name, flags=tuple(flags))
    return baseline, [] if idea == baseline else [idea], idea.name


def open_dataset(options: argparse.Namespace) -> Dataset:
    if options.dataset is not None:
        return Dataset.open(options.dataset)
    return prepare_dataset(options.corpus, options.tokenizer, limit_bytes=SHORT_TEXT, progress=True)


def run_plan(plan: TrialPlan, runner: TrialRunner) -> list[tuple[Trial, dict[str, Any]]]:
    """Return the trials in the plan's order with their records. Print each one when it is ready."""
    console, total = Console(stderr=True), len(plan.trials)
    records: dict[Path, dict[str, Any]] = {}
    with console.status(f"0 of {total} runs") as status:
        for trial, record in runner.run_trials(plan.trials):
            records[trial.folder] = record
            status.update(f"{len(records)} of {total} runs")
            result = record.get("failed") or f"{record['bits_per_byte']:.4f} bits per byte"
            console.print(f"{len(records):3} of {total}  {trial}: {result}", highlight=False, markup=False)
    return [(trial, records[trial.folder]) for trial in plan.trials]


def compare_records(plan: TrialPlan, rows: Sequence[tuple[Trial, dict[str, Any]]], axis: Axis) -> TrackComparison:
    """Compare the ideas with the ladder. The full budget is the mean compute of the baseline's runs at rung 1."""
    full = [
        record[axis] for trial, record in rows if trial.entry == plan.baseline and trial.share == 1 and record[axis]
    ]
    records = [record for _, record in rows if "failed" not in record]
    return compare_entries(parse_results(records), plan.baseline.name, axis, sum(full) / len(full) if full else None)


def describe_more_seeds(comparison: TrackComparison, seeds: int) -> str:
    """Return how wide the first idea's interval would be with more seeds and the same noise; empty without an idea."""
    ideas = [row for row in comparison.entries if row.entry != comparison.baseline]
    for row in ideas:
        if row.low and row.high:
            width = math.expm1(math.log(row.high / row.low) / 2 * math.sqrt(seeds / (2 * seeds + 1)))
            return f"With --seeds {2 * seeds + 1} the interval of {row.entry} would be about +- {width:.0%}.\n"
    return f"With --seeds {2 * seeds + 1} it may get an interval.\n" if ideas else ""


def save_results(
    plan: TrialPlan, records: Sequence[dict[str, Any]], comparison: TrackComparison, plot: LossPlot, folder: Path
) -> Path:
    """Write the records and the picture; return the picture's path."""
    name = "".join(letter if letter.isalnum() else "-" for letter in plan.title)[:80]
    flags = {trial.entry.name: [f"--arch={trial.entry.arch}", *trial.entry.flags] for trial in plan.trials}
    (folder / f"{name}.json").write_text(json.dumps({"entries": flags, "runs": list(records)}, indent=1))
    picture = folder / f"{name}.svg"
    title = f"{plan.title} and {plan.baseline.name}"
    plot.save_svg(picture, title, plan.baseline.name, plan.title, UNITS[comparison.axis])
    return picture


def build_parser() -> Parser:
    parser = Parser(
        prog=COMMAND,
        description="Train an idea and a small ladder of the baseline here, and print its compute multiplier.",
        epilog="Flags like --model.depth=3 or --recipe.matrices.learning_rate=0.01 are part of the idea.",
    )
    add = parser.add_argument
    add("idea", help=f"a name from `dailytrain arch list`, or a file of settings; {BASELINE} trains only the ladder")
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
    add("--score", choices=("test", "dev"), default="test", help="text of the score; dev costs less (%(default)s)")
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
