"""Where questions wait that are held open: each is a coroutine, and costs no thread and no query of its own.

Once in `TICK_SECONDS` one thread looks for all of a process: at the nodes that wait (did an owner pause one?) and for
what has come into the queue. Only those for which matching has something are let in to claim it, who has waited longest
first.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from datetime import datetime

from django.db import DatabaseError, connections

from scheduler.models import Job, Node
from scheduler.node_api.poll_threads import settle
from scheduler.node_api.polls import Question
from trainer import protocol

logger = logging.getLogger(__name__)

TICK_SECONDS = 1.0
NOTICED = ("state", "reason", "token_hash", "rest_until", "lanes", "quota")
"""Of a node that waits: when one of these has changed, the answer may have."""
IN_ONE_QUERY = 1000

Place = Future[protocol.PollReply | None]
"""Comes true with the answer, or with None: nothing after all, wait again. Cancel it when nobody waits any more."""


class Lobby:
    def __init__(self) -> None:
        self._places: dict[Place, Question] = {}
        self._lock = threading.Lock()
        self._watch: threading.Thread | None = None
        self._closing = threading.Event()

    def hold(self, question: Question) -> Place:
        """Let the question wait. The thread begins with the first one, and ends after the last."""
        place: Place = Future()
        with self._lock:
            self._places[place] = question
            if self._watch is None:
                self._watch = threading.Thread(target=self._look_on, daemon=True)
                self._watch.start()
        return place

    def close(self) -> None:
        """Send everybody away, and end."""
        watch = self._watch
        for place, _ in self._waiting():
            place.cancel()
        self._closing.set()
        if watch is not None:
            watch.join()
        self._closing.clear()

    def _look_on(self) -> None:
        try:
            while self._anybody():
                self._closing.wait(TICK_SECONDS)
                try:
                    self.look_round()
                except DatabaseError:  # who waits asks again at the end of the wait, and is told then
                    logger.exception("Nobody could be looked after who waits for a job")
                    connections.close_all()
        finally:
            connections.close_all()

    def _anybody(self) -> bool:
        with self._lock:
            self._places = {place: question for place, question in self._places.items() if not place.done()}
            if not self._places:
                self._watch = None
            return bool(self._places)

    def _waiting(self) -> list[tuple[Place, Question]]:
        with self._lock:
            return [(place, question) for place, question in self._places.items() if not place.done()]

    def look_round(self) -> None:
        """Answer those that have an answer now."""
        waiting = self._waiting()
        changed = set(those_changed([question.node for _, question in waiting]))
        newest = newest_in_queue()
        for place, question in waiting:
            if question.node in changed or question.may_hope(newest):
                settle(place, question.again)


def those_changed(nodes: Sequence[Node]) -> Iterator[Node]:
    """Yield the nodes whose rows are not any more what they were. One query for many nodes."""
    for begin in range(0, len(nodes), IN_ONE_QUERY):
        some = nodes[begin : begin + IN_ONE_QUERY]
        rows = Node.objects.filter(pk__in={node.pk for node in some}).order_by().values_list("pk", *NOTICED)
        found = {pk: facts for pk, *facts in rows}
        for node in some:
            if found.get(node.pk) != [getattr(node, name) for name in NOTICED]:
                yield node


def newest_in_queue() -> datetime | None:
    """Return when the last job came into the queue that is still in it. One query, by an index."""
    waiting = Job.objects.filter(state=Job.State.QUEUED).order_by("-state_since")
    return waiting.values_list("state_since", flat=True).first()


LOBBY = Lobby()
