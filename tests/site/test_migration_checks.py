"""`migrate` refuses a database that another version made, before it changes anything."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connection
from django.utils import timezone

TABLE = "CREATE TABLE IF NOT EXISTS django_migrations (id int, app text, name text, applied timestamp)"


@pytest.mark.django_db
def test_migrate_of_database_with_unknown_migrations_says_what_to_do() -> None:
    with connection.cursor() as cursor:
        cursor.execute(TABLE)
        row = [9999, "scheduler", "0002_trust", timezone.now()]
        cursor.execute("INSERT INTO django_migrations (id, app, name, applied) VALUES (%s, %s, %s, %s)", row)
    with pytest.raises(SystemCheckError, match=r"scheduler\.0002_trust(.|\n)*from before 0\.1\.0 cannot be upgraded"):
        call_command("migrate", verbosity=0, skip_checks=False)
