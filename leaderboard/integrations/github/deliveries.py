"""What GitHub told the site: kept as it came, then worked through in its order, pull request by pull request.

`keep` is all that happens while GitHub waits for its answer: one row, no broker. The schedule reads the rows
(`catch_up`). A handler may run twice, where a process died over it: what it does is conditional UPDATEs and effects.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, models, transaction
from django.db.models import F
from django.utils import timezone
from django.utils.module_loading import import_string

from leaderboard.models import Delivery
from leaderboard.outbox import FIRST_RETRY, MAX_RETRY_WAIT, PermanentError, RetryLater

logger = logging.getLogger(__name__)

Handler = Callable[[dict[str, Any], int | None], str | None]
"""Takes the payload and the installation's number; returns why it meant nothing to us, or None."""

EVENTS: dict[str, str] = {
    "pull_request": "leaderboard.integrations.github.sync.handle_pull_request",
    "issue_comment": "leaderboard.integrations.github.slash_commands.handle_issue_comment",
    "check_run": "leaderboard.integrations.github.slash_commands.handle_check_run",
    "installation": "leaderboard.integrations.github.installations.handle_installation",
    "installation_repositories": "leaderboard.integrations.github.installations.handle_repositories",
}
"""{event: dotted path of its handler}. Any other event is accepted and ignored."""

CLAIM_TIME = timedelta(minutes=10)
"""So long a handler may take; then another process may try."""
MAX_ATTEMPTS = 8
"""After so many exceptions a delivery is given up: GitHub's list of deliveries can send it again, under its own id."""
PAYLOAD_RETENTION = timedelta(days=30)
"""So long payloads are kept; the ids and digests stay, so that a replay is known for ever."""


def store_delivery(guid: str, event: str, body: bytes, payload: dict[str, Any]) -> Delivery | None:
    """Store a delivery; None where it has been here before, under this id or with this very body.

    GitHub's signature covers the body alone: the id could be another one each time.
    """
    wanted = event in EVENTS
    fields = {
        "event": event,
        "action": as_text(payload.get("action"))[:60],
        "digest": hashlib.sha256(body).hexdigest(),
        "subject": get_subject(payload)[:220],
        "payload": payload if wanted else {},
        "state": Delivery.State.NEW if wanted else Delivery.State.IGNORED,
    }
    try:
        with transaction.atomic():
            return Delivery.objects.create(guid=guid, **fields)
    except IntegrityError:
        return retry_failed(guid)


def retry_failed(guid: str) -> Delivery | None:
    """A delivery that was given up is worked on again when GitHub is asked to send it again."""
    again = Delivery.objects.filter(guid=guid, state=Delivery.State.FAILED).exclude(payload={})
    if not again.update(state=Delivery.State.NEW, attempts=0, not_before=timezone.now(), problem=""):
        return None
    return Delivery.objects.get(guid=guid)


def get_subject(payload: Mapping[str, Any]) -> str:
    """Return what the delivery is about; deliveries about one thing are worked through one by one."""
    repository = get_nested(payload, "repository", "full_name")
    number = get_nested(payload, "pull_request", "number") or get_nested(payload, "issue", "number")
    if repository:
        return f"{repository}#{number}" if number else as_text(repository)
    return f"installation {get_nested(payload, 'installation', 'id') or ''}"


def get_nested(payload: Mapping[str, Any], *names: str) -> Any:
    """Return a nested value; None where anything on the way is missing or null."""
    found: Any = payload
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


# --- working through them --------------------------------------------------------------------------------------------


def process_due(limit: int = 200) -> int:
    """Work through what is due, a subject at a time. Return how many deliveries were tried."""
    tried = 0
    seen: set[str] = set()
    for about in Delivery.objects.due().values_list("subject", flat=True)[:limit]:
        if about not in seen:
            seen.add(about)
            tried += process_subject(about)
    return tried


def process_subject(about: str) -> int:
    """Work on the deliveries about one thing, first come first, until none is due or another process is at them."""
    tried = 0
    while (delivery := claim_next(about)) is not None:
        process_delivery(delivery)
        tried += 1
    return tried


def claim_next(about: str) -> Delivery | None:
    """Take the first delivery that is due, unless another process is at one of the same subject."""
    now = timezone.now()
    new = Delivery.objects.filter(subject=about, state=Delivery.State.NEW)
    first = new.filter(not_before__lte=now).order_by("pk").first()
    if first is None or new.filter(claimed_until__gte=now).exists():
        return None
    if not filter_claimed(first).update(claimed_until=now + CLAIM_TIME, attempts=F("attempts") + 1):
        return None
    first.refresh_from_db()
    return first


def process_delivery(delivery: Delivery) -> None:
    """Call the event's handler and note what became of it."""
    number = get_nested(delivery.payload, "installation", "id")
    try:
        problem = get_handler(delivery.event)(delivery.payload, number if isinstance(number, int) else None)
    except PermanentError as error:
        finish_delivery(delivery, Delivery.State.FAILED, str(error))
    except RetryLater as error:
        postpone_delivery(delivery, str(error), error.after)
    except Exception as error:
        logger.exception("Delivery %s went wrong", delivery)
        problem = f"{type(error).__name__}: {error}"
        if delivery.attempts >= MAX_ATTEMPTS:
            finish_delivery(delivery, Delivery.State.FAILED, problem)
        else:
            postpone_delivery(delivery, problem, None)
    else:
        finish_delivery(delivery, Delivery.State.IGNORED if problem else Delivery.State.DONE, problem or "")


def get_handler(event: str) -> Handler:
    return import_string(EVENTS[event])  # type: ignore[no-any-return]


def filter_claimed(delivery: Delivery) -> models.QuerySet[Delivery]:
    """Return the row, if nobody else has claimed it since it was read."""
    return Delivery.objects.filter(pk=delivery.pk, state=Delivery.State.NEW, claimed_until=delivery.claimed_until)


def finish_delivery(delivery: Delivery, state: Delivery.State, problem: str) -> None:
    filter_claimed(delivery).update(state=state, problem=problem[:500], claimed_until=None, done_at=timezone.now())


def postpone_delivery(delivery: Delivery, problem: str, after: timedelta | None) -> None:
    """Try again later. Waiting that GitHub asked for is no failed attempt."""
    wait = after or min(FIRST_RETRY * 2 ** min(delivery.attempts - 1, 20), MAX_RETRY_WAIT)
    attempts = delivery.attempts - 1 if after else delivery.attempts
    filter_claimed(delivery).update(
        not_before=timezone.now() + wait, claimed_until=None, problem=problem[:500], attempts=attempts
    )


def delete_old_payloads() -> int:
    """Empty the payloads that nobody needs any more; ids and digests stay."""
    old = Delivery.objects.filter(received_at__lt=timezone.now() - PAYLOAD_RETENTION).exclude(state=Delivery.State.NEW)
    return old.exclude(payload={}).update(payload={})
