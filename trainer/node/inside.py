"""Reading what a job has written, without being led out of its folder.

The job may put a link, a pipe or a device where we expect a file. Every step of a path is opened without following
links, and only plain files are read.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from contextlib import suppress
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import Any

REASON_LENGTH = 400
DEPTH = 20


class Unsafe(Exception):
    """A name that leads out, or something that is no plain file."""


def relative(name: str) -> PurePosixPath:
    """Return a name as a path inside a folder; raise `Unsafe` if it might lead out of it."""
    path = PurePosixPath(name)
    parts = name.split("/")
    if not name or path.is_absolute() or "\\" in name or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise Unsafe(f"{one_line(name)!r} is not a path inside a folder.")
    return path


def open_folder(folder: Path, name: str = "") -> int:
    """Return the number of an open folder below `folder`; raise `OSError` where a link is in the way."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for part in relative(name).parts if name else ():
        try:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=number)
        finally:
            os.close(number)
        number = below
    return number


def open_file(folder: Path, name: str) -> BufferedReader:
    """Open a plain file below `folder`; raise `OSError` or `Unsafe`."""
    path = relative(name)
    above = open_folder(folder, "" if len(path.parts) == 1 else str(path.parent))
    try:
        # Non-blocking: a pipe without a writer would never open.
        number = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=above)
    finally:
        os.close(above)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise Unsafe(f"{one_line(name)} is not a plain file.")
    return os.fdopen(number, "rb")


def names(folder: Path, name: str) -> list[str]:
    """Return what a folder below `folder` holds; nothing if there is no such folder."""
    with suppress(OSError):
        number = open_folder(folder, name)
        try:
            return sorted(os.listdir(number))  # noqa: PTH208  (of an open folder)
        finally:
            os.close(number)
    return []


def read_object(folder: Path, name: str, most: int) -> dict[str, Any] | None:
    """Return the JSON object in a file, cleaned; None if there is none, or it is too large, or not one."""
    try:
        with open_file(folder, name) as file:
            return parse_object(file.read(most + 1), most)
    except (OSError, Unsafe):
        return None


def parse_object(data: bytes, most: int = sys.maxsize) -> dict[str, Any] | None:
    """Return a JSON object that any JSON reader and any database takes; None if `data` is nothing like that."""
    if len(data) > most:
        return None
    try:
        value = clean(json.loads(data, parse_constant=lambda _: None))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def clean(value: object, depth: int = DEPTH) -> object:
    """Replace what PostgreSQL or JSON cannot hold: NUL, half characters, endless numbers. `ValueError` if too deep."""
    if depth == 0:
        raise ValueError("too deep")
    if isinstance(value, str):
        return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {str(clean(key, depth - 1)): clean(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list):
        return [clean(item, depth - 1) for item in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    if isinstance(value, int) and abs(value) >= 1 << 63:
        return float(value) if abs(value) < 1 << 1000 else None
    return value


def one_line(text: object, most: int = REASON_LENGTH) -> str:
    """Return a stranger's words as one printable line of limited length; "" if they are none."""
    if not isinstance(text, str):
        return ""
    words = "".join(letter if letter.isprintable() else " " for letter in text[: 4 * most]).split()
    line = " ".join(words)
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"
