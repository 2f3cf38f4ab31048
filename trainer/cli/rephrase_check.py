"""`dailytrain rephrase check PAIRS.jsonl`: run the server's checks (`trainer.rephrase.checks`) on rephrased texts.

The envelope check is left out. A line is a duplicate if an earlier line has the same source, style and text.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trainer.cli import Parser
from trainer.errors import ExitCode, UserError, print_error
from trainer.rephrase.checks import (
    REASONS,
    CheckResult,
    Thresholds,
    check_output,
    compute_duplicate_key,
    merge_thresholds,
)
from trainer.rephrase.pairs import RephrasedPair, read_pairs


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="dailytrain rephrase check", description="Check texts and their rephrasings.")
    add = parser.add_argument
    add("pairs", metavar="PAIRS.jsonl", help='lines {"source", "style", "output"}; - reads them from stdin')
    add("--language", default="", metavar="CODE", help="of the campaign, such as en (each source's own)")
    add("--thresholds", metavar="FILE", help="as `dailytrain rephrase calibrate` writes it")
    add("--json", action="store_true", help="print a JSON object for each line")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 even if outputs fail the checks, 2 for a file that cannot be read."""
    options = build_parser().parse_args(argv)
    try:
        thresholds = load_thresholds(options.thresholds)
        pairs = read_pairs(options.pairs)
    except UserError as error:
        return print_error("dailytrain rephrase check", error, ExitCode.USER_ERROR)
    accepted = 0
    for number, result in enumerate(check_pairs(pairs, options.language, thresholds), 1):
        accepted += result.accepted
        sys.stdout.write(f"{format_json(result) if options.json else format_line(number, result)}\n")
    if not options.json:
        sys.stdout.write(f"{accepted} of {len(pairs)} accepted.\n")
    return ExitCode.OK


def check_pairs(
    pairs: Sequence[RephrasedPair], language: str, thresholds: Mapping[str, Thresholds]
) -> Iterator[CheckResult]:
    keys_by_task: dict[tuple[str, str], set[str]] = {}
    for pair in pairs:
        keys = keys_by_task.setdefault((pair.source, pair.style), set())
        result = check_output(
            pair.source,
            pair.style,
            pair.output,
            ended=pair.ended,
            language=language,
            thresholds=thresholds,
            accepted_keys=keys,
        )
        keys.add(compute_duplicate_key(result.text))
        yield result


def load_thresholds(path: str | None) -> dict[str, Thresholds]:
    """Return the thresholds of a file, or the defaults. Raise `UserError`."""
    if path is None:
        return merge_thresholds(None)
    try:
        content = json.loads(Path(path).read_bytes())
        return merge_thresholds(content.get("thresholds", content))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    except (AttributeError, TypeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a file of thresholds.") from error


def format_json(result: CheckResult) -> str:
    return json.dumps({"accepted": result.accepted, "reasons": list(result.reasons)})


def format_line(number: int, result: CheckResult) -> str:
    return f"{number}: {' '.join(REASONS[reason] for reason in result.reasons) or 'accepted'}"
