"""`dailytrain multiplier RUNS.json --baseline NAME`: compute multipliers from plain results, offline."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.cli.parser import Parser
from trainer.scoring.multiplier import (
    AXES,
    EntryMultiplier,
    ResultsError,
    TrackComparison,
    compare_entries,
    load_results,
)

UNITS = {"flops": "FLOPs", "seconds": "seconds"}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the board; return 2, with one line on standard error, for input that cannot be used."""
    try:
        options = arguments(argv)
        board = compare_entries(load_results(options.runs), options.baseline, options.axis, options.full)
    except ResultsError as error:
        sys.stderr.write(f"dailytrain multiplier: {' '.join(str(error).split())}\n")
        return 2
    if options.json:
        sys.stdout.write(json.dumps(board.to_dict(), indent=2, allow_nan=False) + "\n")
    else:
        show(board)
    return 0


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="dailytrain multiplier",
        description="Compare entries with a baseline's ladder: how much compute the baseline needs for the same loss.",
        epilog='A run: {"entry", "seed", "flops", "seconds", "bits_per_byte"}. The numbers: docs/multiplier.md.',
    )
    parser.add_argument("runs", type=Path, metavar="RUNS.json", help="a list of runs")
    parser.add_argument("--baseline", required=True, metavar="NAME", help="the entry whose runs are the ladder")
    parser.add_argument("--axis", choices=AXES, default="flops", help="what compute means (%(default)s)")
    parser.add_argument(
        "--full",
        type=budget,
        metavar="COMPUTE",
        help="the track's budget, in FLOPs or seconds (the baseline's rung with the most runs)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    return parser.parse_args(argv)


def budget(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"must be a number above 0, not {text!r}")
    return value


def show(board: TrackComparison) -> None:
    """The same for people."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("", "entry", "multiplier", "95 % interval", "runs"):
        table.add_column(heading, justify="left" if heading == "entry" else "right", overflow="fold")
    table.add_column("verdict", overflow="fold", ratio=1)
    for row in board.entries:
        table.add_row(*(Text(cell) for cell in cells(row, board.baseline)))
    console = Console()
    console.print(table)
    for line in notes(board):
        console.print(Text(line), soft_wrap=True)


def cells(row: EntryMultiplier, baseline: str) -> tuple[str, ...]:
    """Return rank, entry, multiplier, interval, runs and verdict as text."""
    multiplier = "" if row.cm is None else f"{row.cm:.3f}" + ("*" if row.extrapolated else "")
    interval = ""
    if row.low is not None and row.high is not None:
        interval = f"{row.low:.3f} to {row.high:.3f}"
    rank = "" if row.rank is None else str(row.rank)
    return rank, row.entry, multiplier, interval, str(row.runs), remarks(row, baseline)


def remarks(row: EntryMultiplier, baseline: str) -> str:
    """Return the verdict with what would settle it."""
    said = [str(row.verdict)]
    others = [name for name in row.tied_with if name != baseline]
    if others:
        said.append(f"cannot be told from {', '.join(others)}")
    if row.seeds_needed:
        said.append(f"needs {row.seeds_needed} more seed{'s' if row.seeds_needed > 1 else ''} to resolve")
    elif row.seeds_needed is None and row.verdict.resolved:
        said.append("more seeds will not settle it")
    return "; ".join(said)


def notes(board: TrackComparison) -> list[str]:
    """Return what the table rests on: scale, curve, noise."""
    ladder, values = board.ladder, board.to_dict()["ladder"]
    unit = UNITS[board.axis]
    lines = [f"At {ladder.full:.3g} {unit}, over the ladder of {board.baseline}: {ladder.runs} runs."]
    if values["slope"] is not None:
        lines.append(
            f"There {values['b0']:.5g} bits per byte, falling by {-values['slope']:.3g} per e-fold of compute."
        )
    if values["sigma"] is not None:
        lines.append(f"Noise of one run {values['sigma']:.3g} bits per byte, {ladder.freedom} degrees of freedom.")
    if ladder.narrowed:
        lines.append(
            "Its outer rungs do not lie on one parabola with the others: the three nearest the budget are fitted."
        )
    if any(row.extrapolated and row.cm is not None for row in board.entries):
        lines.append("* read off beyond the ladder's rungs.")
    return lines
