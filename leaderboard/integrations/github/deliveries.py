"""Webhook deliveries: stored as rows, then processed in order for each pull request.

While GitHub waits for its answer, only `store_delivery` runs: one row, no broker. The schedule calls `process_due`. A
handler can run twice if a process dies, so it makes conditional UPDATEs and enqueues outbox messages only.
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

from leaderboard.models import Delivery, Installation
from leaderboard.outbox import PermanentError, RetryLater, get_retry_wait

logger = logging.getLogger(__name__)

Handler = Callable[[dict[str, Any], int | None], str | None]
# (payload, number of the installation) -> why the delivery was ignored, or None

EVENTS: dict[str, str] = {
    "pull_request": "leaderboard.integrations.github.sync.handle_pull_request",
    "issue_comment": "leaderboard.integrations.github.slash_commands.handle_issue_comment",
    "check_run": "leaderboard.integrations.github.slash_commands.handle_check_run",
    "installation": "leaderboard.integrations.github.deliveries.handle_installation",
    "installation_repositories": "leaderboard.integrations.github.deliveries.handle_repositories",
}  # event: dotted path of its handler; other events are accepted and ignored

GONE = {"deleted", "suspend"}
BACK = {"created", "unsuspend", "new_permissions_accepted"}
CLAIM_TIME = timedelta(minutes=10)  # then another process may retry
MAX_ATTEMPTS = 8  # then a delivery has failed; GitHub can redeliver it under the same id
PAYLOAD_RETENTION = timedelta(days=30)  # ids and digests stay for ever, to detect replays


def store_delivery(guid: str, event: str, body: bytes, payload: dict[str, Any]) -> Delivery | None:
    """Store a delivery; return None if its id or its body is known.

    GitHub's signature covers the body only, so a replay could have another id.
    """
    is_handled = event in EVENTS
    fields = {
        "event": event,
        "action": as_text(payload.get("action"))[:60],
        "digest": hashlib.sha256(body).hexdigest(),
        "subject": get_subject(payload)[:220],
        "payload": payload if is_handled else {},
        "state": Delivery.State.NEW if is_handled else Delivery.State.IGNORED,
    }
    try:
        with transaction.atomic():
            return Delivery.objects.create(guid=guid, **fields)
    except IntegrityError:
        pass
    # A failed delivery is retried when GitHub redelivers it.
    failed = Delivery.objects.filter(guid=guid, state=Delivery.State.FAILED).exclude(payload={})
    if not failed.update(state=Delivery.State.NEW, attempts=0, not_before=timezone.now(), problem=""):
        return None
    return Delivery.objects.get(guid=guid)


def get_subject(payload: Mapping[str, Any]) -> str:
    """Return the subject of a delivery. Deliveries with the same subject are processed in order."""
    repository = get_nested(payload, "repository", "full_name")
    number = get_nested(payload, "pull_request", "number") or get_nested(payload, "issue", "number")
    if repository:
        return f"{repository}#{number}" if number else as_text(repository)
    return f"installation {get_nested(payload, 'installation', 'id') or ''}"


def get_nested(payload: Any, *names: str) -> Any:
    """Return a nested value, or None if any part of the path is missing or null."""
    value: Any = payload
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def as_number(value: Any, limit: int = 2**63) -> int | None:
    """Return a number of GitHub's that a column can hold: from 1 to below the limit."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < limit else None


# --- processing -------------------------------------------------------------------------------------------------------


def process_due(limit: int = 200) -> int:
    """Process due deliveries, one subject after the other, and return their number."""
    count = 0
    for subject in dict.fromkeys(Delivery.objects.due().values_list("subject", flat=True)[:limit]):
        while (delivery := claim_next(subject)) is not None:
            process_delivery(delivery)
            count += 1
    return count


def claim_next(subject: str) -> Delivery | None:
    """Claim the first delivery, unless it waits for its retry or another process works on the same subject."""
    now = timezone.now()
    new = Delivery.objects.filter(subject=subject, state=Delivery.State.NEW)
    first = new.order_by("pk").first()
    if first is None or first.not_before > now or new.filter(claimed_until__gte=now).exists():
        return None
    claimed = filter_claimed(first).update(claimed_until=now + CLAIM_TIME, attempts=F("attempts") + 1)
    return Delivery.objects.get(pk=first.pk) if claimed else None


def process_delivery(delivery: Delivery) -> None:
    number = as_number(get_nested(delivery.payload, "installation", "id"))
    try:
        handler: Handler = import_string(EVENTS[delivery.event])
        problem = handler(delivery.payload, number)
    except PermanentError as error:
        finish_delivery(delivery, Delivery.State.FAILED, str(error))
    except RetryLater as error:
        postpone_delivery(delivery, str(error), error.after)
    except Exception as error:
        logger.exception("Delivery %s failed", delivery)
        problem = f"{type(error).__name__}: {error}"
        if delivery.attempts < MAX_ATTEMPTS:
            postpone_delivery(delivery, problem, None)
        else:
            finish_delivery(delivery, Delivery.State.FAILED, problem)
    else:
        finish_delivery(delivery, Delivery.State.IGNORED if problem else Delivery.State.DONE, problem or "")


def filter_claimed(delivery: Delivery) -> models.QuerySet[Delivery]:
    """Return the row if no other process has claimed it since."""
    return Delivery.objects.filter(pk=delivery.pk, state=Delivery.State.NEW, claimed_until=delivery.claimed_until)


def finish_delivery(delivery: Delivery, state: Delivery.State, problem: str) -> None:
    filter_claimed(delivery).update(state=state, problem=problem[:500], claimed_until=None, done_at=timezone.now())


def postpone_delivery(delivery: Delivery, problem: str, after: timedelta | None) -> None:
    """Retry later. Waiting at GitHub's request does not count as an attempt."""
    wait = after or get_retry_wait(delivery.attempts)
    attempts = delivery.attempts - 1 if after else delivery.attempts
    filter_claimed(delivery).update(
        not_before=timezone.now() + wait, claimed_until=None, problem=problem[:500], attempts=attempts
    )


def delete_old_payloads() -> int:
    old = Delivery.objects.filter(received_at__lt=timezone.now() - PAYLOAD_RETENTION).exclude(state=Delivery.State.NEW)
    return old.exclude(payload={}).update(payload={})


# --- installations of the site's App ----------------------------------------------------------------------------------


def handle_installation(payload: dict[str, Any], number: int | None) -> str | None:
    """Handle `installation`: created, deleted, suspend, unsuspend, new_permissions_accepted."""
    action = as_text(payload.get("action"))
    if number is None or action not in GONE | BACK:
        return "The event names no installation or an unknown action."
    fields: dict[str, Any] = {"account": get_account(payload["installation"]), "suspended": action in GONE}
    if (repositories := payload.get("repositories")) is not None:
        fields["repositories"] = get_full_names(repositories)
    Installation.objects.update_or_create(number=number, defaults=fields)
    return None


def handle_repositories(payload: dict[str, Any], number: int | None) -> str | None:
    """Handle `installation_repositories`: added, removed."""
    if number is None:
        return "The event names no installation."
    installation, _ = Installation.objects.get_or_create(
        number=number, defaults={"account": get_account(payload["installation"])}
    )
    removed = set(get_full_names(payload.get("repositories_removed")))
    names = set(installation.repositories) - removed | set(get_full_names(payload.get("repositories_added")))
    Installation.objects.filter(pk=installation.pk).update(repositories=sorted(names))
    return None


def get_account(installation: Any) -> str:
    """Return the login; an enterprise's account has a slug instead."""
    names = (as_text(get_nested(installation, "account", key)) for key in ("login", "slug"))
    return next(filter(None, names), "")[:120]


def get_full_names(rows: Any) -> list[str]:
    """Return the names of a list of repositories. Malformed items are skipped."""
    names = (as_text(get_nested(row, "full_name")) for row in rows) if isinstance(rows, list) else ()
    return sorted(filter(None, names))
