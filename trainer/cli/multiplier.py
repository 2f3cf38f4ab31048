"""`dailytrain multiplier RUNS.json --baseline NAME`: compute multipliers from plain results, offline."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.cli import Parser
from trainer.errors import ExitCode
from trainer.scoring.multiplier import AXES, EntryMultiplier, TrackComparison, compare_entries, load_results

UNITS = {"flops": "FLOPs", "seconds": "seconds"}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the comparison. Raise `UserError` for results that cannot be compared."""
    options = parse_arguments(argv)
    comparison = compare_entries(load_results(options.runs), options.baseline, options.axis, options.full)
    if options.json:
        sys.stdout.write(json.dumps(comparison.to_dict(), indent=2, allow_nan=False) + "\n")
    else:
        print_table(comparison)
    return ExitCode.OK


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="dailytrain multiplier",
        description="Compare entries with a baseline's ladder: how much compute the baseline needs for the same loss.",
        epilog='A run: {"entry", "seed", "flops", "seconds", "bits_per_byte"}. See docs/explanation/multiplier.md.',
    )
    parser.add_argument("runs", type=Path, metavar="RUNS.json", help="a list of runs")
    parser.add_argument("--baseline", required=True, metavar="NAME", help="the entry whose runs are the ladder")
    parser.add_argument("--axis", choices=AXES, default="flops", help="what compute means (%(default)s)")
    parser.add_argument(
        "--full",
        type=parse_budget,
        metavar="COMPUTE",
        help="the track's budget, in FLOPs or seconds (the baseline's rung with the most runs)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args(argv)


def parse_budget(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"must be a number above 0, not {text!r}")
    return value


def print_table(comparison: TrackComparison) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("", "entry", "multiplier", "95 % interval", "runs"):
        table.add_column(heading, justify="left" if heading == "entry" else "right", overflow="fold")
    table.add_column("verdict", overflow="fold", ratio=1)
    for row in comparison.entries:
        table.add_row(*(Text(cell) for cell in format_row(row, comparison.baseline)))
    console = Console()
    console.print(table)
    for line in describe_ladder(comparison):
        console.print(Text(line), soft_wrap=True)


def format_row(row: EntryMultiplier, baseline: str) -> tuple[str, ...]:
    """Return rank, entry, multiplier, interval, runs and verdict as text."""
    multiplier = "" if row.cm is None else f"{row.cm:.3f}" + ("*" if row.extrapolated else "")
    interval = ""
    if row.low is not None and row.high is not None:
        interval = f"{row.low:.3f} to {row.high:.3f}"
    rank = "" if row.rank is None else str(row.rank)
    return rank, row.entry, multiplier, interval, str(row.runs), describe_verdict(row, baseline)


def describe_verdict(row: EntryMultiplier, baseline: str) -> str:
    """Return the verdict, its ties and the seeds that would resolve them."""
    parts = [str(row.verdict)]
    others = [name for name in row.tied_with if name != baseline]
    if others:
        parts.append(f"indistinguishable from {', '.join(others)}")
    if row.seeds_needed:
        parts.append(f"needs {row.seeds_needed} more seed{'s' if row.seeds_needed > 1 else ''} to resolve")
    elif row.seeds_needed is None and row.verdict.is_resolved:
        parts.append("more seeds of it alone would not resolve it")
    return "; ".join(parts)


def describe_ladder(comparison: TrackComparison) -> list[str]:
    """Return the scale, the curve and the noise that the table is based on."""
    ladder, values = comparison.ladder, comparison.to_dict()["ladder"]
    unit = UNITS[comparison.axis]
    lines = [f"At {ladder.full:.3g} {unit}, over the ladder of {comparison.baseline}: {ladder.runs} runs."]
    if values["slope"] is not None:
        lines.append(
            f"There {values['b0']:.5g} bits per byte, falling by {-values['slope']:.3g} per e-fold of compute."
        )
    if values["sigma"] is not None:
        lines.append(f"Noise of one run {values['sigma']:.3g} bits per byte, {ladder.freedom} degrees of freedom.")
    if ladder.is_narrowed:
        lines.append(
            "Its outer rungs do not fit one parabola with the others: only the three nearest the budget are used."
        )
    if any(row.extrapolated and row.cm is not None for row in comparison.entries):
        lines.append("* extrapolated beyond the ladder's rungs.")
    return lines
