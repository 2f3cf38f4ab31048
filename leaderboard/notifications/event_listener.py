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


def heard(events: Sequence[Event]) -> None:
    gone_offline([event for event in events if event.target_kind == "node" and OFFLINE_REASON in event.sentence])
    entered({event.target_id for event in events if event.target_kind == "entry"})


def gone_offline(events: Sequence[Event]) -> None:
    offline = set(
        Node.objects.filter(pk__in={event.target_id for event in events}, state=Node.State.OFFLINE).values_list(
            "pk", flat=True
        )
    )
    for event in events:
        if event.target_id in offline:
            delivery.tell("node", event.pk)


def entered(entries: set[int]) -> None:
    for entry in Entry.objects.proposed().filter(pk__in=entries):
        if approvals.waits(entry):
            delivery.tell("approval", approvals.about(entry))
