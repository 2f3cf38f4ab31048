"""Where nodes ask for work, many at once: `POST /api/node/v1/poll`, answered without what Django and ninja would add.

A question takes one of a few threads while it is looked at (`clerks`), and none while it is held open (`lobby`). What
is not in order (an unknown token, a message that cannot be read, a database that is down) is answered where all other
calls of nodes are, by `node_api`, which says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from django.conf import settings

from scheduler.node_api import last_seen, polls, routes
from scheduler.node_api.poll_threads import CLERKS
from scheduler.node_api.poll_waiters import LOBBY
from trainer import protocol

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

POLL = "/api/node/v1/poll"
NOTES = last_seen.Notes()
"""Of this process."""


class FrontDesk:
    def __init__(self, otherwise: Application) -> None:
        """`otherwise`: what answers a question that is not in order."""
        self._otherwise = otherwise
        self._writing: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def asked(token: str, body: bytes) -> protocol.PollReply:
            came = asyncio.get_running_loop().time()
            question, action = await CLERKS.do(partial(hear, token, body))
            self._write_soon()
            return action or await held_open(question, came + question.message.wait_seconds, receive)

        await in_order(asked, self._otherwise, scope, receive, send)

    def _write_soon(self) -> None:
        """See to what has been noted of nodes being written down."""
        if NOTES and (self._writing is None or self._writing.done()):
            self._writing = asyncio.create_task(write_soon())


async def write_soon() -> None:
    await asyncio.sleep(last_seen.WRITTEN_EVERY)
    if NOTES:
        await CLERKS.do(NOTES.write)


def said(body: bytes) -> dict[str, Any]:
    """Return what a node has said; raise ValueError where it is too long, or cannot be read."""
    if len(body) > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
        raise ValueError("No message is so long.")
    return routes.plain_json(body)


def hear(token: str, body: bytes) -> tuple[polls.Question, protocol.PollReply | None]:
    """Look once, in a thread."""
    node = routes.admitted(token)
    question = polls.Question(node, protocol.Poll.model_validate(said(body)))
    return question, question.first(NOTES)


async def held_open(question: polls.Question, deadline: float, receive: Receive) -> protocol.PollReply:
    """Wait for an answer until the deadline, or until the node hangs up: then nothing may be given to it."""
    loop = asyncio.get_running_loop()
    if deadline <= loop.time():
        return question.nothing()
    gone = asyncio.ensure_future(hung_up(receive))
    try:
        while not gone.done() and (left := deadline - loop.time()) > 0:
            place = LOBBY.hold(question)
            coming = asyncio.wrap_future(place)
            await asyncio.wait((coming, gone), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if place.cancel():  # otherwise it has its answer, or is just being given one
                break
            if action := await coming:
                return action
    finally:
        gone.cancel()
    return question.nothing()


# --- HTTP ------------------------------------------------------------------------------------------------------------


async def in_order(
    asked: Callable[[str, bytes], Awaitable[protocol.Message]],
    otherwise: Application,
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """Answer with what `asked` makes of token and body, and what is not in order by `otherwise`."""
    body = await whole(receive)
    if body is None:
        return
    try:
        message = await asked(token_of(scope), body)
    except Exception:  # said, and logged, over there
        await otherwise(scope, once_more(body, receive), send)
        return
    await answer(send, message.model_dump_json(exclude_none=True).encode())


async def whole(receive: Receive) -> bytes | None:
    """Return the body of a request; None where its sender has hung up."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += bytes(message.get("body", b""))
        if not message.get("more_body"):
            return body


async def hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def once_more(body: bytes, receive: Receive) -> Receive:
    """Return what lets somebody else read a body that has been read."""
    unread = [body]

    async def first_the_body() -> Mapping[str, Any]:
        return {"type": "http.request", "body": unread.pop()} if unread else await receive()

    return first_the_body


def token_of(scope: Scope) -> str:
    """Return the bearer token; raise ValueError where there is none."""
    header: str = dict(scope["headers"])[b"authorization"].decode("latin-1")
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer":
        raise ValueError("This is no bearer token.")
    return token


async def answer(send: Send, body: bytes) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-content-type-options", b"nosniff"),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def rest() -> None:
    """Send away who waits, and let threads and connections go; the next question has new ones."""
    LOBBY.close()
    CLERKS.rest()
    NOTES.clear()
