"""`POST /api/node/v1/poll` as an ASGI application: an open poll waits on the event loop, not in a thread.

Database work runs in a small thread pool of the process, so that many polls at once queue up instead of competing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.db import close_old_connections

from scheduler import node_tokens, sanitize
from scheduler.errors import UnauthorizedError
from scheduler.last_seen import FLUSH_SECONDS, LastSeenBuffer
from scheduler.node_api.error_replies import NOT_AUTHENTICATED, build_error_reply
from scheduler.node_api.poll_waiters import PollWaiters
from scheduler.node_api.polls import PollSession
from trainer import protocol

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
Result = TypeVar("Result")

POLL_PATH = "/api/node/v1/poll"
THREADS = 8
"""Threads for polls. With 4, the fsync of PostgreSQL limits the rate, since threads wait for it."""
EXECUTOR = ThreadPoolExecutor(THREADS, thread_name_prefix="poll")
LAST_SEEN = LastSeenBuffer()


class ClientDisconnectedError(Exception):
    """The node closed the connection before its request was complete."""


class PollEndpoint:
    """The ASGI application. One per process."""

    def __init__(self) -> None:
        self._waiters = PollWaiters(run_in_thread)
        self._flush: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            reply = await self._answer(scope, receive)
        except ClientDisconnectedError:
            return
        except Exception as error:
            status, detail, headers = build_error_reply(error)
            await send_json(send, status, protocol.ErrorDetail(detail=detail), headers)
        else:
            await send_json(send, 200, reply)

    async def _answer(self, scope: Scope, receive: Receive) -> protocol.PollReply:
        loop = asyncio.get_running_loop()
        arrived = loop.time()
        session, reply = await run_in_thread(start_poll, scope["headers"], await read_body(receive))
        if LAST_SEEN and (self._flush is None or self._flush.done()):
            self._flush = asyncio.create_task(flush_last_seen())
        timeout = arrived + session.message.wait_seconds - loop.time()
        if reply is None and timeout > 0:
            disconnected = asyncio.ensure_future(wait_for_disconnect(receive))
            try:
                reply = await self._waiters.wait(session, timeout, disconnected)
            finally:
                disconnected.cancel()
        return reply or session.build_no_job_reply()


async def run_in_thread(function: Callable[..., Result], *args: Any) -> Result:
    return await asyncio.get_running_loop().run_in_executor(EXECUTOR, run_with_connection, function, *args)


def run_with_connection(function: Callable[..., Result], *args: Any) -> Result:
    """Run a function and return its thread's connection to the pool."""
    try:
        return function(*args)
    finally:
        close_old_connections()


def start_poll(headers: list[tuple[bytes, bytes]], body: bytes) -> tuple[PollSession, protocol.PollReply | None]:
    """Authenticate and check a poll once. Raises ApiError or ValidationError."""
    scheme, _, token = dict(headers).get(b"authorization", b"").decode("latin-1").partition(" ")
    if scheme.lower() != "bearer":
        raise UnauthorizedError(NOT_AUTHENTICATED)
    node = node_tokens.authenticate_node(token)
    session = PollSession(node, protocol.Poll.model_validate(sanitize.parse_message(body)))
    return session, session.check(LAST_SEEN)


async def flush_last_seen() -> None:
    await asyncio.sleep(FLUSH_SECONDS)
    await run_in_thread(LAST_SEEN.flush)


# --- ASGI -------------------------------------------------------------------------------------------------------------


async def read_body(receive: Receive) -> bytes:
    """Return the body. Raises RequestDataTooBig once all of a too large one has arrived, ClientDisconnectedError."""
    body, size = b"", 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise ClientDisconnectedError
        size += len(event.get("body", b""))
        body = body + event.get("body", b"") if size <= settings.DATA_UPLOAD_MAX_MEMORY_SIZE else b""
        if not event.get("more_body"):
            break
    if size > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
        raise RequestDataTooBig
    return body


async def wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_json(
    send: Send, status: int, message: protocol.Message, headers: Mapping[str, str] | None = None
) -> None:
    body = message.model_dump_json(exclude_none=True).encode()
    fields = {"content-type": "application/json", "content-length": str(len(body)), "x-content-type-options": "nosniff"}
    pairs = [(name.encode(), value.encode()) for name, value in {**fields, **(headers or {})}.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
