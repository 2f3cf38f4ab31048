"""The demo data: real runs, created in an empty database through the site's own functions."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from leaderboard import demo, tasks
from leaderboard.models import CurvePoint, OutboxMessage, Run, Season, Track
from leaderboard.rankings.standings_store import load_standings
from scheduler.campaigns.models import Campaign
from scheduler.models import Job

pytestmark = pytest.mark.django_db


@pytest.mark.slow
@pytest.mark.services
def test_seed_demo_of_empty_site_fills_each_part(client: Client, site: Any, tmp_path: Path) -> None:
    site.REPHRASE_FILES = tmp_path
    out = StringIO()
    call_command("seed_demo", stdout=out)
    assert "entries and" in out.getvalue()
    check_numbers(Track.objects.get())
    assert Campaign.objects.get().state == Campaign.State.RUNNING
    assert "Demo data" in client.get("/").content.decode()
    tasks.fill_ladders()
    assert not Job.objects.filter(state=Job.State.QUEUED).exists()
    assert not OutboxMessage.objects.exists()


def test_seed_demo_refuses_database_with_data() -> None:
    Season.objects.create(name="Mine", corpus="x", tokenizer="y")
    with pytest.raises(CommandError, match="Nothing was changed"):
        call_command("seed_demo")
    assert not Track.objects.exists()


def check_numbers(track: Track) -> None:
    """Check that the numbers are those of the fixture and that the board is computed from them."""
    fixture_runs = [run for entry in demo.load_fixture()["entries"] for run in entry["runs"]]
    stored_runs = list(Run.objects.exclude(state=Run.State.WAITING).order_by("pk"))
    scored = [run for run in stored_runs if run.state != Run.State.FAILED]
    assert len(scored) == len(stored_runs) - 1  # nanoGPT's recipe diverged with one seed
    expected = sorted(run["score"]["bits_per_byte"] for run in fixture_runs if "score" in run)
    assert sorted(run.bits_per_byte for run in scored) == expected
    points = CurvePoint.objects.filter(run=stored_runs[0], series="train").order_by("step")
    assert [point.step for point in points] == [row[0] for row in fixture_runs[0]["train"]]

    table = load_standings(Track.objects.select_related("season").get(pk=track.pk))
    assert table.problem == ""
    assert table.row_count == len(demo.load_fixture()["entries"])
    assert all(row.multiplier for row in table.rows.all())
    assert Run.objects.filter(trust=Run.Trust.RECORD).exists()
