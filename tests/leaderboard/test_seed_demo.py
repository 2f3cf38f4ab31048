"""The demo data: real runs, created in an empty database through the site's own functions."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from leaderboard import demo, tasks
from leaderboard.job_handlers.generation import list_generating_runs
from leaderboard.models import CurvePoint, OutboxMessage, Run, Season, StandingsTable, Track
from leaderboard.rankings.standings_store import load_standings
from leaderboard.schedule.calendar import list_recent_nights
from scheduler import storage
from scheduler.campaigns.models import Campaign
from scheduler.models import Blob, Job
from tests.support.clean_environment import run_python

pytestmark = pytest.mark.django_db


@pytest.mark.slow
@pytest.mark.services
def test_seed_demo_of_empty_site_fills_each_part(client: Client, site: Any, tmp_path: Path) -> None:
    site.REPHRASE_FILES = tmp_path
    out = StringIO()
    call_command("seed_demo", stdout=out)
    assert "entries and" in out.getvalue()
    check_numbers(Track.objects.get())
    check_parts(client)
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
    assert list_without_multiplier(table) == []
    assert Run.objects.filter(trust=Run.Trust.RECORD).exists()


def list_without_multiplier(table: StandingsTable) -> list[str]:
    return [row.entry.architecture for row in table.rows.select_related("entry") if not row.multiplier]


def check_parts(client: Client) -> None:
    """Check that the demo shows each part of a site: nights, seconds, a model to prompt, a campaign."""
    track = Track.objects.get()
    nights = list_recent_nights(timezone.now())
    assert len(nights) == len(demo.load_fixture()["entries"])
    assert sum(1 for night in nights if night.run and night.run.bits_per_byte) >= len(nights) - 1
    assert list_without_multiplier(load_standings(track, "seconds")) == []
    model = list_generating_runs().get()
    assert client.get(f"/try/?run={model.pk}").status_code == 200
    weights = model.checkpoint.manifest["files"][0]
    assert storage.read_blob(Blob.objects.get(pk=weights["sha256"])) == demo.WEIGHTS.read_bytes()
    campaign = Campaign.objects.with_counts().get()
    assert campaign.state == Campaign.State.RUNNING
    assert campaign.packets.filter(state="waiting").count() >= campaign.low_mark
    assert client.get(campaign.get_absolute_url()).status_code == 200


SEASON = "from leaderboard.models import Season; Season.objects.create(name='One', corpus='x', tokenizer='y')"


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    "commands", [[["seed_demo"]], [["shell", "-v", "0", "-c", SEASON], ["create_track", "night-h100"]]]
)
def test_command_of_the_tutorial_prints_no_warning_without_redis(commands: list[list[str]], tmp_path: Path) -> None:
    run_python(tmp_path, "manage.py", "migrate")
    for command in commands:
        assert run_python(tmp_path, "manage.py", *command).stderr == ""
