"""The columns of a node's row that every poll changes, written for many nodes at once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection

from django.db import DatabaseError, transaction

from scheduler.models import Node

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 0.2
"""From the first node in the buffer to the UPDATE. A process that dies loses what its nodes send again soon."""
COLUMNS = ("last_seen", "hardware", "health")


class LastSeenBuffer:
    """Nodes whose `COLUMNS` are not yet written. Thread-safe."""

    def __init__(self) -> None:
        self._nodes: dict[int, Node] = {}
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._nodes)

    def add(self, node: Node) -> None:
        with self._lock:
            self._nodes[node.pk] = Node(pk=node.pk, **{name: getattr(node, name) for name in COLUMNS})

    def clear(self) -> list[Node]:
        """Empty the buffer and return its nodes."""
        with self._lock:
            nodes, self._nodes = self._nodes, {}
        return list(nodes.values())

    def flush(self) -> None:
        """Write the nodes; log and drop them if the database fails."""
        nodes = self.clear()
        try:
            save_last_seen(nodes)
        except DatabaseError:
            logger.exception("The last-seen times of %d nodes were not saved", len(nodes))


def save_last_seen(nodes: Collection[Node]) -> None:
    """Write the `COLUMNS` of nodes. Locks their rows in the order of ids, so that two processes cannot deadlock."""
    with transaction.atomic():
        rows = Node.objects.filter(pk__in=[node.pk for node in nodes]).order_by("pk").select_for_update()
        known = set(rows.values_list("pk", flat=True))
        Node.objects.bulk_update([node for node in nodes if node.pk in known], COLUMNS)
