"""Which Events are news for subscribers (a listener of `announcing`).

An Event says that something has changed about its target; what that means is read off the target's row. Records and the
morning post need no Event: whoever makes a record, and the schedule, ask for the notice themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

from leaderboard.models import Entry
from leaderboard.notifications import delivery
from leaderboard.notifications.topics import approvals
from scheduler.models import Event, Node
from scheduler.pool import OFFLINE_REASON


def handle_events(events: Sequence[Event]) -> None:
    notify_offline_nodes(
        [event for event in events if event.target_kind == "node" and OFFLINE_REASON in event.sentence]
    )
    notify_waiting_entries({event.target_id for event in events if event.target_kind == "entry"})


def notify_offline_nodes(events: Sequence[Event]) -> None:
    offline = set(
        Node.objects.filter(pk__in={event.target_id for event in events}, state=Node.State.OFFLINE).values_list(
            "pk", flat=True
        )
    )
    for event in events:
        if event.target_id in offline:
            delivery.notify_subscribers("node", event.pk)


def notify_waiting_entries(entries: set[int]) -> None:
    for entry in Entry.objects.proposed().filter(pk__in=entries):
        if approvals.is_waiting(entry):
            delivery.notify_subscribers("approval", approvals.get_key(entry))
