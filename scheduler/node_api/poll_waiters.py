"""Polls that wait for a job. A waiting poll is a coroutine: it holds no thread and no database connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import DatabaseError

from scheduler.models import Job, Node
from scheduler.node_api.polls import PollSession
from trainer import protocol

logger = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
WATCHED_COLUMNS = ("state", "reason", "token_hash", "rest_until", "slots", "quota")
"""Columns of a waiting node whose change may change the reply."""
NODES_PER_QUERY = 1000

RunInThread = Callable[..., Awaitable[Any]]


@dataclass(eq=False)
class Waiter:
    session: PollSession
    reply: asyncio.Future[protocol.PollReply]
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a job may be claimed for this poll."""


class PollWaiters:
    """The waiting polls of a process. While there are any, a task checks once a second which can be answered."""

    def __init__(self, run_in_thread: RunInThread) -> None:
        """`run_in_thread`: awaits a function that uses the database."""
        self._run_in_thread = run_in_thread
        self._waiters: list[Waiter] = []
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiters)

    async def wait(
        self, session: PollSession, timeout: float, disconnected: asyncio.Future[None]
    ) -> protocol.PollReply | None:
        """Return the reply, or None after the timeout or when the node has disconnected: then no job is claimed."""
        waiter = Waiter(session, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._check_until_empty())
        try:
            await asyncio.wait((waiter.reply, disconnected), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiters.remove(waiter)
        async with waiter.lock:  # a check under way ends first: its reply may hold a lease
            return waiter.reply.result() if waiter.reply.done() else None

    async def _check_until_empty(self) -> None:
        while self._waiters:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                await self.check_all()
            except DatabaseError:  # the nodes poll again after their timeouts, and get the error then
                logger.exception("The waiting polls could not be checked")

    async def check_all(self) -> None:
        """Answer the polls that have a reply now, the longest waiting first."""
        waiters = list(self._waiters)
        sessions = await self._run_in_thread(find_answerable, [waiter.session for waiter in waiters])
        answerable = set(map(id, sessions))
        for waiter in waiters:
            if id(waiter.session) not in answerable:
                continue
            async with waiter.lock:
                if waiter in self._waiters and not waiter.reply.done():
                    await self._check(waiter)

    async def _check(self, waiter: Waiter) -> None:
        try:
            reply = await self._run_in_thread(waiter.session.check_again)
        except Exception as error:  # the request's own handler answers it
            waiter.reply.set_exception(error)
        else:
            if reply is not None:
                waiter.reply.set_result(reply)


def find_answerable(sessions: Sequence[PollSession]) -> list[PollSession]:
    """Return the polls whose node has changed or for which matching finds a job. Two queries for up to 1,000 polls."""
    changed = find_changed_nodes([session.node for session in sessions])
    newest = get_newest_queued_time()
    return [session for session in sessions if session.node.pk in changed or session.may_have_job(newest)]


def find_changed_nodes(nodes: Sequence[Node]) -> set[int]:
    """Return the ids of nodes whose `WATCHED_COLUMNS` differ from their rows."""
    changed = set()
    for start in range(0, len(nodes), NODES_PER_QUERY):
        batch = nodes[start : start + NODES_PER_QUERY]
        rows = Node.objects.filter(pk__in={node.pk for node in batch}).order_by().values_list("pk", *WATCHED_COLUMNS)
        found = {pk: values for pk, *values in rows}
        known = {node.pk: [getattr(node, name) for name in WATCHED_COLUMNS] for node in batch}
        changed |= {pk for pk, values in known.items() if found.get(pk) != values}
    return changed


def get_newest_queued_time() -> datetime | None:
    """Return when the newest waiting job was queued. One query, by an index."""
    waiting = Job.objects.filter(state=Job.State.QUEUED).order_by("-state_since")
    return waiting.values_list("state_since", flat=True).first()
