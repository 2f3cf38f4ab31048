"""Plain results of runs, as downloaded from the leaderboard.

A result is `{"entry", "seed", "flops", "seconds", "bits_per_byte"}`, and may have `look_ahead_stderr`. `flops` or
`seconds` may be null: that axis was voided for this run, and the run is left out there. Unknown fields are ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from trainer.errors import UserError, to_one_line
from trainer.text_files import decode_text

Axis = Literal["flops", "seconds"]
AXES: tuple[Axis, ...] = ("flops", "seconds")
MAX_COMPUTE = 1e300
MAX_BITS_PER_BYTE = 1e6  # far above any real loss (a uniform guess needs 8 bits per byte)
FIELDS = ("entry", "seed", "flops", "seconds", "bits_per_byte")


class ResultsError(UserError):
    """Results that cannot be compared."""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """One finished run and its score on the test split."""

    entry: str  # name of the entry; its runs differ in seed and compute only
    seed: int
    flops: float | None  # training FLOPs, as our harness counted them. None: voided.
    seconds: float | None  # training seconds metered by the node, on one class of node. None: voided.
    bits_per_byte: float
    look_ahead_stderr: float = 0.0  # standard error of the correction for later tokens in `bits_per_byte`

    def compute(self, axis: Axis) -> float | None:
        return self.flops if axis == "flops" else self.seconds


def load_results(path: Path) -> list[RunResult]:
    """Read a JSON file: a list of results, or an object whose `runs` is that list. Raise `ResultsError`."""
    try:
        document = json.loads(decode_text(path.read_bytes()))
    except OSError as error:
        raise ResultsError(f"{path} cannot be read: {error.strerror}.") from error
    except (RecursionError, ValueError) as error:
        detail = "the file is empty" if path.stat().st_size == 0 else to_one_line(error)
        raise ResultsError(f"{path} is not JSON: {detail}.") from error
    try:
        return parse_results(document)
    except ResultsError as error:
        raise ResultsError(f"{path}: {error}") from error


def parse_results(document: object) -> list[RunResult]:
    """Validate plain JSON values and return them as results. Raise `ResultsError`."""
    if isinstance(document, Mapping):
        document = document.get("runs")
    if not isinstance(document, list | tuple):
        raise ResultsError('Expected a list of runs, or an object with a list under "runs".')
    if not document:
        raise ResultsError("There are no runs in it.")
    return [parse_result(record, number) for number, record in enumerate(document, start=1)]


def parse_result(record: object, number: int) -> RunResult:
    if not isinstance(record, Mapping):
        raise ResultsError(f"Run {number} is not an object.")
    missing = [field for field in FIELDS if field not in record]
    if missing:
        raise ResultsError(f"Run {number} has no {', '.join(missing)}.")
    entry, seed = record["entry"], record["seed"]
    if not isinstance(entry, str) or not entry.strip():
        raise ResultsError(f"Run {number}: entry must be a name, not {format_value(entry)}.")
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise ResultsError(f"Run {number}: seed must be a whole number, not {format_value(seed)}.")
    stderr = record.get("look_ahead_stderr")
    return RunResult(
        entry=entry,
        seed=seed,
        flops=None if record["flops"] is None else parse_positive(record["flops"], "flops", number, MAX_COMPUTE),
        seconds=None
        if record["seconds"] is None
        else parse_positive(record["seconds"], "seconds", number, MAX_COMPUTE),
        bits_per_byte=parse_positive(record["bits_per_byte"], "bits_per_byte", number, MAX_BITS_PER_BYTE),
        look_ahead_stderr=parse_positive(stderr, "look_ahead_stderr", number, MAX_BITS_PER_BYTE) if stderr else 0.0,
    )


def parse_positive(value: object, field: str, number: int, maximum: float) -> float:
    """Return the value as a float above 0 and up to `maximum`. Raise `ResultsError`."""
    try:
        parsed = (
            float(cast(float, value)) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
        )
    except OverflowError:
        parsed = math.inf
    if not 0 < parsed <= maximum:
        raise ResultsError(
            f"Run {number}: {field} must be a number above 0 and up to {maximum:g}, not {format_value(value)}."
        )
    return parsed


def format_value(value: object) -> str:
    """Return an arbitrary value, shortened for a one-line message."""
    text = to_one_line(repr(value))
    return text if len(text) <= 40 else f"{text[:37]}..."
