"""Reads JSONL files of rephrasings with the keys "source", "style", "output" and optionally "ended"."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trainer.errors import UserError
from trainer.rephrase.prompts import STYLES
from trainer.text_files import TextError, decode_text


@dataclass(frozen=True)
class RephrasedPair:
    source: str
    style: str
    output: str
    ended: str = "stop"


def read_pairs(path: str) -> list[RephrasedPair]:
    """Read a file, or standard input for "-". Raise `UserError` with the line of an error."""
    if path == "-":
        return _parse_pairs("standard input", sys.stdin)
    try:
        return _parse_pairs(path, decode_text(Path(path).read_bytes()).split("\n"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    except TextError as error:
        raise UserError(f"{path} is not text: {error}.") from error


def _parse_pairs(name: str, lines: Iterable[str]) -> list[RephrasedPair]:
    return [_parse_pair(f"{name}, line {number}", line) for number, line in enumerate(lines, 1) if line.strip()]


def _parse_pair(location: str, line: str) -> RephrasedPair:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise UserError(f"{location} is not JSON.") from error
    texts = {name: record.get(name) for name in ("source", "style", "output")} if isinstance(record, dict) else {}
    if not texts or not all(isinstance(text, str) for text in texts.values()):
        raise UserError(f'{location} is not an object with the strings "source", "style" and "output".')
    if texts["style"] not in STYLES:
        raise UserError(f"{location} has the style {texts['style']!r}; there are {', '.join(STYLES)}.")
    return RephrasedPair(**texts, ended=str(record.get("ended", "stop")))
