"""No request body larger than its address takes, refused before it fills the disk."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from django.conf import settings

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

UPLOAD = re.compile(r"/api/node/v1/leases/\d+/blobs/[0-9a-f]{64}")
WEBHOOK = "/github/webhook"
ANSWER = b'{"detail": "That is larger than the site takes at this address."}'


class BodyLimit:
    """Wraps the application: Django under ASGI keeps a whole body on disk before any view is asked."""

    def __init__(self, application: Application) -> None:
        self.application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.application(scope, receive, send)
            return
        limit = limit_of(scope)
        if declared(scope) > limit:
            await refuse(send)
            return
        body = Counted(receive, limit)
        await self.application(scope, body.receive, send)
        if body.too_long:
            await refuse(send)


class Counted:
    """A body that need not state its length: after `limit` bytes the application is told that the sender hung up."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self.left = limit
        self.too_long = False

    async def receive(self) -> Mapping[str, Any]:
        message = await self._receive()
        self.left -= len(message.get("body", b""))
        if self.left < 0:
            self.too_long = True  # Django drops what it has and answers nothing: no view has been asked yet
            return {"type": "http.disconnect"}
        return message


def limit_of(scope: Scope) -> int:
    limit: int = settings.BODY_MAX_BYTES
    if scope["method"] == "PUT" and UPLOAD.fullmatch(scope["path"]):
        limit = settings.BLOB_MAX_BYTES
    elif scope["path"] == WEBHOOK:
        limit = settings.GITHUB_WEBHOOK_MAX_BYTES
    return limit


def declared(scope: Scope) -> int:
    """Return the length that the request states; 0 when it states none, or nonsense (the server refuses that)."""
    value = dict(scope["headers"]).get(b"content-length", b"0")
    return int(value) if value.isdigit() else 0


async def refuse(send: Send) -> None:
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})
