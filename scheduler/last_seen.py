"""The columns of a node's row that every poll changes, written for many nodes at once."""

from __future__ import annotations

import logging
import threading

from django.db import DatabaseError

from scheduler.models import Node
from scheduler.poll_queries import LAST_SEEN_COLUMNS, update_last_seen

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 0.2
"""Delay from the first node in the buffer to the UPDATE. A crash loses updates that the nodes' next polls repeat."""


class LastSeenBuffer:
    """Nodes whose `LAST_SEEN_COLUMNS` are not yet written. Thread-safe."""

    def __init__(self) -> None:
        self._nodes: dict[int, Node] = {}
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._nodes)

    def add(self, node: Node) -> None:
        with self._lock:
            self._nodes[node.pk] = Node(pk=node.pk, **{name: getattr(node, name) for name in LAST_SEEN_COLUMNS})

    def clear(self) -> list[Node]:
        """Empty the buffer and return its nodes."""
        with self._lock:
            nodes, self._nodes = self._nodes, {}
        return list(nodes.values())

    def flush(self) -> None:
        """Write the nodes; log and drop them if the database fails."""
        nodes = self.clear()
        try:
            update_last_seen(nodes)
        except DatabaseError:
            logger.exception("The last-seen times of %d nodes were not saved", len(nodes))
