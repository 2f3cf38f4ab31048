"""`dailytrain rephrase calibrate SAMPLE.jsonl`: propose thresholds that accept nearly all of a known-good sample.

Each threshold is a quantile of the sample, so that together they accept about `--accepted-share` of it. For comparison,
each output is also measured against another output's source; most of these pairs should be rejected.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.cli import Parser
from trainer.errors import ExitCode, UserError, print_error
from trainer.rephrase.checks import DEFAULT_THRESHOLDS, Thresholds, check_output, find_violations, measure_output
from trainer.rephrase.checks.thresholds import THRESHOLD_NAMES
from trainer.rephrase.pairs import RephrasedPair, read_pairs

MIN_OUTPUTS = 50  # of a style, to propose thresholds for it
BOUND_COUNT = 6  # thresholds that share the rejected part of the sample
MAX_COPIED = 0.95  # above, a copy with one changed word would pass


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="dailytrain rephrase calibrate", description="Propose thresholds from a good sample.")
    add = parser.add_argument
    add("sample", metavar="SAMPLE.jsonl", help='lines {"source", "style", "output"}; - reads stdin')
    add("--accepted-share", type=float, default=0.99, help="share of the sample to accept (%(default)s)")
    add("--out", type=Path, metavar="FILE", help="also write the JSON to this file")
    add("--json", action="store_true", help="print JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0, or 2 for a sample that cannot be used."""
    options = build_parser().parse_args(argv)
    try:
        if not 0.5 <= options.accepted_share < 1:
            raise UserError(f"--accepted-share must be at least 0.5 and below 1, not {options.accepted_share}.")
        report = calibrate_thresholds(read_pairs(options.sample), options.accepted_share)
        if options.out:
            options.out.write_text(f"{json.dumps(report, indent=2)}\n")
    except (UserError, OSError) as error:
        return print_error("dailytrain rephrase calibrate", error, ExitCode.USER_ERROR)
    sys.stdout.write(f"{json.dumps(report, indent=2)}\n" if options.json else format_table(report))
    return ExitCode.OK


def calibrate_thresholds(pairs: Sequence[RephrasedPair], keep: float) -> dict[str, Any]:
    """Return `{"keep", "thresholds": {style: {name: value}}, "measured": {style: ...}}`. Raise `UserError`."""
    thresholds: dict[str, dict[str, float]] = {}
    measured: dict[str, dict[str, float]] = {}
    for style, default in DEFAULT_THRESHOLDS.items():
        outputs = [pair for pair in pairs if pair.style == style]
        results = [(pair, check_output(pair.source, style, pair.output, ended=pair.ended)) for pair in outputs]
        texts = [(pair.source, result.text) for pair, result in results if result.measures]
        sample = [result.measures for _, result in results if result.measures]
        if len(sample) < MIN_OUTPUTS:
            continue
        proposed = propose_thresholds(sample, keep)
        thresholds[style] = {name: getattr(proposed, name) for name in THRESHOLD_NAMES}
        mismatched = measure_mismatched(texts)
        measured[style] = {
            "outputs": len(outputs),
            "no_text": len(outputs) - len(sample),
            "kept_by_start": round(1 - compute_rejected_share(sample, default), 4),
            "kept": round(1 - compute_rejected_share(sample, proposed), 4),
            "mismatched_rejected_by_start": compute_rejected_share(mismatched, default),
            "mismatched_rejected": compute_rejected_share(mismatched, proposed),
        }
    if not thresholds:
        raise UserError(f"No style has {MIN_OUTPUTS} outputs in this sample, which is the minimum.")
    return {"keep": keep, "thresholds": thresholds, "measured": measured}


def propose_thresholds(sample: Sequence[Mapping[str, float]], keep: float) -> Thresholds:
    tail = (1 - keep) / BOUND_COUNT

    def compute_quantile(name: str, share: float) -> float:
        values = sorted(measures[name] for measures in sample)
        return values[min(len(values) - 1, int(share * len(values)))]

    return Thresholds(
        shortest=round_down(compute_quantile("ratio", tail)),
        longest=round_down(compute_quantile("ratio", 1 - tail)) + 0.01,
        meaning=round_down(compute_quantile("meaning", tail)),
        subject=min(round_down(compute_quantile("subject", tail)), 0.99),
        copied=round(min(MAX_COPIED, max(0.5, compute_quantile("copied", 1 - tail) + 0.01)), 2),
        repetition=max(0.0, min(1.0, round_down(compute_quantile("repetition", tail)) - 0.01)),
    )


def round_down(value: float) -> float:
    return int(value * 100) / 100


def measure_mismatched(texts: Sequence[tuple[str, str]]) -> list[dict[str, float]]:
    """Measure each output against another output's source."""
    order = list(range(len(texts)))
    random.Random(0).shuffle(order)
    rotated = order[1:] + order[:1]
    return [measure_output(texts[i][0], texts[j][1]) for i, j in zip(order, rotated, strict=True)]


def compute_rejected_share(sample: Sequence[Mapping[str, float]], bounds: Thresholds) -> float:
    return round(sum(any(find_violations(measures, bounds).values()) for measures in sample) / len(sample), 4)


def format_table(report: Mapping[str, Any]) -> str:
    names = (*THRESHOLD_NAMES, "kept", "mismatched_rejected")
    lines = ["  ".join([f"{'':16}", *(f"{name.replace('_', ' '):>17}" for name in names)])]
    for style, bounds in report["thresholds"].items():
        measured = report["measured"][style]
        start = {**vars(DEFAULT_THRESHOLDS[style]), "kept": measured["kept_by_start"]}
        start["mismatched_rejected"] = measured["mismatched_rejected_by_start"]
        lines.append(format_row(f"{style}, start", [start[name] for name in names]))
        lines.append(format_row(f"{style}, proposed", [{**bounds, **measured}[name] for name in names]))
    return "\n".join([*lines, ""])


def format_row(title: str, values: Sequence[float]) -> str:
    return "  ".join([f"{title:16}", *(f"{value:>17.4g}" for value in values)])
