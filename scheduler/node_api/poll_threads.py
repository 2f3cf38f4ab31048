"""Threads that answer nodes: a few, so that many questions at once wait for their turn instead of slowing each other
down, and each with a connection to the database that it keeps while there is something to do."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from django.db import connections

Result = TypeVar("Result")

AT_ONCE = 8
"""Of each process. While some wait for the disk under PostgreSQL another computes; with 4 the disk set the pace."""
KEPT_SECONDS = 10.0
"""Without work for so long, a thread gives its connection back."""


class Clerks:
    """The threads. They begin when there is work."""

    def __init__(self, count: int = AT_ONCE) -> None:
        self.count = count
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._starting = threading.Lock()

    async def do(self, work: Callable[[], Result]) -> Result:
        """Let a thread do it; return what it returns, raise what it raises."""
        if not self._threads:
            self._start()
        future: Future[Result] = Future()
        self._work.put(lambda: settle(future, work))
        return await asyncio.wrap_future(future)

    def rest(self) -> None:
        """Let the threads end, and close their connections."""
        with self._starting:
            for _ in self._threads:
                self._work.put(None)
            for thread in self._threads:
                thread.join()
            self._threads = []

    def _start(self) -> None:
        with self._starting:
            if not self._threads:
                self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(self.count)]
                for thread in self._threads:
                    thread.start()

    def _serve(self) -> None:
        try:
            while work := self._next():
                work()
                let_go_of_broken()
        finally:
            connections.close_all()

    def _next(self) -> Callable[[], None] | None:
        try:
            return self._work.get(timeout=KEPT_SECONDS)
        except queue.Empty:
            connections.close_all()
            return self._work.get()


def settle(future: Future[Result], work: Callable[[], Result]) -> None:
    """Do the work unless nobody waits for it any more."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def let_go_of_broken() -> None:
    """Close a connection on which something went wrong, unless it turns out to be sound."""
    for connection in connections.all(initialized_only=True):
        if connection.errors_occurred:
            connection.close_if_unusable_or_obsolete()


CLERKS = Clerks()
