"""Reading of a run's `metrics.jsonl`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CLOCK = ("seconds", "tokens_per_second", "memory_bytes", "mfu", "mfu_windowed")
"""Fields that depend on the clock and the machine."""


def lines(out: Path, *kinds: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if not kinds or row["kind"] in kinds]


def dev_losses(out: Path) -> list[float]:
    return [row["loss"] for row in lines(out, "dev")]


def numbers(out: Path) -> list[dict[str, Any]]:
    """Return the reproducible fields of train and dev lines."""
    return [{k: v for k, v in row.items() if k not in CLOCK} for row in lines(out, "train", "dev")]
