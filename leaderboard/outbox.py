"""Doing things outside of the site, once each, however often a process dies on the way.

`want` writes the row, in the transaction that is its cause. `carry_out` claims it by a conditional UPDATE, calls its
kind's handler and notes the result. A handler that may have died half-way looks first whether the thing is there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast

from django.conf import settings
from django.core.cache import cache
from django.db import DatabaseError, connection, transaction
from django.db.models import Case, F, Field, Value, When
from django.utils import timezone
from django.utils.module_loading import import_string

from leaderboard.models import Effect

logger = logging.getLogger(__name__)

CLAIM_TIME = timedelta(minutes=10)
"""So long a handler may take; then another process may try."""
FIRST_RETRY = timedelta(seconds=10)
MAX_RETRY_WAIT = timedelta(hours=1)
NO_BROKER, NO_BROKER_SECONDS = "no-broker", 30
"""In this process's cache: the broker did not answer just now."""

Handler = Callable[[Effect], Mapping[str, Any]]
"""Makes it so, and returns what to keep in `Effect.result`."""


class RetryLater(Exception):
    """It cannot be done just now. `after`: when to try again; None leaves it to us."""

    def __init__(self, reason: str, after: timedelta | None = None) -> None:
        super().__init__(reason)
        self.after = after


class PermanentError(Exception):
    """It cannot be done, however often it is tried; the message is a sentence for the operator."""


def enqueue(kind: str, key: str, payload: Mapping[str, Any] | None = None) -> Effect:
    """Ask for an effect. The same key again: done again, with the new payload. Bring the transaction of its cause."""
    wanted = dict(payload or {})
    with transaction.atomic():
        effect, created = Effect.objects.get_or_create(key=key, defaults={"kind": kind, "payload": wanted})
        if not created:
            # One UPDATE, so that no claim comes in between. One that is being done stays so, and is done once more:
            # its version has changed when it is noted as done.
            Effect.objects.filter(pk=effect.pk).update(
                payload=wanted,
                version=F("version") + 1,
                state=unless_processing("state", Effect.State.WANTED),
                not_before=unless_processing("not_before", timezone.now()),
                attempts=unless_processing("attempts", 0),
                problem=unless_processing("problem", ""),
            )
        transaction.on_commit(lambda: notify_worker(effect.pk))
    return effect


def unless_processing(field: str, value: Any) -> Case:
    """Return SQL for `value`, or what the field has while the effect is being done."""
    kind = cast("Field[Any, Any]", Effect._meta.get_field(field))
    return Case(When(state=Effect.State.DOING, then=F(field)), default=Value(value, kind))


def enqueue_once(kind: str, key: str, payload: Mapping[str, Any] | None = None) -> Effect:
    """Ask for an effect that happens once for ever: the same key again changes nothing."""
    with transaction.atomic():
        effect, created = Effect.objects.get_or_create(key=key, defaults={"kind": kind, "payload": dict(payload or {})})
        if created:
            transaction.on_commit(lambda: notify_worker(effect.pk))
    return effect


def notify_worker(pk: int) -> None:
    """Ask a worker to do it. The row is what counts: without a broker the schedule comes by within seconds.

    A broker that did not answer is left alone for a while, lest every request wait for it.
    """
    from leaderboard import tasks

    if cache.get(NO_BROKER):
        return
    try:
        tasks.process_message.apply_async((pk,), retry=False)
    except Exception as error:
        logger.warning("Effect %s waits for the schedule: %s", pk, error)
        cache.set(NO_BROKER, True, NO_BROKER_SECONDS)


def process_message(pk: int) -> None:
    """Do one effect if it is due and nobody else is at it."""
    now = timezone.now()
    claimed = (
        Effect.objects.due()
        .filter(pk=pk)
        .order_by()
        .update(state=Effect.State.DOING, claimed_until=now + CLAIM_TIME, attempts=F("attempts") + 1)
    )
    if not claimed:
        return
    effect = Effect.objects.get(pk=pk)
    try:
        result = get_handler(effect.kind)(effect)
    except PermanentError as error:
        finish_message(effect, Effect.State.REFUSED, problem=str(error)[:500])
    except RetryLater as error:
        postpone_message(effect, str(error), error.after)
    except Exception as error:
        logger.exception("Effect %s went wrong", effect.key)
        postpone_message(effect, f"{type(error).__name__}: {error}", None)
    else:
        finish_message(effect, Effect.State.DONE, problem="", result=dict(result), done_at=timezone.now(), attempts=0)


@contextmanager
def renew_claim(effect: Effect, every: timedelta = CLAIM_TIME / 4) -> Iterator[None]:
    """Keep the claim for longer than `CLAIM`, while this process lives: around what may take hours, as an upload."""
    over = threading.Event()

    def renew() -> None:
        while not over.wait(every.total_seconds()):
            until = timezone.now() + CLAIM_TIME
            try:
                mine = Effect.objects.filter(pk=effect.pk, state=Effect.State.DOING, claimed_until=effect.claimed_until)
                if mine.update(claimed_until=until):
                    effect.claimed_until = until
            except DatabaseError:
                logger.warning("The claim of %s could not be renewed just now", effect.key, exc_info=True)
            finally:
                connection.close()

    thread = threading.Thread(target=renew, name=f"holds {effect.key}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def get_handler(kind: str) -> Handler:
    return import_string(settings.EFFECT_KINDS[kind])  # type: ignore[no-any-return]


def finish_message(effect: Effect, state: Effect.State, **fields: Any) -> None:
    """Note what became of it; where it was asked for again meanwhile, it is due again."""
    mine = Effect.objects.filter(pk=effect.pk, state=Effect.State.DOING, claimed_until=effect.claimed_until)
    if mine.filter(version=effect.version).update(state=state, claimed_until=None, **fields):
        return
    if mine.update(state=Effect.State.WANTED, not_before=timezone.now(), claimed_until=None, **fields):
        notify_worker(effect.pk)


def postpone_message(effect: Effect, problem: str, after: timedelta | None) -> None:
    wait = after or min(FIRST_RETRY * 2 ** min(effect.attempts - 1, 20), MAX_RETRY_WAIT)
    Effect.objects.filter(pk=effect.pk, state=Effect.State.DOING, claimed_until=effect.claimed_until).update(
        state=Effect.State.WANTED, not_before=timezone.now() + wait, claimed_until=None, problem=problem[:500]
    )


def process_due(limit: int = 50) -> int:
    """Do what is due: whatever no worker was told of, or died over. Return how many were tried."""
    due = list(Effect.objects.due().values_list("pk", flat=True)[:limit])
    for pk in due:
        process_message(pk)
    return len(due)
