"""Webhook deliveries: rows of the outbox (`github.delivery`), and the handlers of installations of the site's App.

While GitHub waits for its answer, only `store_delivery` runs: one row, no broker. Deliveries may be processed in any
order, and a handler runs again if its process dies: handlers compare what GitHub says with the rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from django.utils import timezone
from django.utils.module_loading import import_string

from leaderboard.models import Installation, OutboxMessage
from leaderboard.outbox import PermanentError, RetryLater

KIND = "github.delivery"
Handler = Callable[[dict[str, Any], int | None], str | None]
# (payload, number of the installation) -> why the delivery was ignored, or None

EVENTS: dict[str, str] = {
    "pull_request": "leaderboard.integrations.github.sync.handle_pull_request",
    "issue_comment": "leaderboard.integrations.github.slash_commands.handle_issue_comment",
    "check_run": "leaderboard.integrations.github.slash_commands.handle_check_run",
    "installation": "leaderboard.integrations.github.deliveries.handle_installation",
    "installation_repositories": "leaderboard.integrations.github.deliveries.handle_repositories",
}  # event: dotted path of its handler; other events are accepted and not stored

GONE = {"deleted", "suspend"}
BACK = {"created", "unsuspend", "new_permissions_accepted"}
MAX_ATTEMPTS = 8  # then a delivery that its handler cannot process has failed; GitHub can redeliver it
PAYLOAD_RETENTION = timedelta(days=30)  # digests stay for ever, to detect replays


def store_delivery(event: str, body: bytes, payload: dict[str, Any]) -> OutboxMessage | None:
    """Store a delivery; return None if its body is known.

    GitHub's signature covers the body only, so its digest is the key. A failed delivery that comes again is retried.
    """
    key = f"{KIND}:{hashlib.sha256(body).hexdigest()}"
    fields = {"kind": KIND, "payload": {"event": event, "body": payload}}
    message, is_new = OutboxMessage.objects.get_or_create(key=key, defaults=fields)
    failed = OutboxMessage.objects.filter(pk=message.pk, state=OutboxMessage.State.FAILED).exclude(payload={})
    again = {"state": OutboxMessage.State.PENDING, "attempts": 0, "not_before": timezone.now(), "problem": ""}
    return message if is_new or failed.update(**again) else None


def process_delivery(message: OutboxMessage) -> Mapping[str, Any]:
    """Handler of `KIND`."""
    event, payload = message.payload["event"], message.payload["body"]
    handler: Handler = import_string(EVENTS[event])
    try:
        ignored = handler(payload, as_number(get_nested(payload, "installation", "id")))
    except (PermanentError, RetryLater):
        raise
    except Exception as error:
        if message.attempts < MAX_ATTEMPTS:
            raise
        raise PermanentError(f"{type(error).__name__}: {error}") from error
    return {"ignored": ignored or ""}


def delete_old_payloads() -> int:
    ended = OutboxMessage.objects.filter(kind=KIND, state__in=(OutboxMessage.State.DONE, OutboxMessage.State.FAILED))
    return ended.filter(created_at__lt=timezone.now() - PAYLOAD_RETENTION).exclude(payload={}).update(payload={})


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
