"""`dailytrain try ARCH`: train a small ladder and an idea at home, and say what the idea is worth.

The ladder of the baseline is trained once and kept; each further idea costs its own runs only. Flags of `dailytrain
train` for the model and the recipe may follow (`--model.depth=3`): they are part of the idea.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from trainer.cli.multiplier import UNITS, show
from trainer.cli.parser import Parser
from trainer.config.train_config import DEFAULT_CORPUS, DEFAULT_TOKENIZER, SHORT_TEXT, count_cores
from trainer.data.dataset import Dataset, get_cache_folder, prepare_dataset
from trainer.scoring.multiplier import Axis, TrackComparison, compare_entries, parse_results
from trainer.trials import plot
from trainer.trials.plan import BASELINE, BUDGET, RUNGS, SEEDS, Entry, Plan, plan
from trainer.trials.trial_runner import TrialError, Workshop

PRESET = "cpu-ladder"
PASSED_ON = ("--model.", "--recipe.")
DONE, FAILED, USER, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code; the verdict goes to standard output, all else to standard error."""
    options, flags = arguments(argv)
    console = Console(stderr=True)
    try:
        return rehearse(options, flags, console)
    except TrialError as error:
        return complain(f"{error} (what is done is kept: the same command goes on)", FAILED)
    except ValueError as error:
        return complain(str(error), USER)
    except KeyboardInterrupt:
        return complain("interrupted; what is done is kept, the same command goes on", INTERRUPTED)


def complain(line: str, code: int) -> int:
    sys.stderr.write(f"dailytrain try: {' '.join(line.split())}\n")
    return code


def rehearse(options: argparse.Namespace, flags: Sequence[str], console: Console) -> int:
    idea = Entry(arch=options.arch, flags=tuple(flags))
    dataset = open_dataset(options)
    laid = plan(
        idea,
        budget=options.budget,
        rungs=options.rungs,
        seeds=options.seeds,
        dataset=dataset.hash,
        preset=PRESET,
        folder=options.folder,
    )
    records = train(laid, Workshop(dataset.folder, PRESET, options.jobs), console)
    board = judge(laid, records, options.axis)
    frame = plot.Frame.of(board, parse_results(records))
    drawn = keep(laid, records, board, frame, options.folder)
    if options.json:
        answer = {**board.to_dict(), "runs": records, "picture": str(drawn)}
        sys.stdout.write(json.dumps(answer, indent=2, allow_nan=False) + "\n")
        return DONE
    show(board)
    sys.stdout.write(f"\n{plot.text(frame)}\n")
    sys.stdout.write(f"bits per byte over training {UNITS[board.axis]}: o {laid.baseline.name}, x {laid.idea.name}\n")
    sys.stdout.write(f"Picture: {drawn}\n")
    return DONE


def open_dataset(options: argparse.Namespace) -> Dataset:
    if options.dataset is not None:
        return Dataset.open(options.dataset)
    return prepare_dataset(options.corpus, options.tokenizer, limit_bytes=SHORT_TEXT, progress=True)


def train(laid: Plan, workshop: Workshop, console: Console) -> list[dict[str, Any]]:
    """Return a record for each trial, in the plan's order, and say each as it comes."""
    found: dict[Path, dict[str, Any]] = {}
    with console.status("") as status:
        total = len(laid.trials)
        status.update(f"0 of {total} runs")
        for trial, record in workshop.results(laid.trials):
            found[trial.folder] = record
            status.update(f"{len(found)} of {total} runs")
            said = f"{len(found):3} of {total}  {trial}: {record['bits_per_byte']:.4f} bits per byte"
            console.print(said, highlight=False, markup=False)
    return [found[trial.folder] for trial in laid.trials]


def judge(laid: Plan, records: Sequence[dict[str, Any]], axis: Axis) -> TrackComparison:
    """Compare; the full budget is what the baseline's runs at rung 1 used on average, None where that is not known."""
    at_full = [
        record[axis]
        for trial, record in zip(laid.trials, records, strict=True)
        if trial.entry == laid.baseline and trial.share == 1 and record[axis]
    ]
    return compare_entries(
        parse_results(list(records)), laid.baseline.name, axis, sum(at_full) / len(at_full) if at_full else None
    )


def keep(
    laid: Plan, records: Sequence[dict[str, Any]], board: TrackComparison, frame: plot.Frame, folder: Path
) -> Path:
    """Write the results and their picture; return the picture's place."""
    name = "".join(letter if letter.isalnum() else "-" for letter in laid.idea.name)[:80]
    (folder / f"{name}.json").write_text(json.dumps({"runs": list(records)}, indent=1))
    drawn = folder / f"{name}.svg"
    title = f"{laid.idea.name} beside {laid.baseline.name}"
    drawn.write_text(plot.svg(frame, title, laid.baseline.name, laid.idea.name, UNITS[board.axis]))
    return drawn


def arguments(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    parser = Parser(
        prog="dailytrain try",
        description="Train an idea and a small ladder of the baseline here, and print its compute multiplier.",
        epilog="Flags like --model.depth=3 or --recipe.matrices.learning_rate=0.01 are part of the idea.",
    )
    add = parser.add_argument
    add("arch", help=f"a line of `dailytrain arch list`; {BASELINE} alone trains the ladder only")
    add("--budget", default=BUDGET, help="of the idea's runs: 1 of the ladder's rungs (%(default)s)")
    add("--rungs", type=shares, default=RUNGS, help="of the ladder, as shares of the budget (0.25,0.5,1,2)")
    add("--seeds", type=int, default=SEEDS, help="runs at each rung and of the idea (%(default)s)")
    add("--axis", choices=sorted(UNITS), default="flops", help="what compute means (%(default)s)")
    add("--corpus", default=DEFAULT_CORPUS, help="text to train on and to score (%(default)s)")
    add("--tokenizer", default=DEFAULT_TOKENIZER, help="%(default)s")
    add("--dataset", type=Path, help="a prepared dataset instead")
    add("--jobs", type=int, default=count_cores(), help="runs at a time, one thread each (%(default)s)")
    add(
        "--folder",
        type=Path,
        default=get_cache_folder().parent / "rehearsals",
        help="where runs are kept (%(default)s)",
    )
    add("--json", action="store_true", help="print JSON, for programs")
    options, rest = parser.parse_known_args(argv)
    unknown = [flag for flag in rest if not flag.startswith(PASSED_ON) or "=" not in flag]
    if unknown:
        parser.error(f"there is no option {unknown[0]}; flags of the idea are written --model.NAME=VALUE")
    if options.jobs < 1:
        parser.error("--jobs must be at least 1")
    return options, rest


def shares(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be numbers separated by commas, not {text!r}") from None
