"""Reads files of rephrasings: a line is `{"source", "style", "output"}`, and may hold more."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trainer.rephrase.prompts import STYLES


@dataclass(frozen=True)
class RephrasedPair:
    source: str
    style: str
    output: str
    ended: str = "stop"


def read_pairs(path: str) -> list[RephrasedPair]:
    """Read a file, or standard input for "-". Raise ValueError, with the line, for what is no such file."""
    if path == "-":
        return _parse_pairs("standard input", sys.stdin)
    try:
        with Path(path).open(encoding="utf-8") as file:
            return _parse_pairs(path, file)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8.") from error


def _parse_pairs(name: str, lines: Iterable[str]) -> list[RephrasedPair]:
    return [_parse_pair(f"{name}, line {number}", line) for number, line in enumerate(lines, 1) if line.strip()]


def _parse_pair(at: str, line: str) -> RephrasedPair:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{at} is not JSON.") from error
    words = {name: found.get(name) for name in ("source", "style", "output")} if isinstance(found, dict) else {}
    if not words or not all(isinstance(word, str) for word in words.values()):
        raise ValueError(f'{at} is not an object with the texts "source", "style" and "output".')
    if words["style"] not in STYLES:
        raise ValueError(f"{at} has the style {words['style']!r}; there are {', '.join(STYLES)}.")
    return RephrasedPair(**words, ended=str(found.get("ended", "stop")))
