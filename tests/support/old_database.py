"""Migrates a database of the first release with rows to the newest state; prints the migrated rows as JSON.

Run as a process with a database of its own: `python -m tests.support.old_database`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import django

django.setup()

from django.db import IntegrityError, connection, transaction  # noqa: E402
from django.db.migrations.executor import MigrationExecutor  # noqa: E402
from django.utils import timezone  # noqa: E402

FIRST = [("leaderboard", "0001_initial"), ("scheduler", "0001_initial")]


def migrate(targets: list[tuple[str, str]] | None = None) -> Any:
    """Migrate to the targets, by default the newest state of all apps; return the models of that state."""
    executor = MigrationExecutor(connection)
    wanted = targets or executor.loader.graph.leaf_nodes()
    executor.migrate(wanted)
    return MigrationExecutor(connection).loader.project_state(wanted).apps


def create_rows(apps: Any) -> None:
    """Create a run with releases in each state, two checkpoints and two graphs, of which one names the other."""

    def create(model: str, **values: Any) -> Any:
        return apps.get_model(model).objects.create(**values)

    season = create("leaderboard.Season", name="First", corpus="fineweb-edu", tokenizer="bpe:512", caps={})
    track = create(
        "leaderboard.Track", slug="long", name="Long", season=season, budget="24h", expected_seconds=86400, releases=10
    )
    entry = create("leaderboard.Entry", kind="main", title="main", repository="/r", sha="a" * 40, track=track)
    code = create("scheduler.Blob", sha256="b" * 64, name="code", size=1)
    kinds = ("train", "score", "smoke", "smoke")
    job, score, *traces = (create("scheduler.Job", kind=kind, release=code) for kind in kinds)
    run = create("leaderboard.Run", entry=entry, track=track, season=season, seed=1, budget="24h", job=job)
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


def report_rows(apps: Any) -> dict[str, Any]:
    """Return the values of fields that are new or renamed, and whether new constraints hold."""

    def get(model: str) -> Any:
        return apps.get_model(model).objects

    job = get("scheduler.Job").get(kind="train")
    return {
        "season": get("leaderboard.Season").values("name", "corpus", "test_tokens").get(),
        "track": get("leaderboard.Track").values("slug", "milestones", "releases", "followed_track").get(),
        "run": get("leaderboard.Run").values("seed", "budget", "purpose", "release").get(),
        "releases": dict(get("leaderboard.Publication").order_by("step").values_list("name", "is_release")),
        "checkpoints": list(get("scheduler.Checkpoint").order_by("step").values_list("step", "from_milestone")),
        "graphs": list(get("leaderboard.TracedGraph").order_by("pk").values_list("hash", "baseline_graph__hash")),
        "same step as milestone": can_create(apps, job=job, step=200, manifest={}, from_milestone=True),
        "same step again": can_create(apps, job=job, step=200, manifest={}),
    }


def can_create(apps: Any, **values: Any) -> bool:
    try:
        with transaction.atomic():
            apps.get_model("scheduler.Checkpoint").objects.create(**values)
    except IntegrityError:
        return False
    return True


if __name__ == "__main__":
    create_rows(migrate(FIRST))
    json.dump(report_rows(migrate()), sys.stdout)
