"""What was answered to everybody a moment ago is answered again before Django is asked: of a page that is kept, that is
most of the work. A view says that an answer is for everybody by `share`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.http import HttpRequest
from django.utils.http import parse_etags

FRESH_SECONDS = 0.5
"""So long an answer holds after it was made."""
MOST_SECONDS = 1.0
"""So long it is given while somebody asks for the next one; after that the others wait for that."""
MOST = 300
"""Answers, of some tens of kilobytes each."""
SHARED = "shared"
"""In a request's scope: a list, empty until a view has called `share`."""
OF_304 = (b"cache-control", b"etag", b"vary")

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Name = tuple[object, ...]
Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Answer:
    headers: Headers
    body: bytes
    made: float = field(default_factory=time.monotonic)

    @property
    def age(self) -> float:
        return time.monotonic() - self.made


def share(request: HttpRequest) -> bool:
    """Say that this answer is for whoever asks for the same address without a cookie. Return whether somebody keeps it:
    then it has to be whole and compressed, and they see to it that it is not sent to a browser that has it."""
    shared: list[bool] | None = getattr(request, "scope", {}).get(SHARED)
    if shared is None:
        return False
    shared.append(True)
    return True


class SharedAnswers:
    """Wraps Django. All in one event loop, so nothing here is locked."""

    def __init__(self, application: Application) -> None:
        self.application = application
        self.known: dict[Name, Answer] = {}
        self.asking: dict[Name, asyncio.Event] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = name_of(scope)
        if name is None:
            await self.application(scope, receive, send)
            return
        known, next_one = self.known.get(name), self.asking.get(name)
        if known and next_one and known.age > MOST_SECONDS:
            await next_one.wait()
            known = self.known.get(name)
        elif known and known.age > FRESH_SECONDS and not next_one:
            known = None
        if known:
            await respond(known, scope, send)
        else:
            await self.ask(name, scope, receive, send)

    async def ask(self, name: Name, scope: Scope, receive: Receive, send: Send) -> None:
        """Ask Django, and keep what it says for everybody."""
        listener = Listener(send)
        done = self.asking.setdefault(name, asyncio.Event())
        try:
            await self.application({**scope, SHARED: listener.shared}, receive, listener.send)
        except BaseException:
            self.known.pop(name, None)
            raise
        finally:
            self.asking.pop(name, None)
            done.set()
        self.known.pop(name, None)
        if listener.answer is None:
            return
        self.known[name] = listener.answer
        while len(self.known) > MOST:
            del self.known[next(iter(self.known))]
        await respond(listener.answer, scope, send)


class Listener:
    """Lets an answer through, but for one to everybody: that it keeps."""

    def __init__(self, send: Send) -> None:
        self.through = send
        self.shared: list[bool] = []
        self.headers: Headers | None = None
        self.parts: list[bytes] = []
        self.answer: Answer | None = None

    async def send(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start" and self.shared and is_for_all(message):
            self.headers = list(message["headers"])
        elif self.headers is None:
            await self.through(message)
        else:
            self.parts.append(message.get("body", b""))
            if not message.get("more_body"):
                self.answer = Answer(self.headers, b"".join(self.parts))


def is_for_all(start: Mapping[str, Any]) -> bool:
    """Whether it is a page; middleware may have put a cookie on it."""
    return start["status"] == 200 and not any(name.lower() == b"set-cookie" for name, _ in start["headers"])


def name_of(scope: Scope) -> Name | None:
    """Return what an answer is kept under; None for a request that is somebody's own, or cannot take what is kept."""
    if scope["type"] != "http" or scope["method"] != "GET":
        return None
    given = dict(scope["headers"])
    if b"cookie" in given or b"authorization" in given or b"gzip" not in given.get(b"accept-encoding", b""):
        return None
    place = (given.get(b"host"), given.get(b"x-forwarded-host"), given.get(b"x-forwarded-proto"), scope.get("scheme"))
    return *place, scope["path"], scope["query_string"]


async def respond(answer: Answer, scope: Scope, send: Send) -> None:
    """Send it, or that it has not changed."""
    headers = {name.lower(): value for name, value in answer.headers}
    seen = dict(scope["headers"]).get(b"if-none-match", b"").decode("latin-1")
    if seen and has(parse_etags(seen), headers[b"etag"].decode("latin-1")):
        kept = [(name, headers[name]) for name in OF_304 if name in headers]
        await send({"type": "http.response.start", "status": 304, "headers": kept})
        await send({"type": "http.response.body", "body": b""})
        return
    await send({"type": "http.response.start", "status": 200, "headers": answer.headers})
    await send({"type": "http.response.body", "body": answer.body})


def has(tags: list[str], tag: str) -> bool:
    """Weak comparison (RFC 9110, 8.8.3.2)."""
    return "*" in tags or tag.removeprefix("W/") in (one.removeprefix("W/") for one in tags)
