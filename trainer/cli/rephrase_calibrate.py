"""`dailytrain rephrase calibrate SAMPLE.jsonl`: thresholds that keep nearly all of a sample that is known to be good.

Each threshold is a quantile of the sample, so that all of them together refuse about as little as was asked for. What
that is worth is said beside it: of the same outputs beside other sources, how many would be refused.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.cli.parser import Parser
from trainer.rephrase.checks import DEFAULT_THRESHOLDS, Thresholds, check_output, find_violations, measure_output
from trainer.rephrase.checks.thresholds import THRESHOLD_NAMES
from trainer.rephrase.pairs import RephrasedPair, read_pairs

MIN_OUTPUTS = 50
"""Outputs of a style, from which thresholds can be said."""
BOUND_COUNT = 6
"""Thresholds that share what may be refused."""
MAX_COPIED = 0.95
"""Above, an echo with a word changed would pass."""


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0; 2 with a line on standard error for a sample that cannot be used."""
    parser = Parser(prog="dailytrain rephrase calibrate", description="Propose thresholds from a good sample.")
    parser.add_argument("sample", metavar="SAMPLE.jsonl", help='lines {"source", "style", "output"}; - reads stdin')
    parser.add_argument("--keep", type=float, default=0.99, help="of the sample (%(default)s)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON there as well")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(argv)
    try:
        if not 0.5 <= options.keep < 1:
            raise ValueError(f"--keep {options.keep} is no share from 0.5 to below 1, such as 0.99.")
        found = calibrate_thresholds(read_pairs(options.sample), options.keep)
        if options.out:
            options.out.write_text(f"{json.dumps(found, indent=2)}\n")
    except (ValueError, OSError) as error:
        sys.stderr.write(f"dailytrain rephrase calibrate: {' '.join(str(error).split())}\n")
        return 2
    sys.stdout.write(f"{json.dumps(found, indent=2)}\n" if options.json else format_table(found))
    return 0


def calibrate_thresholds(pairs: Sequence[RephrasedPair], keep: float) -> dict[str, Any]:
    """Return `{"keep", "thresholds": {style: {name: value}}, "measured": {style: ...}}`. Raise ValueError."""
    thresholds: dict[str, dict[str, float]] = {}
    measured: dict[str, dict[str, float]] = {}
    for style in DEFAULT_THRESHOLDS:
        of_style = [pair for pair in pairs if pair.style == style]
        looked = [(pair, check_output(pair.source, style, pair.output, ended=pair.ended)) for pair in of_style]
        good = [(pair, found.text, found.measures) for pair, found in looked if found.measures]
        if len(good) < MIN_OUTPUTS:
            continue
        bounds = propose_thresholds([measures for _, _, measures in good], keep)
        thresholds[style] = {name: getattr(bounds, name) for name in THRESHOLD_NAMES}
        strangers = measure_mismatched([(pair.source, text) for pair, text, _ in good])
        measured[style] = {
            "outputs": len(of_style),
            "no_text": len(of_style) - len(good),
            "kept_by_start": compute_share(
                [not is_refused(measures, DEFAULT_THRESHOLDS[style]) for _, _, measures in good]
            ),
            "kept": compute_share([not is_refused(measures, bounds) for _, _, measures in good]),
            "strangers_refused_by_start": compute_share(
                [is_refused(measures, DEFAULT_THRESHOLDS[style]) for measures in strangers]
            ),
            "strangers_refused": compute_share([is_refused(measures, bounds) for measures in strangers]),
        }
    if not thresholds:
        raise ValueError(f"No style has {MIN_OUTPUTS} outputs in this sample; with fewer, nothing can be said.")
    return {"keep": keep, "thresholds": thresholds, "measured": measured}


def propose_thresholds(sample: Sequence[Mapping[str, float]], keep: float) -> Thresholds:
    spare = (1 - keep) / BOUND_COUNT

    def at(name: str, part: float) -> float:
        values = sorted(measures[name] for measures in sample)
        return values[min(len(values) - 1, int(part * len(values)))]

    return Thresholds(
        shortest=round_down(at("ratio", spare)),
        longest=round_down(at("ratio", 1 - spare)) + 0.01,
        meaning=round_down(at("meaning", spare)),
        subject=min(round_down(at("subject", spare)), 0.99),
        copied=round(min(MAX_COPIED, max(0.5, at("copied", 1 - spare) + 0.01)), 2),
        repetition=max(0.0, min(1.0, round_down(at("repetition", spare)) - 0.01)),
    )


def round_down(value: float) -> float:
    return int(value * 100) / 100


def measure_mismatched(pairs: Sequence[tuple[str, str]]) -> list[dict[str, float]]:
    """Return the measures of each output beside another one's source."""
    order = list(range(len(pairs)))
    random.Random(0).shuffle(order)
    turned = order[1:] + order[:1]
    return [measure_output(pairs[one][0], pairs[other][1]) for one, other in zip(order, turned, strict=True)]


def is_refused(measures: Mapping[str, float], bounds: Thresholds) -> bool:
    return any(find_violations(measures, bounds).values())


def compute_share(found: Sequence[bool]) -> float:
    return round(sum(found) / len(found), 4)


def format_table(found: Mapping[str, Any]) -> str:
    names = (*THRESHOLD_NAMES, "kept", "strangers_refused")
    lines = ["  ".join([f"{'':16}", *(f"{name.replace('_', ' '):>17}" for name in names)])]
    for style, bounds in found["thresholds"].items():
        measured = found["measured"][style]
        start = {**vars(DEFAULT_THRESHOLDS[style]), "kept": measured["kept_by_start"]}
        start["strangers_refused"] = measured["strangers_refused_by_start"]
        lines.append(format_row(f"{style}, start", [start[name] for name in names]))
        lines.append(format_row(f"{style}, proposed", [{**bounds, **measured}[name] for name in names]))
    return "\n".join([*lines, ""])


def format_row(title: str, values: Sequence[float]) -> str:
    return "  ".join([f"{title:16}", *(f"{value:>17.4g}" for value in values)])
