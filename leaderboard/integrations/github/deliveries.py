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
from leaderboard.outbox import FIRST_RETRY, LONGEST_RETRY, Later, Refused

logger = logging.getLogger(__name__)

Handler = Callable[[dict[str, Any], int | None], str | None]
"""Takes the payload and the installation's number; returns why it meant nothing to us, or None."""

EVENTS: dict[str, str] = {
    "pull_request": "leaderboard.integrations.github.sync.pull_request",
    "issue_comment": "leaderboard.integrations.github.slash_commands.issue_comment",
    "check_run": "leaderboard.integrations.github.slash_commands.check_run",
    "installation": "leaderboard.integrations.github.installations.installation",
    "installation_repositories": "leaderboard.integrations.github.installations.repositories",
}
"""{event: dotted path of its handler}. Any other event is accepted and ignored."""

CLAIM = timedelta(minutes=10)
"""So long a handler may take; then another process may try."""
ATTEMPTS = 8
"""After so many exceptions a delivery is given up: GitHub's list of deliveries can send it again, under its own id."""
KEEP = timedelta(days=30)
"""So long payloads are kept; the ids and digests stay, so that a replay is known for ever."""


def keep(guid: str, event: str, body: bytes, payload: dict[str, Any]) -> Delivery | None:
    """Store a delivery; None where it has been here before, under this id or with this very body.

    GitHub's signature covers the body alone: the id could be another one each time.
    """
    wanted = event in EVENTS
    fields = {
        "event": event,
        "action": text(payload.get("action"))[:60],
        "digest": hashlib.sha256(body).hexdigest(),
        "subject": subject(payload)[:220],
        "payload": payload if wanted else {},
        "state": Delivery.State.NEW if wanted else Delivery.State.IGNORED,
    }
    try:
        with transaction.atomic():
            return Delivery.objects.create(guid=guid, **fields)
    except IntegrityError:
        return revive(guid)


def revive(guid: str) -> Delivery | None:
    """A delivery that was given up is worked on again when GitHub is asked to send it again."""
    again = Delivery.objects.filter(guid=guid, state=Delivery.State.FAILED).exclude(payload={})
    if not again.update(state=Delivery.State.NEW, attempts=0, not_before=timezone.now(), problem=""):
        return None
    return Delivery.objects.get(guid=guid)


def subject(payload: Mapping[str, Any]) -> str:
    """Return what the delivery is about; deliveries about one thing are worked through one by one."""
    repository = field(payload, "repository", "full_name")
    number = field(payload, "pull_request", "number") or field(payload, "issue", "number")
    if repository:
        return f"{repository}#{number}" if number else text(repository)
    return f"installation {field(payload, 'installation', 'id') or ''}"


def field(payload: Mapping[str, Any], *names: str) -> Any:
    """Return a nested value; None where anything on the way is missing or null."""
    found: Any = payload
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def text(value: Any) -> str:
    return value if isinstance(value, str) else ""


# --- working through them --------------------------------------------------------------------------------------------


def catch_up(limit: int = 200) -> int:
    """Work through what is due, a subject at a time. Return how many deliveries were tried."""
    tried = 0
    seen: set[str] = set()
    for about in Delivery.objects.due().values_list("subject", flat=True)[:limit]:
        if about not in seen:
            seen.add(about)
            tried += work_through(about)
    return tried


def work_through(about: str) -> int:
    """Work on the deliveries about one thing, first come first, until none is due or another process is at them."""
    tried = 0
    while (delivery := claim(about)) is not None:
        attempt(delivery)
        tried += 1
    return tried


def claim(about: str) -> Delivery | None:
    """Take the first delivery that is due, unless another process is at one of the same subject."""
    now = timezone.now()
    new = Delivery.objects.filter(subject=about, state=Delivery.State.NEW)
    first = new.filter(not_before__lte=now).order_by("pk").first()
    if first is None or new.filter(claimed_until__gte=now).exists():
        return None
    if not mine(first).update(claimed_until=now + CLAIM, attempts=F("attempts") + 1):
        return None
    first.refresh_from_db()
    return first


def attempt(delivery: Delivery) -> None:
    """Call the event's handler and note what became of it."""
    number = field(delivery.payload, "installation", "id")
    try:
        problem = handler(delivery.event)(delivery.payload, number if isinstance(number, int) else None)
    except Refused as error:
        end(delivery, Delivery.State.FAILED, str(error))
    except Later as error:
        put_off(delivery, str(error), error.after)
    except Exception as error:
        logger.exception("Delivery %s went wrong", delivery)
        problem = f"{type(error).__name__}: {error}"
        if delivery.attempts >= ATTEMPTS:
            end(delivery, Delivery.State.FAILED, problem)
        else:
            put_off(delivery, problem, None)
    else:
        end(delivery, Delivery.State.IGNORED if problem else Delivery.State.DONE, problem or "")


def handler(event: str) -> Handler:
    return import_string(EVENTS[event])  # type: ignore[no-any-return]


def mine(delivery: Delivery) -> models.QuerySet[Delivery]:
    """Return the row, if nobody else has claimed it since it was read."""
    return Delivery.objects.filter(pk=delivery.pk, state=Delivery.State.NEW, claimed_until=delivery.claimed_until)


def end(delivery: Delivery, state: Delivery.State, problem: str) -> None:
    mine(delivery).update(state=state, problem=problem[:500], claimed_until=None, done_at=timezone.now())


def put_off(delivery: Delivery, problem: str, after: timedelta | None) -> None:
    """Try again later. Waiting that GitHub asked for is no failed attempt."""
    wait = after or min(FIRST_RETRY * 2 ** min(delivery.attempts - 1, 20), LONGEST_RETRY)
    attempts = delivery.attempts - 1 if after else delivery.attempts
    mine(delivery).update(
        not_before=timezone.now() + wait, claimed_until=None, problem=problem[:500], attempts=attempts
    )


def forget_old() -> int:
    """Empty the payloads that nobody needs any more; ids and digests stay."""
    old = Delivery.objects.filter(received_at__lt=timezone.now() - KEEP).exclude(state=Delivery.State.NEW)
    return old.exclude(payload={}).update(payload={})
