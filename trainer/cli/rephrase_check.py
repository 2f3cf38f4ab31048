"""`dailytrain rephrase check PAIRS.jsonl`: what the checks say about texts and their rephrasings, line by line.

The checks are the site's own (`trainer.rephrase.checks`), but for the envelope. A line that says the same as an earlier
one, of the same source and in the same style, is a duplicate.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from trainer.cli.parser import Parser
from trainer.rephrase.checks import (
    REASONS,
    CheckResult,
    Thresholds,
    check_output,
    compute_duplicate_key,
    merge_thresholds,
)
from trainer.rephrase.pairs import RephrasedPair, read_pairs


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 whatever the checks say, 2 with a line on standard error for a file that cannot be read."""
    parser = Parser(prog="dailytrain rephrase check", description="What the checks say about rephrasings.")
    parser.add_argument(
        "pairs", metavar="PAIRS.jsonl", help='lines {"source", "style", "output"}; - reads them from stdin'
    )
    parser.add_argument(
        "--language", default="", metavar="CODE", help="of the campaign, such as en (each source's own)"
    )
    parser.add_argument("--thresholds", metavar="FILE", help="as `dailytrain rephrase calibrate` writes it")
    parser.add_argument("--json", action="store_true", help="a JSON object for each line")
    options = parser.parse_args(argv)
    try:
        thresholds = load_thresholds(options.thresholds)
        pairs = read_pairs(options.pairs)
    except ValueError as error:
        sys.stderr.write(f"dailytrain rephrase check: {' '.join(str(error).split())}\n")
        return 2
    accepted = 0
    for number, found in enumerate(check_pairs(pairs, options.language, thresholds), 1):
        accepted += found.accepted
        sys.stdout.write(f"{format_json(found) if options.json else format_line(number, found)}\n")
    if not options.json:
        sys.stdout.write(f"{accepted} of {len(pairs)} accepted.\n")
    return 0


def check_pairs(
    pairs: Sequence[RephrasedPair], language: str, thresholds: Mapping[str, Thresholds]
) -> Iterator[CheckResult]:
    seen: dict[tuple[str, str], set[str]] = {}
    for pair in pairs:
        known = seen.setdefault((pair.source, pair.style), set())
        found = check_output(
            pair.source,
            pair.style,
            pair.output,
            ended=pair.ended,
            language=language,
            thresholds=thresholds,
            known=known,
        )
        known.add(compute_duplicate_key(found.text))
        yield found


def load_thresholds(path: str | None) -> dict[str, Thresholds]:
    """Return a file's thresholds, or the start values. Raise ValueError."""
    if path is None:
        return merge_thresholds(None)
    try:
        found = json.loads(Path(path).read_bytes())
        return merge_thresholds(found.get("thresholds", found))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from error
    except (AttributeError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a file of thresholds.") from error


def format_json(found: CheckResult) -> str:
    return json.dumps({"accepted": found.accepted, "reasons": list(found.reasons)})


def format_line(number: int, found: CheckResult) -> str:
    return f"{number}: {' '.join(REASONS[reason] for reason in found.reasons) or 'accepted'}"
