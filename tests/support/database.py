"""The test's database, for other processes."""

from __future__ import annotations

from django.db import connection


def get_database_url() -> str:
    """Return the value of DATABASE_URL."""
    known = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{known['NAME']}"
    return f"postgres://{known['USER']}:{known['PASSWORD']}@{known['HOST']}:{known['PORT']}/{known['NAME']}"
