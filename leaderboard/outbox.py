"""Transactional outbox: actions outside of the site, each done once even if processes die.

`enqueue` writes the row in the transaction of its cause. `process_message` claims it by a conditional UPDATE, calls the
handler of its kind (`settings.OUTBOX_HANDLERS`) and stores the result. Handlers look first for what an interrupted
attempt may have done.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast

from django.conf import settings
from django.db import DatabaseError, connection, transaction
from django.db.models import Case, F, Field, QuerySet, Value, When
from django.utils import timezone
from django.utils.module_loading import import_string

from leaderboard.broker import send_task
from leaderboard.models import OutboxMessage

logger = logging.getLogger(__name__)

CLAIM_TIME = timedelta(minutes=10)  # of a handler; then another process may retry
FIRST_RETRY = timedelta(seconds=10)
MAX_RETRY_WAIT = timedelta(hours=1)
LONG_KINDS = ("hub", "hub.dataset")
"""Messages that take minutes to hours: Celery's queue `long` is theirs."""

Handler = Callable[[OutboxMessage], Mapping[str, Any]]  # returns what to store in `OutboxMessage.result`


class RetryLater(Exception):
    """The handler cannot finish now. `after`: when to retry; None: exponential backoff."""

    def __init__(self, reason: str, after: timedelta | None = None) -> None:
        super().__init__(reason)
        self.after = after


class PermanentError(Exception):
    """No retry can succeed; the message is for the operator."""


def enqueue(kind: str, key: str, payload: Mapping[str, Any] | None = None) -> OutboxMessage:
    """Enqueue a message. An existing key is processed again, with the new payload. Call it in the transaction of the
    cause."""
    wanted = dict(payload or {})
    with transaction.atomic():
        message, created = OutboxMessage.objects.get_or_create(key=key, defaults={"kind": kind, "payload": wanted})
        if not created:
            # One UPDATE, so that no claim comes in between. A message that is being processed is processed again
            # afterwards, because its version has changed.
            OutboxMessage.objects.filter(pk=message.pk).update(
                payload=wanted,
                version=F("version") + 1,
                state=unless_processing("state", OutboxMessage.State.PENDING),
                not_before=unless_processing("not_before", timezone.now()),
                attempts=unless_processing("attempts", 0),
                problem=unless_processing("problem", ""),
            )
        transaction.on_commit(lambda: notify_worker(message))
    return message


def unless_processing(field: str, value: Any) -> Case:
    """Return SQL for `value`, or for the field's current value while the message is being processed."""
    kind = cast("Field[Any, Any]", OutboxMessage._meta.get_field(field))
    return Case(When(state=OutboxMessage.State.CLAIMED, then=F(field)), default=Value(value, kind))


def enqueue_once(kind: str, key: str, payload: Mapping[str, Any] | None = None) -> OutboxMessage:
    """Enqueue a message that is processed only once: an existing key changes nothing."""
    with transaction.atomic():
        message, created = OutboxMessage.objects.get_or_create(
            key=key, defaults={"kind": kind, "payload": dict(payload or {})}
        )
        if created:
            transaction.on_commit(lambda: notify_worker(message))
    return message


def notify_worker(message: OutboxMessage) -> None:
    send_task("process_long_message" if message.kind in LONG_KINDS else "process_message", message.pk)


def process_message(pk: int) -> None:
    """Process one message if it is due and no other process has claimed it."""
    claim = {"state": OutboxMessage.State.CLAIMED, "claimed_until": timezone.now() + CLAIM_TIME}
    if not OutboxMessage.objects.due().filter(pk=pk).order_by().update(**claim, attempts=F("attempts") + 1):
        return
    message = OutboxMessage.objects.get(pk=pk)
    try:
        result = get_handler(message.kind)(message)
    except PermanentError as error:
        finish_message(message, OutboxMessage.State.FAILED, problem=str(error)[:500])
    except RetryLater as error:
        postpone_message(message, str(error), error.after)
    except Exception as error:
        logger.exception("OutboxMessage %s failed", message.key)
        postpone_message(message, f"{type(error).__name__}: {error}", None)
    else:
        finish_message(
            message, OutboxMessage.State.DONE, problem="", result=dict(result), done_at=timezone.now(), attempts=0
        )


@contextmanager
def renew_claim(message: OutboxMessage, every: timedelta = CLAIM_TIME / 4) -> Iterator[None]:
    """Renew the claim in a thread, for handlers that take longer than `CLAIM_TIME`, such as uploads."""
    over = threading.Event()

    def renew() -> None:
        while not over.wait(every.total_seconds()):
            until = timezone.now() + CLAIM_TIME
            try:
                if filter_claimed(message).update(claimed_until=until):
                    message.claimed_until = until
            except DatabaseError:
                logger.warning("The claim of %s could not be renewed", message.key, exc_info=True)
            finally:
                connection.close()

    thread = threading.Thread(target=renew, name=f"holds {message.key}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def get_handler(kind: str) -> Handler:
    return import_string(settings.OUTBOX_HANDLERS[kind])  # type: ignore[no-any-return]


def filter_claimed(message: OutboxMessage) -> QuerySet[OutboxMessage]:
    """Return the row if no other process has claimed it since."""
    return OutboxMessage.objects.filter(
        pk=message.pk, state=OutboxMessage.State.CLAIMED, claimed_until=message.claimed_until
    )


def finish_message(message: OutboxMessage, state: OutboxMessage.State, **fields: Any) -> None:
    """Store the outcome; a message that was enqueued again meanwhile is due again."""
    claimed = filter_claimed(message)
    if claimed.filter(version=message.version).update(state=state, claimed_until=None, **fields):
        return
    if claimed.update(state=OutboxMessage.State.PENDING, not_before=timezone.now(), claimed_until=None, **fields):
        notify_worker(message)


def postpone_message(message: OutboxMessage, problem: str, after: timedelta | None) -> None:
    not_before = timezone.now() + (after or get_retry_wait(message.attempts))
    filter_claimed(message).update(
        state=OutboxMessage.State.PENDING, not_before=not_before, claimed_until=None, problem=problem[:500]
    )


def get_retry_wait(attempts: int) -> timedelta:
    """Return the exponential backoff after so many attempts."""
    wait: timedelta = FIRST_RETRY * 2 ** min(attempts - 1, 20)
    return min(wait, MAX_RETRY_WAIT)


def process_due(*, are_long: bool = False, limit: int = 50) -> int:
    """Process due messages without a task, for example of a worker that died, and return their number.

    `are_long`: those of `LONG_KINDS`; by default all others.
    """
    due = OutboxMessage.objects.due()
    due = due.filter(kind__in=LONG_KINDS) if are_long else due.exclude(kind__in=LONG_KINDS)
    ids = list(due.values_list("pk", flat=True)[:limit])
    for pk in ids:
        process_message(pk)
    return len(ids)
