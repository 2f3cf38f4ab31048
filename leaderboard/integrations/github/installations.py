"""Where the site's GitHub App is installed, as GitHub tells."""

from __future__ import annotations

from typing import Any

from leaderboard.models import Installation

GONE = {"deleted", "suspend"}
BACK = {"created", "unsuspend", "new_permissions_accepted"}


def handle_installation(payload: dict[str, Any], number: int | None) -> str | None:
    """Handle `installation`: created, deleted, suspend, unsuspend, new_permissions_accepted."""
    action = payload.get("action")
    if number is None or action not in GONE | BACK:
        return "It says nothing of an installation that we know to read."
    fields: dict[str, Any] = {"account": get_account(payload["installation"]), "suspended": action in GONE}
    if (told := payload.get("repositories")) is not None:
        fields["repositories"] = get_full_names(told)
    Installation.objects.update_or_create(number=number, defaults=fields)
    return None


def handle_repositories(payload: dict[str, Any], number: int | None) -> str | None:
    """Handle `installation_repositories`: added, removed."""
    if number is None:
        return "It names no installation."
    found, _ = Installation.objects.get_or_create(
        number=number, defaults={"account": get_account(payload["installation"])}
    )
    removed = set(get_full_names(payload.get("repositories_removed")))
    kept = set(found.repositories) - removed | set(get_full_names(payload.get("repositories_added")))
    Installation.objects.filter(pk=found.pk).update(repositories=sorted(kept))
    return None


def get_account(told: dict[str, Any]) -> str:
    """Return the login; an enterprise's account has a slug instead."""
    owner = told.get("account") or {}
    return str(owner.get("login") or owner.get("slug") or "")[:120]


def get_full_names(told: list[dict[str, Any]] | None) -> list[str]:
    return sorted(row["full_name"] for row in told or [])
