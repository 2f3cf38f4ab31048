"""Queues notices about Events of nodes and entries.

An Event says that its target changed; the target's row says how. Records and the morning report are queued directly.
"""

from __future__ import annotations

from collections.abc import Sequence

from leaderboard.models import Entry
from leaderboard.notifications import delivery
from leaderboard.notifications.topics import approvals
from scheduler.models import Event, Node
from scheduler.pool import OFFLINE_REASON


def handle_events(events: Sequence[Event]) -> None:
    nodes = [event for event in events if event.target_kind == "node" and OFFLINE_REASON in event.sentence]
    changed = Node.objects.filter(pk__in={event.target_id for event in nodes}, state=Node.State.OFFLINE)
    offline = set(changed.values_list("pk", flat=True))
    for event in nodes:
        if event.target_id in offline:
            delivery.notify_subscribers("node", event.pk)
    entries = {event.target_id for event in events if event.target_kind == "entry"}
    for entry in Entry.objects.proposed().filter(pk__in=entries):
        if approvals.is_waiting(entry):
            delivery.notify_subscribers("approval", approvals.get_key(entry))
