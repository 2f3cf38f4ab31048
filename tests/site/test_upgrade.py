"""A database of an earlier release, with data, is migrated to the current one and keeps its rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.clean_environment import build_clean_environment
from tests.support.paths import REPOSITORY

pytestmark = [pytest.mark.processes, pytest.mark.slow]

FILL = """
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

executor = MigrationExecutor(connection)
first = [(app, "0001_initial") for app in ("leaderboard", "scheduler", "campaigns")]
others = [node for node in executor.loader.graph.leaf_nodes() if node[0] not in dict(first)]
apps = executor.migrate([*first, *others]).apps

def create(app, model, **fields):
    return apps.get_model(app, model).objects.create(**fields)

user = create("auth", "User", username="ada", password="x")
season = create("leaderboard", "Season", name="Season 1", corpus="x", tokenizer="bpe:512", limit_bytes=1,
                dataset_hash="d" * 64)
track = create("leaderboard", "Track", slug="small", name="Small", season_id=season.pk, budget="20steps",
               expected_seconds=10)
entry = create("leaderboard", "Entry", track_id=track.pk, title="An idea", architecture="gpt", sha="a" * 40,
               repository="https://github.com/trains/daily", author="ada", requested_by_id=user.pk)
release = create("scheduler", "Blob", sha256="b" * 64, name="blobs/b", size=9)
job = create("scheduler", "Job", kind="train", release_id=release.pk, author="ada", expected_seconds=10, track="small")
for number in range(300):
    run = create("leaderboard", "Run", entry_id=entry.pk, track_id=track.pk, season_id=season.pk, budget="20steps",
                 seed=number, job_id=job.pk if number == 0 else None, bits_per_byte=1 + number / 1000,
                 state="finished")
    create("leaderboard", "CurvePoint", run_id=run.pk, series="train", step=1, tokens=1, flops=1.0, seconds=1.0,
           loss=3.0)
node = create("scheduler", "Node", name="cellar", owner_id=user.pk)
create("scheduler", "Lease", job_id=job.pk, node_id=node.pk, attempt=1, token_hash="t", expires_at=timezone.now())
create("scheduler", "Event", actor="ada", sentence="An event.", target_kind="run", target_id=1)
"""
READ = """
import json
from django.db.models import Sum
from django.test import Client
from leaderboard.models import CurvePoint, Entry, Run
from scheduler.models import Event, Job, Lease, Node
run = Run.objects.select_related("entry__requested_by", "job__release").get(seed=0)
client = Client(headers={"host": "localhost"})
print(json.dumps({
    "runs": Run.objects.count(), "points": CurvePoint.objects.count(), "jobs": Job.objects.count(),
    "leases": Lease.objects.count(), "events": Event.objects.count(), "node": Node.objects.get().owner.username,
    "sum": round(Run.objects.aggregate(s=Sum("bits_per_byte"))["s"], 3),
    "entry": [run.entry.title, run.entry.requested_by.username, run.job.release.sha256],
    "pages": [client.get(page).status_code
              for page in (f"/runs/{run.pk}/", f"/entries/{run.entry_id}/", "/", "/nodes/")],
}))
"""


def manage(home: Path, *arguments: str) -> str:
    environment = build_clean_environment(DAILYTRAIN_HOME=str(home), LOG_LEVEL="ERROR")
    command = [sys.executable, "manage.py", *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_database_of_the_first_release_keeps_its_rows(tmp_path: Path) -> None:
    manage(tmp_path, "shell", "--no-imports", "--command", FILL)
    assert "leaderboard.0002" in manage(tmp_path, "migrate", "--plan"), "the database is at the earlier state"
    manage(tmp_path, "migrate", "--verbosity", "0")
    assert json.loads(manage(tmp_path, "shell", "--no-imports", "--command", READ)) == {
        "runs": 300, "points": 300, "jobs": 1, "leases": 1, "events": 1, "node": "ada", "sum": 344.85,
        "entry": ["An idea", "ada", "b" * 64], "pages": [200, 200, 200, 200],
    }  # fmt: skip
