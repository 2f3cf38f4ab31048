"""Every Event is told once to everybody here who listens: to pull requests, to subscribers of notices.

Each Event says of itself whether it has been announced. A cursor that only remembers the last id would pass over an
Event whose transaction began earlier and was committed later; a mark on each row cannot.

**Exactly once**: listeners run in the transaction that sets the mark, and what they do is rows (`effects.want`), so it
stands or falls with it. A listener that raises is asked again Event by Event; what it cannot digest it never gets
again, so that one bad row does not silence everything after it. What leaves the site is an Effect's business.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from django.db import OperationalError, transaction
from django.utils.module_loading import import_string

from scheduler.models import Event

logger = logging.getLogger(__name__)

Listener = Callable[[Sequence[Event]], None]
"""Gets Events in the order of their ids, inside a transaction: it writes rows and sends nothing."""

LISTENERS: tuple[str, ...] = (
    "leaderboard.integrations.github.comments.handle_events",
    "leaderboard.integrations.github.commit_status.handle_events",
    "leaderboard.notifications.delivery.notify_about_events",
    "leaderboard.publishing.publications.handle_events",
)
"""Dotted paths of `Listener`s, in the order in which they are told."""
BATCH_SIZE = 200


def announce_events() -> int:
    """Tell the listeners what has happened since; return how many Events that were. Safe to run at any time."""
    told = 0
    while some := announce_batch():
        told += some
    return told


@transaction.atomic
def announce_batch() -> int:
    """Announce the oldest Events; two processes at once take different ones (on SQLite one waits for the other)."""
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
        raise  # the database's trouble, not the listener's: all of it is tried again
    except Exception:
        logger.exception("%s could not take %d events", listener, len(events))
        for event in events if len(events) > 1 else ():
            call_listener(listener, [event])
