"""Fetching one file so that a line which breaks again and again still brings it.

What has come is kept, and the next attempt asks for the rest (`Range`). A file's name is its hash, so what is at one
address never changes, and the hash at the end says whether the parts are of one piece. Not covered: a workspace is
wiped with its lease, so a file that was to be laid out there begins anew under the next one.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from pathlib import Path

import httpx

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

BEYOND = 416
"""There is nothing from that byte on."""
PARTIAL = 206


def download_file(client: SiteClient, path: str, file: FileRef, target: Path, give_up: Callable[[], bool]) -> None:
    """Bring `target` to hold the bytes of `file`; what lies there already is taken for its beginning.

    Raises as `persistently`, and `Damaged` if the bytes are others.
    """
    fetched = FileDownload(client, path, file, target, give_up)
    try:
        fetched.complete()
    except DamagedFileError:
        if not fetched.joined:
            raise
        fetched.begin_anew()  # one of the parts was not of this file
        fetched.complete()


class FileDownload:
    def __init__(self, client: SiteClient, path: str, file: FileRef, target: Path, give_up: Callable[[], bool]) -> None:
        self._client = client
        self._path = path
        self._file = file
        self._target = target
        self._give_up = give_up
        self._digest = hashlib.sha256()
        self._furthest = 0
        self._arrived = 0
        self.received = 0
        """Bytes that are here."""
        self.joined = False
        """Its bytes came in more than one part."""
        if target.is_file():
            self._take_up()

    def complete(self) -> None:
        while self.received < self._file.size or (self._file.size == 0 and not self._target.exists()):
            retry_until_reachable(self._fetch, self._give_up)  # patience begins anew with everything that arrived
        if self.received > self._file.size or self._digest.hexdigest() != self._file.sha256:
            raise DamagedFileError(f"{self._file.path} is not the file that the order names (its SHA-256 differs).")

    def begin_anew(self) -> None:
        self._target.unlink(missing_ok=True)
        self._digest = hashlib.sha256()
        self.received, self.joined = 0, False

    def _take_up(self) -> None:
        with self._target.open("rb") as here:
            self._digest = hashlib.file_digest(here, "sha256")
            self.received = here.tell()
        self.joined = self.received > 0
        if self.received > self._file.size:
            self.begin_anew()

    def _fetch(self) -> None:
        """Bring what is missing, or as much of it as comes; raise `Unreachable` if that is next to nothing."""
        begun, before = time.monotonic(), self._arrived
        try:
            with self._client.getting(self._path, self.received) as answer:
                if self.received and not continues_from(answer, self.received):
                    self.begin_anew()
                self._write(answer)
        except ServerUnreachableError:
            if self.received < self._furthest + CHUNK_BYTES:
                raise
        except RequestRefusedError as error:
            if error.status != BEYOND:
                raise
            self.begin_anew()
            raise ServerUnreachableError("What is here of a file does not fit to it.") from error
        finally:
            self.joined = self.joined or self.received < self._file.size
            self._client.speed.note("down", self._arrived - before, time.monotonic() - begun)
        if self.received <= self._furthest and self.received < self._file.size:
            raise ServerUnreachableError("The connection broke off.")
        self._furthest = max(self._furthest, self.received)

    def _write(self, answer: httpx.Response) -> None:
        with self._target.open("ab") as out:
            for piece in answer.iter_bytes():
                if self._give_up():
                    raise GaveUpError("The download was ended.")
                out.write(piece)
                self._digest.update(piece)
                self.received += len(piece)
                self._arrived += len(piece)
                if self.received > self._file.size:
                    return


def continues_from(answer: httpx.Response, first: int) -> bool:
    """Whether the answer is the rest that was asked for; one that knows no ranges sends all of it again."""
    said = re.match(r"bytes (\d{1,18})-", answer.headers.get("Content-Range", ""))
    return answer.status_code == PARTIAL and said is not None and int(said[1]) == first
