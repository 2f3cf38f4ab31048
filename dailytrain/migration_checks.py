"""A check before `migrate`: the database was made by this version of the site or an older one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Error
from django.db import connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

APPS = ("leaderboard", "scheduler", "campaigns")
HINT = (
    "A database from before 0.1.0 cannot be upgraded: set DATABASE_URL to an empty one. If a newer version made it, "
    "install that version or restore a backup."
)


def check_known_migrations(*, databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Return errors for unknown migrations, and for some of those that one replaces: Django would skip the others."""
    errors: list[CheckMessage] = []
    on_disk = MigrationLoader(None).disk_migrations
    known = {name for key, each in on_disk.items() for name in (key, *each.replaces)}
    for alias in databases or ():
        applied = MigrationRecorder(connections[alias]).applied_migrations()
        if unknown := [".".join(key) for key in sorted(applied) if key[0] in APPS and key not in known]:
            message = f"The database has migrations that this version does not know: {', '.join(unknown)}."
            errors.append(Error(message, hint=HINT, id="dailytrain.E001"))
        replaced = [each.replaces for each in on_disk.values() if not applied.keys().isdisjoint(each.replaces)]
        if missing := [".".join(key) for keys in replaced for key in keys if key not in applied]:
            message = f"The database lacks migrations that are now part of one: {', '.join(missing)}."
            hint = "Run `migrate` with the last version that has them, then with this one."
            errors.append(Error(message, hint=hint, id="dailytrain.E002"))
    return errors
