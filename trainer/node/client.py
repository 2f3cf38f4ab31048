"""HTTP client of the site's node API, and retries around it.

RequestRefusedError       the server understood and refused (other 4xx): a retry is useless
ServerUnreachableError    network error, 408, 425, 429, 5xx, or a response from a proxy in between: retry later
GaveUpError               the caller stopped waiting for the server
"""

from __future__ import annotations

import hashlib
import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from typing import Literal, NoReturn, TypeVar
from urllib.parse import urljoin, urlsplit

import httpx
from pydantic import ValidationError
from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_random_exponential

from trainer.protocol import Acknowledgment, ErrorDetail, FileRef, Message, parse_lenient

PREFIX = "/api/node/v1"
TIMEOUT_SECONDS = 15.0  # how long the server may be silent
CHUNK_BYTES = 1 << 20
PIECE_BYTES = 8 << 20  # larger files are uploaded in pieces of this size: a broken connection costs at most one
SERVER_BYTES_PER_SECOND = 50e6
"""Lowest speed at which the site hashes and stores a complete file; it replies only afterwards."""
BACKOFF_SECONDS = 0.5
BACKOFF_MAX_SECONDS = 20.0
TRANSIENT_STATUSES = {408, 425, 429}
JSON_HEADERS = {"Content-Type": "application/json"}

Reply = TypeVar("Reply", bound=Message)
Result = TypeVar("Result")


class RequestRefusedError(Exception):
    """The server refused, with a reason."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


class ServerUnreachableError(Exception):
    """The server cannot be reached at the moment."""

    def __init__(self, reason: str, retry_after: float = 0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class GaveUpError(Exception):
    """The server was not reached in time."""


class DamagedFileError(Exception):
    """A transferred file is not what was announced."""


class SiteClient:
    """Calls the node API with one credential. Thread-safe.

    Every call raises `RequestRefusedError` or `ServerUnreachableError` if it fails.
    """

    def __init__(
        self,
        server: str,
        token: str,
        http: httpx.Client | None = None,
        speed: TransferSpeed | None = None,
        upload_rate: UploadRate | None = None,
    ) -> None:
        self.server = server.rstrip("/")
        self.token = token
        self.speed = speed or TransferSpeed()
        self.upload_rate = upload_rate or UploadRate()
        self._http = http or build_http_client(self.server)

    def with_token(self, token: str) -> SiteClient:
        """Return a client with another credential that shares the connections and the limit of uploads."""
        return SiteClient(self.server, token, self._http, self.speed, self.upload_rate)

    def close(self) -> None:
        """Close the connections, also those of clients made by `with_token`."""
        self._http.close()

    def post(self, path: str, message: Message, reply: type[Reply], timeout: float = TIMEOUT_SECONDS) -> Reply:
        return parse_response(
            self._send("POST", path, message.model_dump_json().encode(), JSON_HEADERS, timeout), reply
        )

    def post_without_reply(self, path: str, message: Message) -> None:
        self._send("POST", path, message.model_dump_json().encode(), JSON_HEADERS)

    def put_file(self, path: str, file: BufferedReader, size: int) -> None:
        """Send exactly `size` bytes; raise `DamagedFileError` if the file is shorter."""
        started_at = time.monotonic()
        self._send("PUT", path, read_chunks(file, size, self.upload_rate), build_upload_headers(size))
        self.speed.record("up", size, time.monotonic() - started_at)

    def put_piece(self, path: str, file: BufferedReader, first: int, total: int) -> int:
        """Send the next `PIECE_BYTES` of a file from byte `first` on; return how many bytes the server has.

        Raise `DamagedFileError` if the file is shorter than `total`.
        """
        size = min(PIECE_BYTES, total - first)
        file.seek(first)
        headers = build_upload_headers(size) | {"Content-Range": f"bytes {first}-{first + size - 1}/{total}"}
        timeout = TIMEOUT_SECONDS + (total / SERVER_BYTES_PER_SECOND if first + size == total else 0)
        started_at = time.monotonic()
        response = self._send("PUT", path, read_chunks(file, size, self.upload_rate), headers, timeout)
        if first + size < total:  # the reply to the last piece includes the server's check of the whole file
            self.speed.record("up", size, time.monotonic() - started_at)
        return parse_response(response, Acknowledgment).received

    def get_received_bytes(self, path: str) -> int:
        """Return how many bytes of a partial upload the server has."""
        offset = self._send("HEAD", path).headers.get("Upload-Offset", "")
        if not offset.isdigit():
            raise ServerUnreachableError("The server's response could not be parsed.")
        return int(offset)

    @contextmanager
    def stream_file(self, path: str, first: int = 0) -> Iterator[httpx.Response]:
        """Yield a response whose body is the file from byte `first`, or all of it (status 200) without range support.

        Errors while the body is read are raised as well.
        """
        # Uncompressed: a byte range of a proxy's compressed copy would be useless.
        headers = self._build_headers() | {"Accept-Encoding": "identity"}
        headers |= {"Range": f"bytes={first}-"} if first else {}
        try:
            # A site with a bucket redirects there. httpx drops our token then, and the hash verifies the bytes.
            with self._http.stream(
                "GET", self._build_url(path), headers=headers, timeout=TIMEOUT_SECONDS, follow_redirects=True
            ) as response:
                if response.status_code not in (200, 206):
                    response.read()
                    check_response(response)
                yield response
        except httpx.HTTPError as error:
            raise ServerUnreachableError(describe_network_error(error)) from error

    def _send(
        self,
        method: str,
        path: str,
        content: bytes | Iterator[bytes] = b"",
        headers: dict[str, str] | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> httpx.Response:
        headers = self._build_headers() | (headers or {})
        try:
            response = self._http.request(
                method, self._build_url(path), content=content, headers=headers, timeout=timeout
            )
        except httpx.HTTPError as error:
            raise ServerUnreachableError(describe_network_error(error)) from error
        check_response(response)
        return response

    def _build_url(self, path: str) -> str:
        return f"{self.server}{PREFIX}{path}"

    def _build_headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


def build_http_client(server: str) -> httpx.Client:
    address = urlsplit(server)
    is_local = address.hostname in ("localhost", "127.0.0.1", "::1")
    # Loading certificates takes a tenth of a second, so only for https. A local server needs no proxy.
    return httpx.Client(
        verify=address.scheme == "https", trust_env=not is_local, headers={"User-Agent": "dailytrain-node"}
    )


def build_upload_headers(size: int) -> dict[str, str]:
    return {"Content-Type": "application/octet-stream", "Content-Length": str(size)}


def parse_response(response: httpx.Response, reply: type[Reply]) -> Reply:
    """Parse a reply; raise `ServerUnreachableError` for any other content, which comes from a proxy."""
    try:
        return parse_lenient(reply, response.content)
    except ValidationError as error:
        raise ServerUnreachableError("The server's response could not be parsed.") from error


def describe_network_error(error: httpx.HTTPError) -> str:
    return f"The server cannot be reached ({error or type(error).__name__})."


def check_response(response: httpx.Response) -> None:
    """Raise `ServerUnreachableError` or `RequestRefusedError` unless the request succeeded."""
    status = response.status_code
    if status in TRANSIENT_STATUSES or status >= 500:
        raise ServerUnreachableError(f"The server is busy ({status}).", parse_retry_after(response))
    if status < 300:
        return
    if status < 400:
        address = urljoin(str(response.url), response.headers.get("Location", "")).partition(PREFIX)[0]
        raise RequestRefusedError(status, f"The server redirects to another address: start with --server {address}.")
    try:
        detail = parse_lenient(ErrorDetail, response.content).detail
    except ValidationError:
        detail = f"The server refused with {status} and no reason."
    raise RequestRefusedError(status, detail)


def parse_retry_after(response: httpx.Response) -> float:
    """Return the `Retry-After` header in seconds; 0 without one."""
    seconds: str = response.headers.get("Retry-After", "")
    return float(seconds) if seconds.isdigit() else 0.0


def read_chunks(file: BufferedReader, size: int, rate: UploadRate) -> Iterator[bytes]:
    while size > 0:
        chunk = file.read(min(rate.chunk_bytes, size))
        if not chunk:
            raise DamagedFileError("A file became shorter while it was sent.")
        size -= len(chunk)
        rate.wait_for(len(chunk))
        yield chunk


def retry_until_reachable(attempt: Callable[[], Result], should_give_up: Callable[[], bool]) -> Result:
    """Retry an unreachable server with exponential backoff, full jitter and the server's own `Retry-After`.

    Raise `GaveUpError` if the server is unreachable and `should_give_up()` is true; other errors pass through.
    """
    backoff = wait_random_exponential(BACKOFF_SECONDS, BACKOFF_MAX_SECONDS)
    retrying = Retrying(
        retry=retry_if_exception_type(ServerUnreachableError),
        wait=lambda state: get_unreachable_error(state).retry_after + backoff(state),
        stop=lambda _: should_give_up(),
        sleep=lambda seconds: sleep_unless(should_give_up, seconds),
        retry_error_callback=raise_gave_up,
    )
    return retrying(attempt)


def raise_gave_up(state: RetryCallState) -> NoReturn:
    error = get_unreachable_error(state)
    raise GaveUpError(str(error)) from error


def get_unreachable_error(state: RetryCallState) -> ServerUnreachableError:
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, ServerUnreachableError)
    return error


def sleep_unless(should_stop: Callable[[], bool], seconds: float) -> None:
    """Sleep, but return as soon as `should_stop()` is true."""
    until = time.monotonic() + seconds
    while not should_stop() and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, 0.1))


def build_file_ref(path: str, file: BufferedReader) -> FileRef:
    """Return size and hash of an open file, and rewind it."""
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    size = os.fstat(file.fileno()).st_size
    file.seek(0)
    return FileRef(path=path, sha256=digest, size=size)


MIN_BYTES = 1_000_000  # a smaller transfer measures latency rather than speed
HISTORY = 9

Direction = Literal["up", "down"]


class TransferSpeed:
    """The median of the latest large transfers in each direction. Thread-safe."""

    def __init__(self) -> None:
        self._latest: dict[Direction, deque[float]] = {"up": deque(maxlen=HISTORY), "down": deque(maxlen=HISTORY)}

    def record(self, direction: Direction, size: int, seconds: float) -> None:
        if size >= MIN_BYTES and seconds > 0:
            self._latest[direction].append(size / seconds)

    @property
    def bytes_per_second(self) -> float | None:
        """Speed of the slower direction; None before the first large transfer."""
        medians = [statistics.median_high(latest) for latest in map(list, self._latest.values()) if latest]
        return min(medians, default=None)


CHUNKS_PER_SECOND = 4  # so that a slow upload is steady and no proxy closes it


class UploadRate:
    """Each chunk waits until those before it have had their time. Thread-safe."""

    def __init__(self, bytes_per_second: int | None = None) -> None:
        """None: no limit."""
        self.bytes_per_second = bytes_per_second
        self._lock = threading.Lock()
        self._free_at = 0.0

    @property
    def chunk_bytes(self) -> int:
        limit = self.bytes_per_second
        return CHUNK_BYTES if limit is None else max(1, min(CHUNK_BYTES, limit // CHUNKS_PER_SECOND))

    def wait_for(self, size: int) -> None:
        """Wait until `size` bytes may be sent."""
        if self.bytes_per_second is None:
            return
        with self._lock:
            now = time.monotonic()
            start = max(now, self._free_at)
            self._free_at = start + size / self.bytes_per_second
        time.sleep(start - now)
