"""Who is here. A node that only asks has nothing to say but that it is: such words are noted, and written into the rows
of all those nodes together, `WRITTEN_EVERY` seconds after the first of them. Nothing else waits for that, and what is
lost with a process is said anew with the node's next question, long before `pool.OFFLINE_AFTER`."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import DatabaseError, transaction
from django.db.models import BigIntegerField, DateTimeField, QuerySet

from scheduler.models import Node
from scheduler.prepared import Later, PreparedUpdate

logger = logging.getLogger(__name__)

WRITTEN_EVERY = 0.2


@dataclass(frozen=True)
class Word:
    """What a node's row is to say."""

    now: datetime
    told: dict[str, Any] | None = None
    """`hardware` and `health`; None leaves what the row says."""


class Notes:
    """Of the words of nodes, the last of each. Threads may share them."""

    def __init__(self) -> None:
        self._words: dict[int, Word] = {}
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._words)

    def take(self, node: Node, word: Word) -> None:
        with self._lock:
            self._words[node.pk] = word

    def clear(self) -> dict[int, Word]:
        """Return what was noted; it is forgotten here."""
        with self._lock:
            words, self._words = self._words, {}
        return words

    def write(self) -> None:
        """Write down what was noted; what cannot be written is logged and dropped."""
        words = self.clear()
        try:
            write(words)
        except DatabaseError:
            logger.exception("It was not written down that %d nodes are here", len(words))


def write(words: dict[int, Word]) -> None:
    """Write into the rows, in the order of their numbers, so that no two who do this wait for each other."""
    ordered = sorted(words.items())
    seen = [{"node": node, "now": word.now} for node, word in ordered if word.told is None]
    told = [{"node": node, "now": word.now, **word.told} for node, word in ordered if word.told is not None]
    for update, values in ((SEEN, seen), (TOLD, told)):
        if values:
            with transaction.atomic():
                update.run_each(values)


def node() -> QuerySet[Node]:
    return Node.objects.filter(pk=Later("node", BigIntegerField()))


LAST_SEEN = {"last_seen": Later("now", DateTimeField())}
FACTS = {name: Later(name, Node._meta.get_field(name)) for name in ("hardware", "health")}
SEEN = PreparedUpdate(lambda: (node(), LAST_SEEN))
TOLD = PreparedUpdate(lambda: (node(), LAST_SEEN | FACTS))
