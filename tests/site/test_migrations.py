"""The check before `migrate`. Other tests create the tables without migrations."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connection
from django.utils import timezone

TABLE = "CREATE TABLE IF NOT EXISTS django_migrations (id int, app text, name text, applied timestamp)"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("0002_trust", r"scheduler\.0002_trust(.|\n)*from before 0\.1\.0 cannot be upgraded"),
        ("0002_milestones", r"lacks (.|\n)*scheduler\.0001_initial, (.|\n)*with the last version that has them"),
    ],
)
def test_migrate_of_database_of_another_version_says_what_to_do(name: str, message: str, settings: Any) -> None:
    settings.MIGRATION_MODULES = {}
    with connection.cursor() as cursor:
        cursor.execute(TABLE)
        row = [9999, "scheduler", name, timezone.now()]
        cursor.execute("INSERT INTO django_migrations (id, app, name, applied) VALUES (%s, %s, %s, %s)", row)
    with pytest.raises(SystemCheckError, match=message):
        call_command("migrate", verbosity=0, skip_checks=False)
