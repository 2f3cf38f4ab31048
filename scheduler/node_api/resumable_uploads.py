"""Large files that arrive in pieces: on this server's own disk until they are whole, whatever the storage is.

A piece that was cut short stays as far as it came. Nothing here counts: a file counts once all of it has its hash.
Not covered: several servers without a common folder. A node that meets another one after a break begins anew there.
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
    """Which bytes of a file a piece is: `first` to `last`, both included, of `total`."""

    first: int
    last: int
    total: int

    @classmethod
    def parse(cls, header: str, length: int) -> Self:
        """Read `Content-Range: bytes first-last/total` of a body of `length` bytes; raise Unacceptable."""
        match = re.fullmatch(r"bytes (\d{1,15})-(\d{1,15})/(\d{1,15})", header)
        span = cls(*map(int, match.groups())) if match else None
        if span is None or not span.first <= span.last < span.total or span.length != length:
            raise InvalidMessageError(f"Content-Range {header[:80]!r} is not that of a body of {length:,} bytes.")
        return span

    @property
    def length(self) -> int:
        return self.last - self.first + 1


def get_partial_path(lease: int, sha256: str, total: int) -> Path:
    return settings.UPLOADS / str(lease) / f"{sha256}.{total}"


def get_received_size(lease: int, sha256: str) -> int:
    """Return how many bytes of a file are here. One that is whole and has not been found right misses its last byte:
    with that it is looked at again."""
    for path in (settings.UPLOADS / str(lease)).glob(f"{sha256}.*"):
        with suppress(FileNotFoundError):  # it became whole just now
            return min(path.stat().st_size, int(path.suffix[1:]) - 1)
    return 0


def sum_partial_sizes(lease: int, beside: str) -> int:
    """Return how many bytes of a lease's other files are here."""
    sizes = 0
    for path in (settings.UPLOADS / str(lease)).glob("*"):
        with suppress(FileNotFoundError):
            sizes += 0 if path.name.startswith(beside) else path.stat().st_size
    return sizes


@contextmanager
def open_partial_file(lease: int, sha256: str, total: int) -> Iterator[IO[bytes]]:
    """Open a partial file, empty if there is none; of several who want it at once each waits for the one before."""
    path = get_partial_path(lease, sha256, total)
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not is_same_file(path, file):  # it became whole while we waited, and belongs to the storage now
                continue
            yield file
            return


def is_same_file(path: Path, file: IO[bytes]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def append_piece(file: IO[bytes], span: ByteRange, read: Callable[[int], bytes]) -> int:
    """Put a piece where it belongs; return how far the file is here. Raise Elsewhere if something before it is missing.

    Of a piece that is here in part only the rest is kept.
    """
    size = file.seek(0, 2)
    if span.first > size:
        raise RangeError(f"The file is here up to byte {size:,}, and this piece begins at {span.first:,}.")
    left, known = span.length, size - span.first
    while left > 0 and (data := read(min(storage.CHUNK, left))):
        left -= len(data)
        file.write(data[known:])  # appends
        known = max(known - len(data), 0)
    file.flush()
    return max(size, span.last + 1 - left)


def finish_upload(sha256: str, path: Path) -> Blob:
    """Make a blob of a file that is whole. Raise Unacceptable, and drop it, if its hash is another one."""
    try:
        return storage.store_local_file(sha256, path)
    finally:
        path.unlink(missing_ok=True)


def delete_partial_uploads(lease: int) -> None:
    """Drop what a lease left half-way."""
    shutil.rmtree(settings.UPLOADS / str(lease), ignore_errors=True)


def list_leases_with_partials() -> list[int]:
    """Return the leases that have something here."""
    folder: Path = settings.UPLOADS
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit()) if folder.is_dir() else []
