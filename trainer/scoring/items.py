"""A scored run, item by item: what two runs are compared by.

`items.jsonl.gz` has a line for each held-out document (`{"task": "bits_per_byte", "item", "bits", "bytes"}`) and for
each question of the suite (`{"task", "item", "acc", "log_likelihoods"}`, with `part` where a task has several).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TEXT = "bits_per_byte"
"""The task of held-out documents."""

Key = tuple[str, str, int]
"""(task, part, item)."""


class ItemsError(ValueError):
    """This file does not hold the items of a scored run."""


def write(path: Path, documents: Iterable[tuple[float, int]], questions: Iterable[dict[str, Any]]) -> None:
    """`documents`: (bits, bytes) of each."""
    texts = ({"task": TEXT, "item": i, "bits": bits, "bytes": size} for i, (bits, size) in enumerate(documents))
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for lines in (texts, questions) for line in lines)


def read(path: Path) -> dict[Key, dict[str, Any]]:
    """Raises `ItemsError` with one line."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        return {(line["task"], line.get("part", ""), line["item"]): line for line in lines}
    except FileNotFoundError:
        raise ItemsError(f"There is no file {path}.") from None
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        raise ItemsError(f"{path} does not hold the items of a scored run (`dailytrain score --items`).") from None
