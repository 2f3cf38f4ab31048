"""Migrations of tables that have rows. Other tests create the tables without migrations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.processes


@pytest.mark.slow
def test_rows_of_the_first_release_survive_all_migrations(tmp_path: Path) -> None:
    environment = {**os.environ, "DATABASE_URL": f"sqlite:///{tmp_path}/old.sqlite3", "DAILYTRAIN_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "tests.site.old_database"]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
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
