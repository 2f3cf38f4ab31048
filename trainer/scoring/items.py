"""Scores by item: the file by which two runs are compared.

`items.jsonl.gz` has a line for each held-out document (`{"task": "bits_per_byte", "item", "bits", "bytes"}`) and for
each question of the suite (`{"task", "item", "acc", "log_likelihoods"}`, with `part` if a task has several).
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from trainer.errors import UserError

TEXT_TASK = "bits_per_byte"  # `task` of held-out documents
METRICS = {"acc", "acc_norm"}  # of a question
MAX_BYTES = 2**28  # decompressed
MAX_VALUE = 2**60  # of a line's numbers

ItemKey = tuple[str, str, int]  # (task, part, item)


class ItemsError(UserError):
    """A file that does not contain the items of a scored run."""


def write_items(path: Path, documents: Iterable[tuple[float, int]], questions: Iterable[dict[str, Any]]) -> None:
    """Write the file; `documents`: (bits, bytes) of each."""
    texts = ({"task": TEXT_TASK, "item": i, "bits": bits, "bytes": size} for i, (bits, size) in enumerate(documents))
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for lines in (texts, questions) for line in lines)


def read_items(path: Path) -> dict[ItemKey, dict[str, Any]]:
    """Read the file; raise `ItemsError`."""
    try:
        with path.open("rb") as file:
            return parse_items(file, str(path))
    except FileNotFoundError:
        raise ItemsError(f"There is no file {path}.") from None
    except OSError:
        raise ItemsError(f"{path} cannot be read.") from None


def parse_items(file: IO[bytes], name: str, max_bytes: int = MAX_BYTES) -> dict[ItemKey, dict[str, Any]]:
    """Parse an open file; raise `ItemsError`, also if it unpacks to more than `max_bytes`."""
    try:
        with gzip.GzipFile(fileobj=file) as decompressed:
            text = decompressed.read(max_bytes + 1)
        if len(text) > max_bytes:
            raise ItemsError(f"{name} unpacks to more than {max_bytes:,} bytes.")
        lines = [json.loads(line) for line in text.decode().splitlines()]
        return {parse_key(line): line for line in lines}
    except ItemsError:
        raise
    except (OSError, EOFError, ValueError, KeyError, TypeError, RecursionError, zlib.error):
        raise ItemsError(f"{name} does not hold the items of a scored run (`dailytrain score --items`).") from None


def parse_key(line: dict[str, Any]) -> ItemKey:
    """Return the key of a line. Raise ValueError, KeyError or TypeError unless the line can be compared."""
    task, part, item = line["task"], line.get("part", ""), line["item"]
    if not (isinstance(task, str) and isinstance(part, str) and type(item) is int):
        raise ValueError("an item has names and a number")
    names = ("bits", "bytes") if task == TEXT_TASK else METRICS & line.keys()
    if not all(type(line[name]) in (int, float) and abs(line[name]) < MAX_VALUE for name in names):
        raise ValueError("the values of an item are finite numbers")
    if task == TEXT_TASK and line["bytes"] <= 0:
        raise ValueError("a document has bytes")
    return task, part, item
