"""The ASGI application that uvicorn serves.

Pages and APIs are synchronous Django, so they run as WSGI in two pools of threads: uploads reach their view as they
arrive, files are sent piece by piece, and a request never changes threads. Few threads answer pages and API calls,
because they compete for Python's lock: with 1,000 nodes, 16 took 1.5 times the CPU time of 3 for a request
(benchmarks/results/operations.md). More threads serve files, because those wait for slow clients, and answer requests
for runs, which may fetch a repository for minutes. A request that is not a file reaches its thread with its whole body,
so a slow client occupies none.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from threading import Event
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dailytrain.settings")

from a2wsgi import WSGIMiddleware
from django.conf import settings
from django.core.wsgi import get_wsgi_application

from dailytrain.proxies import TrustedProxiesMiddleware

django_wsgi: Any = get_wsgi_application()

import dailytrain.urls  # noqa: E402, F401 (imports all views before the first request: GitHub waits only 10 s)

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]

FILE_PATH = re.compile(
    r"/api/node/v1/leases/0*(?P<lease>\d+)/blobs/|/runs/\d+/(weights|parts)/|/campaigns/[^/]+/files/|/graphs/|/download/"
)
BODY_SECONDS = 30.0  # for the body of a request that is not a file, and
BODY_BYTES_PER_SECOND = 7000  # beyond that: a body of 4 MiB has ten minutes
COLLECTED_BYTES = 512 * 2**20  # of such bodies together in a process: those that docker/nginx.conf.template lets in
collected_bytes = 0  # now
UPLOAD_SECONDS = 1200.0  # for a piece of a file: 7 kB/s
UPLOADS_PER_LEASE = 4  # at a time; the agent sends one or two
running_uploads: list[str | None] = []  # the lease of each
DISCONNECTED = "dailytrain.disconnected"  # in the scope of a download: set when its client has hung up


def send_until_disconnect(environ: Any, start_response: Any) -> Iterator[bytes]:
    """Answer as Django does, and stop when the client has hung up: uvicorn would accept the rest of a file, unsent."""
    disconnected: Event | None = environ["asgi.scope"].get(DISCONNECTED)
    response = django_wsgi(environ, start_response)
    try:
        for chunk in response:
            if disconnected and disconnected.is_set():
                return
            yield chunk
    finally:
        response.close()


django_application: Any = WSGIMiddleware(django_wsgi, workers=settings.WEB_THREADS)
file_application: Any = WSGIMiddleware(send_until_disconnect, workers=settings.WEB_FILE_THREADS)


async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
    file = match_file_path(scope)
    application = file_application if file else django_application
    method = scope["method"] if scope["type"] == "http" else ""
    if file and method == "PUT":
        await receive_upload(file["lease"], scope, receive, send)
    elif file and method in ("GET", "HEAD"):
        scope[DISCONNECTED] = Event()
        watch = asyncio.create_task(watch_disconnect(receive, scope[DISCONNECTED]))
        try:
            await application(scope, receive, send)
        finally:
            watch.cancel()
    elif method:
        await collect_and_answer(application, scope, receive, send)
    else:
        await application(scope, receive, send)


async def collect_and_answer(application: Any, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request when its whole body is here, unless that takes too much time or memory."""
    global collected_bytes
    headers = dict(scope["headers"])
    is_chunked, most = b"transfer-encoding" in headers, settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    given = headers.get(b"content-length", b"0")
    length = most if is_chunked else int(given) if given.isdigit() else 0
    body = bytearray()
    try:
        try:
            async with asyncio.timeout(BODY_SECONDS + min(length, most) / BODY_BYTES_PER_SECOND):
                receive = await read_whole_body(length, receive, body)
        except BodyTooLargeError:
            await refuse(send, 413, "The body is too large.")
            return
        except TimeoutError:
            await refuse(send, 408, "The body did not arrive in time.")
            return
        except MemoryError:
            await refuse(send, 503, "The site receives too many bodies at a time.")
            return
        if is_chunked:  # WSGI reads as much as the length says
            scope["headers"] = [*scope["headers"], (b"content-length", b"%d" % len(body))]
        await application(scope, receive, send)
    finally:
        collected_bytes -= len(body)


async def receive_upload(lease: str | None, scope: Scope, receive: Receive, send: Send) -> None:
    """Let an upload occupy a thread, for `UPLOAD_SECONDS` at most. A lease gets few threads, since clients are slow."""
    deadline = asyncio.get_running_loop().time() + UPLOAD_SECONDS

    async def receive_in_time() -> Mapping[str, Any]:
        try:
            async with asyncio.timeout_at(deadline):
                return await receive()
        except TimeoutError:
            return {"type": "http.disconnect"}

    if running_uploads.count(lease) >= UPLOADS_PER_LEASE:
        await refuse(send, 503, "Too many uploads of this lease at a time.")
        return
    running_uploads.append(lease)
    try:
        await file_application(scope, receive_in_time, send)
    finally:
        running_uploads.remove(lease)


async def refuse(send: Send, status: int, message: str) -> None:
    """Answer without reading the body."""
    headers = [(b"connection", b"close"), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"detail": message}).encode()})


async def watch_disconnect(receive: Receive, disconnected: Event) -> None:
    """Receive what the client of a download sends, which has no body, until it hangs up."""
    while (await receive())["type"] != "http.disconnect":
        pass
    disconnected.set()


class BodyTooLargeError(Exception):
    """The body is larger than the site ever reads."""


async def read_whole_body(length: int, receive: Receive, body: bytearray) -> Receive:
    """Return a function that receives the body, of at most this length, at once.

    Raise BodyTooLargeError if it is too large, and MemoryError if all bodies together are.
    """
    global collected_bytes
    if length > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
        raise BodyTooLargeError
    event: Any = {"more_body": length > 0}
    while event.get("more_body"):
        event = await receive()
        chunk = event.get("body", b"")
        body += chunk
        collected_bytes += len(chunk)
        if len(body) > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
            raise BodyTooLargeError
        if collected_bytes > COLLECTED_BYTES:
            raise MemoryError
    events: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]
    if event.get("type") == "http.disconnect":
        events.insert(0, event)

    async def receive_next() -> Any:
        return events.pop(0) if events else await receive()

    return receive_next


def match_file_path(scope: Scope) -> re.Match[str] | None:
    return FILE_PATH.match(scope["path"]) if scope["type"] == "http" else None


application = TrustedProxiesMiddleware(dispatch, settings.TRUSTED_PROXIES)
