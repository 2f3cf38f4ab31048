"""Talking to the site: one attempt at a time, and patience around it.

Refused       the server understood and said no (any 4xx but those below): trying again is of no use
Unreachable   network, 429, 5xx, or an answer that nobody understands (a proxy's): try again later
GaveUp        somebody stopped waiting for the server
"""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from typing import TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import ValidationError

from trainer.node.transfer_speed import TransferSpeed
from trainer.protocol import Acknowledgment, ErrorDetail, FileRef, Message, parse_lenient

PREFIX = "/api/node/v1"
TIMEOUT_SECONDS = 15.0
"""How long the server may be silent."""
CHUNK_BYTES = 1 << 20
PIECE_BYTES = 8 << 20
"""A larger file goes up in pieces of this size: a connection that breaks costs one at most."""
SERVER_BYTES_PER_SECOND = 50e6
"""The site hashes and stores a file once its last piece is there, at this speed or better; its answer takes as long."""
BACKOFF_SECONDS = 0.5
BACKOFF_MAX_SECONDS = 20.0
TRANSIENT = {408, 425, 429}

Reply = TypeVar("Reply", bound=Message)
Result = TypeVar("Result")


class RequestRefusedError(Exception):
    """The server said no, in a sentence."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


class ServerUnreachableError(Exception):
    """The server cannot be reached just now."""

    def __init__(self, reason: str, retry_after: float = 0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class GaveUpError(Exception):
    """The server was not reached in time."""


class DamagedFileError(Exception):
    """What was downloaded is not what was announced."""


class SiteClient:
    """Calls with one credential. Safe to use from several threads."""

    def __init__(
        self, server: str, token: str, http: httpx.Client | None = None, speed: TransferSpeed | None = None
    ) -> None:
        self.server = server.rstrip("/")
        self.token = token
        self.speed = speed or TransferSpeed()
        self._http = http or build_http_client(self.server)

    def on_behalf(self, token: str) -> SiteClient:
        """The same connections with another credential."""
        return SiteClient(self.server, token, self._http, self.speed)

    def close(self) -> None:
        """End the connections, also of those on whose behalf this one speaks."""
        self._http.close()

    def post(self, path: str, message: Message, reply: type[Reply], patience: float = TIMEOUT_SECONDS) -> Reply:
        """Raise `Refused` or `Unreachable`."""
        answer = self._send(
            "POST", path, message.model_dump_json().encode(), {"Content-Type": "application/json"}, patience
        )
        return parse_response(answer, reply)

    def tell(self, path: str, message: Message) -> None:
        """As `post`, for an answer that says nothing."""
        self._send(
            "POST", path, message.model_dump_json().encode(), {"Content-Type": "application/json"}, TIMEOUT_SECONDS
        )

    def put(self, path: str, file: BufferedReader, size: int) -> None:
        """Send exactly `size` bytes. Raise `Refused`, `Unreachable`, or `Damaged` if the file is shorter."""
        begun = time.monotonic()
        self._send("PUT", path, read_pieces(file, size), build_upload_headers(size), TIMEOUT_SECONDS)
        self.speed.note("up", size, time.monotonic() - begun)

    def put_piece(self, path: str, file: BufferedReader, first: int, total: int) -> int:
        """Send the next `PIECE` of a file from byte `first` on; return how far the server has it. Raises as `put`."""
        size = min(PIECE_BYTES, total - first)
        file.seek(first)
        headers = build_upload_headers(size) | {"Content-Range": f"bytes {first}-{first + size - 1}/{total}"}
        patience = TIMEOUT_SECONDS + (total / SERVER_BYTES_PER_SECOND if first + size == total else 0)
        begun = time.monotonic()
        answer = self._send("PUT", path, read_pieces(file, size), headers, patience)
        if first + size < total:  # the last one waits for the server to look at all of it
            self.speed.note("up", size, time.monotonic() - begun)
        return parse_response(answer, Acknowledgment).received

    def received(self, path: str) -> int:
        """Return how far the server has a file that was begun. Raise `Refused` or `Unreachable`."""
        offset = self._send("HEAD", path, b"", {}, TIMEOUT_SECONDS).headers.get("Upload-Offset", "")
        if not offset.isdigit():
            raise ServerUnreachableError("The server's answer could not be understood.")
        return int(offset)

    @contextmanager
    def getting(self, path: str, first: int = 0) -> Iterator[httpx.Response]:
        """The answer whose body is a file from byte `first` on, or (status 200) all of it where nobody can do that.

        Raise `Refused` or `Unreachable`, also when it breaks off while it is read.
        """
        # As it is: a range of what a proxy has compressed would be of no use.
        headers = self._headers() | {"Accept-Encoding": "identity"} | ({"Range": f"bytes={first}-"} if first else {})
        try:
            # A site with a bucket sends us there; httpx leaves our token behind, and the hash says what came.
            with self._http.stream(
                "GET", self._url(path), headers=headers, timeout=TIMEOUT_SECONDS, follow_redirects=True
            ) as answer:
                if answer.status_code not in (200, 206):
                    answer.read()
                    check_response(answer)
                yield answer
        except httpx.HTTPError as error:
            raise ServerUnreachableError(describe_network_error(error)) from error

    def _send(
        self, method: str, path: str, content: bytes | Iterator[bytes], headers: dict[str, str], patience: float
    ) -> httpx.Response:
        try:
            answer = self._http.request(
                method, self._url(path), content=content, headers=self._headers() | headers, timeout=patience
            )
        except httpx.HTTPError as error:
            raise ServerUnreachableError(describe_network_error(error)) from error
        check_response(answer)
        return answer

    def _url(self, path: str) -> str:
        return f"{self.server}{PREFIX}{path}"

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


def build_http_client(server: str) -> httpx.Client:
    address = urlsplit(server)
    local = address.hostname in ("localhost", "127.0.0.1", "::1")
    # Certificates take a tenth of a second to load: only where they are needed. No proxy to ourselves.
    return httpx.Client(
        verify=address.scheme == "https", trust_env=not local, headers={"User-Agent": "dailytrain-node"}
    )


def build_upload_headers(size: int) -> dict[str, str]:
    return {"Content-Type": "application/octet-stream", "Content-Length": str(size)}


def parse_response(answer: httpx.Response, reply: type[Reply]) -> Reply:
    """Raise `Unreachable` for what is no such message: it is a proxy's."""
    try:
        return parse_lenient(reply, answer.content)
    except ValidationError as error:
        raise ServerUnreachableError("The server's answer could not be understood.") from error


def describe_network_error(error: httpx.HTTPError) -> str:
    return f"The server cannot be reached ({error or type(error).__name__})."


def check_response(answer: httpx.Response) -> None:
    """Raise `Unreachable` or `Refused` for everything but success."""
    status = answer.status_code
    if status in TRANSIENT or status >= 500:
        raise ServerUnreachableError(
            f"The server is busy ({status}).", parse_retry_after(answer.headers.get("Retry-After", ""))
        )
    if status < 300:
        return
    if status < 400:
        raise RequestRefusedError(
            status, f"The server sends us elsewhere: start with --server {answer.headers.get('Location', '')}."
        )
    try:
        detail = parse_lenient(ErrorDetail, answer.content).detail
    except ValidationError:
        detail = f"The server refused with {status} and no reason."
    raise RequestRefusedError(status, detail)


def parse_retry_after(header: str) -> float:
    return float(header) if header.isdigit() else 0.0


def read_pieces(file: BufferedReader, size: int) -> Iterator[bytes]:
    while size > 0:
        piece = file.read(min(CHUNK_BYTES, size))
        if not piece:
            raise DamagedFileError("A file became shorter while it was sent.")
        size -= len(piece)
        yield piece


def retry_until_reachable(attempt: Callable[[], Result], give_up: Callable[[], bool]) -> Result:
    """Try until it works: exponential backoff with full jitter, so that nodes do not come back all at once.

    Raise `GaveUp` as soon as `give_up` says so and the server is out of reach; `Refused` and others pass through.
    """
    tries = 0
    while True:
        try:
            return attempt()
        except ServerUnreachableError as error:
            if give_up():
                raise GaveUpError(str(error)) from error
            longest = min(BACKOFF_MAX_SECONDS, BACKOFF_SECONDS * 2**tries)
            sleep_unless(error.retry_after + random.uniform(0, longest), give_up)
            tries = min(tries + 1, 16)


def sleep_unless(seconds: float, give_up: Callable[[], bool]) -> None:
    """Sleep, but not beyond the moment when `give_up` says so."""
    until = time.monotonic() + seconds
    while not give_up() and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, 0.1))


def build_file_ref(path: str, file: BufferedReader) -> FileRef:
    """Return size and hash of an open file, and put it back to its start."""
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    size = os.fstat(file.fileno()).st_size
    file.seek(0)
    return FileRef(path=path, sha256=digest, size=size)
