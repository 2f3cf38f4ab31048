"""Migrations of tables that have rows. Other tests create the tables without migrations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connection
from django.utils import timezone

from tests.support.clean_environment import run_python

pytestmark = pytest.mark.processes

TABLE = "CREATE TABLE IF NOT EXISTS django_migrations (id int, app text, name text, applied timestamp)"


@pytest.mark.slow
def test_rows_of_the_first_release_survive_all_migrations(tmp_path: Path) -> None:
    done = run_python(tmp_path, "-m", "tests.site.old_database")
    assert json.loads(done.stdout) == {
        "season": {"name": "First", "corpus": "fineweb-edu", "test_tokens": 2_000_000, "test_secret": ""},
        "track": {"slug": "long", "milestones": 10, "releases": 10, "followed_track": None},
        "run": {"seed": 1, "budget": "24h", "purpose": "entry", "release": None},
        # What was scored, is being scored or was published is a release; another one is a milestone.
        "releases": {
            "10-percent": False, "20-percent": True, "30-percent": True, "40-percent": True, "final": False,
        },
        "checkpoints": [[100, False], [200, False]],
        "graphs": [["d", None], ["e", "d"]],
        "lease": {"job__kind": "train", "node__name": "cellar", "node__owner__username": "ada"},
        "point": {"step": 1, "loss": 3.0, "run__entry__requested_by__username": "ada"},
        "events": ["An event."],
        "same step as milestone": True,
        "same step again": False,
        "pages": [200, 200, 200, 200],
    }  # fmt: skip


@pytest.mark.django_db
def test_migrate_of_database_with_unknown_migrations_says_what_to_do() -> None:
    with connection.cursor() as cursor:
        cursor.execute(TABLE)
        row = [9999, "scheduler", "0002_trust", timezone.now()]
        cursor.execute("INSERT INTO django_migrations (id, app, name, applied) VALUES (%s, %s, %s, %s)", row)
    with pytest.raises(SystemCheckError, match=r"scheduler\.0002_trust(.|\n)*from before 0\.1\.0 cannot be upgraded"):
        call_command("migrate", verbosity=0, skip_checks=False)
