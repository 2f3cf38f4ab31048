"""Announces each Event once to its listeners: pull requests, notices and publications.

Each row has a mark `announced`; a cursor on ids would miss Events whose transactions commit late. Listeners run in the
transaction that sets the mark, and only write rows (`outbox.enqueue`), so that each Event is handled exactly once. If a
listener raises, it gets the Events one by one, and loses those at which it raises again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from django.db import OperationalError, transaction
from django.utils.module_loading import import_string

from scheduler.models import Event

logger = logging.getLogger(__name__)

Listener = Callable[[Sequence[Event]], None]  # gets Events ordered by id, inside a transaction

LISTENERS: tuple[str, ...] = (
    "leaderboard.integrations.github.comments.update_pull_requests",
    "leaderboard.integrations.github.commit_status.update_nightly_checks",
    "leaderboard.notifications.delivery.notify_about_events",
    "leaderboard.publishing.publications.publish_changed_runs",
)
BATCH_SIZE = 200


def announce_events() -> int:
    """Call the listeners with all new Events and return the number of Events."""
    count = 0
    while batch := announce_batch():
        count += batch
    return count


@transaction.atomic
def announce_batch() -> int:
    """Announce the oldest Events. Concurrent processes take different ones (on SQLite one waits for the other)."""
    waiting = Event.objects.filter(announced=False).select_for_update(skip_locked=True).order_by("pk")
    events = list(waiting[:BATCH_SIZE])
    for path in LISTENERS if events else ():
        call_listener(import_string(path), events)
    return Event.objects.filter(pk__in=[event.pk for event in events]).update(announced=True)


def call_listener(listener: Listener, events: Sequence[Event]) -> None:
    try:
        with transaction.atomic():
            listener(events)
    except OperationalError:
        raise  # the database failed, not the listener: the whole batch is retried
    except Exception:
        logger.exception("%s failed with %d events", listener, len(events))
        for event in events if len(events) > 1 else ():
            call_listener(listener, [event])
