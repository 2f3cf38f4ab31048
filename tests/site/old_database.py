"""Migrates a database of the first release with rows to the newest state; prints the migrated rows as JSON.

Run as a process with a database of its own: `python -m tests.site.old_database`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import django

django.setup()

from django.apps import apps  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import IntegrityError, connection, transaction  # noqa: E402
from django.db.migrations.executor import MigrationExecutor  # noqa: E402
from django.test import Client  # noqa: E402
from django.utils import timezone  # noqa: E402

FIRST = [("leaderboard", "0001_initial"), ("scheduler", "0001_initial")]


def migrate_to_first_release() -> Any:
    """Return its models."""
    executor = MigrationExecutor(connection)
    executor.migrate(FIRST)
    return MigrationExecutor(connection).loader.project_state(FIRST).apps


def create_rows(old_apps: Any) -> None:
    """Create a run with releases in each state, two checkpoints and two graphs, of which one names the other."""

    def create(model: str, **values: Any) -> Any:
        return old_apps.get_model(model).objects.create(**values)

    user = create("auth.User", username="ada", password="x")
    season = create("leaderboard.Season", name="First", corpus="fineweb-edu", tokenizer="bpe:512", caps={})
    track = create(
        "leaderboard.Track", slug="long", name="Long", season=season, budget="24h", expected_seconds=86400, releases=10
    )
    entry = create(
        "leaderboard.Entry", kind="main", title="main", repository="/r", sha="a" * 40, track=track, requested_by=user
    )
    code = create("scheduler.Blob", sha256="b" * 64, name="code", size=1)
    kinds = ("train", "score", "smoke", "smoke")
    job, score, *traces = (create("scheduler.Job", kind=kind, release=code) for kind in kinds)
    run = create("leaderboard.Run", entry=entry, track=track, season=season, seed=1, budget="24h", job=job)
    other = create("leaderboard.Entry", title="An idea", repository="/r", sha="c" * 40, track=track)
    create("leaderboard.Run", entry=other, track=track, season=season, seed=2, budget="24h")
    values = {"series": "train", "step": 1, "tokens": 1, "flops": 1.0, "seconds": 1.0, "loss": 3.0}
    create("leaderboard.CurvePoint", run=run, **values)
    node = create("scheduler.Node", name="cellar", owner=user)
    create("scheduler.Lease", job=job, node=node, attempt=1, token_hash="t", expires_at=timezone.now())
    create("scheduler.Event", actor="ada", sentence="An event.", target_kind="run", target_id=run.pk)
    for step in (100, 200):
        create("scheduler.Checkpoint", job=job, step=step, manifest={"step": step})
    releases: dict[str, dict[str, Any]] = {
        "10-percent": {},
        "20-percent": {"score_job": score},
        "30-percent": {"scores": [{"name": "bits_per_byte", "value": 0.9}]},
        "40-percent": {"published_at": timezone.now(), "repository": "trains/gpt-run-1"},
        "final": {"published_at": timezone.now()},
    }
    for number, (name, values) in enumerate(releases.items(), 1):
        create("leaderboard.Publication", run=run, name=name, step=100 * number, manifest={}, reason="x", **values)
    shared = {"entry": entry, "season": season, "track": track, "config_hash": "c"}
    first = create("leaderboard.TracedGraph", job=traces[0], hash="d", **shared)
    create("leaderboard.TracedGraph", job=traces[1], hash="e", **{**shared, "config_hash": "f"}, reference=first)


def report_rows() -> dict[str, Any]:
    """Return the values of fields that are new or renamed, and whether new constraints hold."""

    def get(model: str) -> Any:
        return apps.get_model(model).objects

    job = get("scheduler.Job").get(kind="train")
    return {
        "season": get("leaderboard.Season").values("name", "corpus", "test_tokens", "test_secret").get(),
        "track": get("leaderboard.Track").values("slug", "milestones", "releases", "followed_track").get(),
        "run": get("leaderboard.Run").filter(seed=1).values("seed", "budget", "purpose", "release").get(),
        "releases": dict(get("leaderboard.Publication").order_by("step").values_list("name", "is_release")),
        "checkpoints": list(get("scheduler.Checkpoint").order_by("step").values_list("step", "from_milestone")),
        "graphs": list(get("leaderboard.TracedGraph").order_by("pk").values_list("hash", "baseline_graph__hash")),
        "lease": get("scheduler.Lease").values("job__kind", "node__name", "node__owner__username").get(),
        "point": get("leaderboard.CurvePoint").values("step", "loss", "run__entry__requested_by__username").get(),
        "events": list(get("scheduler.Event").values_list("sentence", flat=True)),
        "same step as milestone": can_create(job=job, step=200, manifest={}, from_milestone=True),
        "same step again": can_create(job=job, step=200, manifest={}),
    }


def can_create(**values: Any) -> bool:
    try:
        with transaction.atomic():
            apps.get_model("scheduler.Checkpoint").objects.create(**values)
    except IntegrityError:
        return False
    return True


def read_pages() -> list[int]:
    """Return the status of pages about the second run: the rows of the first are too incomplete for them."""
    run = apps.get_model("leaderboard.Run").objects.get(seed=2)
    client = Client(headers={"host": "localhost"})
    return [client.get(page).status_code for page in (f"/runs/{run.pk}/", f"/entries/{run.entry_id}/", "/", "/nodes/")]


if __name__ == "__main__":
    create_rows(migrate_to_first_release())
    call_command("migrate", verbosity=0)
    json.dump({**report_rows(), "pages": read_pages()}, sys.stdout)
