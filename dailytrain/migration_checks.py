"""A check before `migrate`: the database was made by this version of the site or an older one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Error
from django.db import connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

APPS = ("leaderboard", "scheduler")
HINT = (
    "A database from before 0.1.0 cannot be upgraded: set DATABASE_URL to an empty one. If a newer version made it, "
    "install that version or restore a backup."
)


def check_known_migrations(*, databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Return an error for migrations that are unknown here: others would fail half-way, on tables that exist."""
    errors: list[CheckMessage] = []
    for alias in databases or ():
        known = MigrationLoader(None).disk_migrations
        applied = MigrationRecorder(connections[alias]).applied_migrations()
        unknown = [f"{app}.{name}" for app, name in sorted(applied) if app in APPS and (app, name) not in known]
        if unknown:
            names = ", ".join(unknown[:3]) + (", …" if len(unknown) > 3 else "")
            message = f"The database has migrations that this version does not know: {names}."
            errors.append(Error(message, hint=HINT, id="dailytrain.E001"))
    return errors
