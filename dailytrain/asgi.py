"""What uvicorn serves: pages, and what nodes say."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from typing import Any

import django
from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dailytrain.settings")
django.setup(set_prefix=False)

from django.core.handlers.asgi import ASGIHandler  # noqa: E402
from django.core.handlers.exception import convert_exception_to_response  # noqa: E402
from django.db import Error, connection  # noqa: E402
from django.http import HttpRequest, HttpResponse, HttpResponseBase  # noqa: E402
from django.urls import get_resolver  # noqa: E402

from dailytrain.bodies import Application, BodyLimit, Receive, Scope, Send  # noqa: E402
from leaderboard.rankings import standings  # noqa: E402
from leaderboard.views.shared import SharedAnswers  # noqa: E402
from scheduler.node_api.poll_endpoint import POLL_PATH, PollEndpoint  # noqa: E402

logger = logging.getLogger(__name__)
NODES = "/api/node/"
GARBAGE = (5_000, 20, 20)
"""New objects after which Python looks for rings of them. A page leaves over a thousand in rings: to take those of
fourteen pages away at once is 18 ms in which nobody is answered, those of three 3 ms."""


class ThreadsKept(ASGIHandler):
    """Django begins a thread for each request, and with it a new connection to the database; these are kept."""

    def __init__(self) -> None:
        super().__init__()
        self._idle: list[ThreadSensitiveContext] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = self._idle.pop() if self._idle else ThreadSensitiveContext()
        before = SyncToAsync.thread_sensitive_context.set(context)
        try:
            await self.handle(scope, receive, send)
        finally:
            SyncToAsync.thread_sensitive_context.reset(before)
            self._idle.append(context)


class PagesHandler(ThreadsKept):
    """Django whose middlewares and view run through in one thread, in one go: none of them has anything to wait for
    but the database, and each change between the event loop and a thread costs as much as a small page."""

    def load_middleware(self, is_async: bool = False) -> None:
        super().load_middleware(is_async=False)

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        return await sync_to_async(self.get_response)(request)


class NodesHandler(ThreadsKept):
    """Django without middleware, for machines: they have no session, no cookie and no page. What is left of it that
    matters to them is here."""

    def load_middleware(self, is_async: bool = False) -> None:
        self._view_middleware: list[Any] = []
        self._template_response_middleware: list[Any] = []
        self._exception_middleware: list[Any] = []
        self._middleware_chain = convert_exception_to_response(self.answer)

    async def answer(self, request: HttpRequest) -> HttpResponseBase:
        response: HttpResponseBase = await self._get_response_async(request)  # type: ignore[attr-defined]
        response.headers.setdefault("X-Content-Type-Options", "nosniff")
        if isinstance(response, HttpResponse):
            response.headers.setdefault("Content-Length", str(len(response.content)))
        return response


class Site:
    """Lets machines in by their own door."""

    def __init__(self) -> None:
        self.pages = SharedAnswers(PagesHandler())
        self.nodes = NodesHandler()
        self.poll_endpoint = PollEndpoint()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await live(receive, send)
        else:
            await self.door(scope)(scope, receive, send)

    def door(self, scope: Scope) -> Application:
        if scope["type"] != "http" or not scope["path"].startswith(NODES):
            return self.pages
        if scope["method"] == "POST" and scope["path"] == POLL_PATH:
            return self.poll_endpoint
        return self.nodes


async def live(receive: Receive, send: Send) -> None:
    """Say that the doors are open as soon as the tables are made: of thousands of runs that takes seconds."""
    await receive()
    await asyncio.get_running_loop().run_in_executor(None, prepare)
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.complete"})


def prepare() -> None:
    try:
        standings.prepare()
    except Error:
        logger.exception("The tables could not be made; the first page of each tries again.")
    finally:
        connection.close()


application = BodyLimit(Site())
get_resolver()._populate()  # imports all pages now: GitHub gives the first webhook ten seconds, a visitor less
gc.freeze()  # what is there now stays; to look through it is a tenth of a second in which nobody is answered
gc.set_threshold(*GARBAGE)
