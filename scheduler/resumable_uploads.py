"""Uploads in pieces. A partial file is on this server's disk, with any storage back end.

An interrupted piece is kept as far as it arrived. The hash is checked once the file is complete.
Not covered: several servers without a shared folder. A node that reaches another server starts again there.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from django.conf import settings

from scheduler import storage
from scheduler.errors import InvalidMessageError, RangeError
from scheduler.models import Blob


@dataclass(frozen=True)
class ByteRange:
    """The bytes of a piece: `first` to `last`, both included, of `total`."""

    first: int
    last: int
    total: int

    @classmethod
    def parse(cls, header: str, length: int) -> Self:
        """Parse `Content-Range: bytes first-last/total` of a body of `length` bytes. Raises InvalidMessageError."""
        match = re.fullmatch(r"bytes (\d{1,15})-(\d{1,15})/(\d{1,15})", header)
        span = cls(*map(int, match.groups())) if match else None
        if span is None or not span.first <= span.last < span.total or span.length != length:
            raise InvalidMessageError(f"Content-Range {header[:80]!r} does not match a body of {length:,} bytes.")
        return span

    @property
    def length(self) -> int:
        return self.last - self.first + 1


def get_partial_path(lease: int, sha256: str, total: int) -> Path:
    return settings.UPLOADS / str(lease) / f"{sha256}.{total}"


def get_received_size(lease: int, sha256: str) -> int:
    """Return how many bytes of a file have arrived; one less of a complete file whose hash was not checked yet.

    So the node sends the last byte again, and with it the file is checked.
    """
    for path in (settings.UPLOADS / str(lease)).glob(f"{sha256}.*"):
        with suppress(FileNotFoundError):  # just completed
            return min(path.stat().st_size, int(path.suffix[1:]) - 1)
    return 0


def sum_begun_uploads(except_for: Path) -> int:
    """Return the bytes that the lease's other partial files have when they are complete."""
    return sum(int(path.suffix[1:]) for path in except_for.parent.glob("*") if path != except_for)


@contextmanager
def open_partial_file(path: Path) -> Iterator[IO[bytes]]:
    """Open and lock a partial file; create it if there is none."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not is_same_file(path, file):  # completed and moved to the storage meanwhile
                continue
            yield file
            return


def is_same_file(path: Path, file: IO[bytes]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def append_piece(file: IO[bytes], span: ByteRange, read: Callable[[int], bytes]) -> int:
    """Append the new part of a piece; return the size of the file. Raises RangeError if bytes before it are missing."""
    size = file.seek(0, 2)
    if span.first > size:
        raise RangeError(f"The file has {size:,} bytes so far, and this piece starts at {span.first:,}.")
    left, known = span.length, size - span.first
    while left > 0 and (data := read(min(storage.CHUNK, left))):
        left -= len(data)
        file.write(data[known:])  # appends
        known = max(known - len(data), 0)
    file.flush()
    return max(size, span.last + 1 - left)


def finish_upload(sha256: str, path: Path) -> Blob:
    """Return the blob of a complete file. Raises InvalidMessageError for a wrong hash. Deletes the file."""
    try:
        return storage.store_local_file(sha256, path)
    finally:
        path.unlink(missing_ok=True)


def delete_partial_uploads(lease: int) -> None:
    """Delete the partial files of a lease."""
    shutil.rmtree(settings.UPLOADS / str(lease), ignore_errors=True)


def list_leases_with_partials() -> list[int]:
    """Return the ids of leases with partial files."""
    folder: Path = settings.UPLOADS
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit()) if folder.is_dir() else []
