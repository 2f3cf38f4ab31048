"""Download and upload files over a connection that may break repeatedly.

Received bytes are kept and the next attempt requests the rest (`Range`). A file's name is its hash, so the content at
an address never changes, and the final hash verifies that the parts fit together. Not covered: a workspace is removed
with its lease, so a partial file in it is downloaded again under the next lease.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path

import httpx

from trainer.node import client as site
from trainer.node.client import (
    CHUNK_BYTES,
    DamagedFileError,
    GaveUpError,
    RequestRefusedError,
    ServerUnreachableError,
    SiteClient,
    retry_until_reachable,
)
from trainer.protocol import FileRef

RANGE_NOT_SATISFIABLE = 416
PARTIAL_CONTENT = 206


def download_file(
    client: SiteClient, path: str, file: FileRef, target: Path, should_give_up: Callable[[], bool]
) -> None:
    """Make `target` hold the bytes of `file`; existing bytes are taken as its beginning.

    Raises what `retry_until_reachable` raises, and `DamagedFileError` if the bytes are wrong.
    """
    download = FileDownload(client, path, file, target, should_give_up)
    try:
        download.complete()
    except DamagedFileError:
        if not download.has_parts:
            raise
        download.restart()  # one of the parts was not of this file
        download.complete()


class FileDownload:
    def __init__(
        self, client: SiteClient, path: str, file: FileRef, target: Path, should_give_up: Callable[[], bool]
    ) -> None:
        self._client = client
        self._path = path
        self._file = file
        self._target = target
        self._should_give_up = should_give_up
        self._digest = hashlib.sha256()
        self._furthest = 0
        self._transferred = 0
        self.received = 0  # bytes in `target`
        self.has_parts = False  # whether the bytes came in several parts
        if target.is_file():
            self._resume()

    def complete(self) -> None:
        while self.received < self._file.size or (self._file.size == 0 and not self._target.exists()):
            retry_until_reachable(self._fetch, self._should_give_up)  # progress resets the backoff
        if self.received > self._file.size or self._digest.hexdigest() != self._file.sha256:
            raise DamagedFileError(f"{self._file.path} is not the file that the order names (its SHA-256 differs).")

    def restart(self) -> None:
        self._target.unlink(missing_ok=True)
        self._digest = hashlib.sha256()
        self.received, self.has_parts = 0, False

    def _resume(self) -> None:
        with self._target.open("rb") as partial:
            self._digest = hashlib.file_digest(partial, "sha256")
            self.received = partial.tell()
        self.has_parts = self.received > 0
        if self.received > self._file.size:
            self.restart()

    def _fetch(self) -> None:
        """Download the rest; raise `ServerUnreachableError` if less than `CHUNK_BYTES` of new data arrives."""
        if self.received and (not self._target.is_file() or self._target.stat().st_size != self.received):
            self.restart()  # removed or changed meanwhile: the rest would be appended to something else
        started_at, before = time.monotonic(), self._transferred
        try:
            with self._client.stream_file(self._path, self.received) as response:
                if self.received and not continues_from(response, self.received):
                    self.restart()
                self._write(response)
        except ServerUnreachableError:
            if self.received < self._furthest + CHUNK_BYTES:
                raise
        except RequestRefusedError as error:
            if error.status != RANGE_NOT_SATISFIABLE:
                raise
            self.restart()
            raise ServerUnreachableError("The partial file does not fit.") from error
        finally:
            self.has_parts = self.has_parts or self.received < self._file.size
            self._client.speed.record("down", self._transferred - before, time.monotonic() - started_at)
        if self.received <= self._furthest and self.received < self._file.size:
            raise ServerUnreachableError("The connection broke off.")
        self._furthest = max(self._furthest, self.received)

    def _write(self, response: httpx.Response) -> None:
        with self._target.open("ab") as out:
            for piece in response.iter_bytes():
                if self._should_give_up():
                    raise GaveUpError("The download was ended.")
                out.write(piece)
                self._digest.update(piece)
                self.received += len(piece)
                self._transferred += len(piece)
                if self.received > self._file.size:
                    return


def continues_from(response: httpx.Response, first: int) -> bool:
    """Return whether the body begins at byte `first`; a server without range support sends the whole file."""
    match = re.match(r"bytes (\d{1,18})-", response.headers.get("Content-Range", ""))
    return response.status_code == PARTIAL_CONTENT and match is not None and int(match[1]) == first


OFFSET_MISMATCH_STATUS = 416  # the server has another number of bytes than we thought


def upload_file(
    client: SiteClient, path: str, size: int, content: BufferedReader, should_give_up: Callable[[], bool]
) -> None:
    """Upload a file, a large one in pieces; after a break, continue from what the server has.

    Raises what `retry_until_reachable` raises.
    """
    if size <= site.PIECE_BYTES:
        retry_until_reachable(lambda: upload_whole_file(client, path, size, content), should_give_up)
        return
    pieces = PieceUpload(client, path, size, content)
    while pieces.sent < size:
        retry_until_reachable(pieces.send_next, should_give_up)  # every piece that arrives resets the backoff


def upload_whole_file(client: SiteClient, path: str, size: int, content: BufferedReader) -> None:
    content.seek(0)
    client.put_file(path, content, size)


class PieceUpload:
    def __init__(self, client: SiteClient, path: str, size: int, content: BufferedReader) -> None:
        self._client = client
        self._path = path
        self._size = size
        self._content = content
        self._is_offset_unknown = False
        self.sent = 0  # bytes that the server has

    def send_next(self) -> None:
        if self._is_offset_unknown:
            self.sent = self._client.get_received_bytes(self._path)
            self._is_offset_unknown = False
        if self.sent >= self._size:
            return
        try:
            self.sent = self._client.put_piece(self._path, self._content, self.sent, self._size)
        except ServerUnreachableError:
            self._is_offset_unknown = True
            raise
        except RequestRefusedError as error:
            if error.status != OFFSET_MISMATCH_STATUS:
                raise
            self._is_offset_unknown = True
