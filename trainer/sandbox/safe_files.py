"""Safe reads of files that untrusted code has written.

A job may put a link, a pipe or a device where a file is expected. Every component of a path is opened without following
links, and only regular files are read.
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

MAX_LINE_LENGTH = 400
MAX_DEPTH = 20


class UnsafeFileError(Exception):
    """A path that could leave its folder, or something other than a regular file."""


def parse_relative_path(name: str) -> PurePosixPath:
    """Return `name` as a path inside a folder; raise `UnsafeFileError` if it could leave it."""
    path = PurePosixPath(name)
    parts = name.split("/")
    if not name or path.is_absolute() or "\\" in name or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise UnsafeFileError(f"{sanitize_line(name)!r} is not a path inside a folder.")
    return path


def open_folder(folder: Path, name: str = "") -> int:
    """Return a file descriptor of the folder `name` below `folder`; raise `OSError` for a link on the way."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for part in parse_relative_path(name).parts if name else ():
        try:
            child = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = child
    return descriptor


def open_file(folder: Path, name: str) -> BufferedReader:
    """Open a regular file below `folder`; raise `OSError` or `UnsafeFileError`."""
    path = parse_relative_path(name)
    parent = open_folder(folder, "" if len(path.parts) == 1 else str(path.parent))
    try:
        # Non-blocking: opening a pipe without a writer would block forever.
        descriptor = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
    finally:
        os.close(parent)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnsafeFileError(f"{sanitize_line(name)} is not a regular file.")
    return os.fdopen(descriptor, "rb")


def list_folder(folder: Path, name: str) -> list[str]:
    """Return the sorted names in a folder below `folder`; empty if there is no such folder."""
    with suppress(OSError):
        descriptor = open_folder(folder, name)
        try:
            return sorted(os.listdir(descriptor))  # noqa: PTH208  (of a descriptor)
        finally:
            os.close(descriptor)
    return []


def read_json_object(folder: Path, name: str, max_bytes: int) -> dict[str, Any] | None:
    """Return the sanitized JSON object in a file; None if it is missing, too large or not a JSON object."""
    try:
        with open_file(folder, name) as file:
            return parse_json_object(file.read(max_bytes + 1), max_bytes)
    except (OSError, UnsafeFileError):
        return None


def parse_json_object(data: bytes, max_bytes: int = sys.maxsize) -> dict[str, Any] | None:
    """Return a JSON object that every JSON parser and PostgreSQL accept; None if `data` is not a JSON object."""
    if len(data) > max_bytes:
        return None
    try:
        value = sanitize_json(json.loads(data, parse_constant=lambda _: None))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def sanitize_json(value: object, depth: int = MAX_DEPTH) -> object:
    """Replace what PostgreSQL or JSON cannot hold: NUL, lone surrogates, infinities. Raise `ValueError` if too deep."""
    if depth == 0:
        raise ValueError("too deep")
    if isinstance(value, str):
        return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {str(sanitize_json(key, depth - 1)): sanitize_json(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list):
        return [sanitize_json(item, depth - 1) for item in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    if isinstance(value, int) and abs(value) >= 1 << 63:
        return float(value) if abs(value) < 1 << 1000 else None
    return value


def sanitize_line(text: object, max_length: int = MAX_LINE_LENGTH) -> str:
    """Return untrusted text as one printable line of limited length; "" if it is not a string."""
    if not isinstance(text, str):
        return ""
    words = "".join(letter if letter.isprintable() else " " for letter in text[: 4 * max_length]).split()
    line = " ".join(words)
    return line if len(line) <= max_length else line[: max_length - 1].rstrip() + "…"
