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
from leaderboard.models import CurvePoint, Entry, OutboxMessage, Run, Season, StandingsTable, TracedGraph, Track
from leaderboard.rankings.standings_store import load_standings
from leaderboard.schedule.calendar import list_recent_nights
from scheduler import storage
from scheduler.campaigns.models import Campaign
from scheduler.models import Blob, Event, Job
from tests.leaderboard.conftest import Repository

pytestmark = pytest.mark.django_db


@pytest.mark.slow
@pytest.mark.services
def test_seed_demo_of_empty_site_fills_each_part_and_takes_entries(
    client: Client, main_repository: Repository, site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.REPHRASE_FILES = tmp_path
    monkeypatch.setenv("DAILYTRAIN_CACHE", str(tmp_path / "cache"))
    out = StringIO()
    call_command("seed_demo", stdout=out)
    assert "entries and" in out.getvalue()
    check_numbers(Track.objects.get())
    check_graphs(client)
    check_labels(client)
    check_parts(client)
    check_season(main_repository)


def test_seed_demo_refuses_database_with_data() -> None:
    Season.objects.create(name="Mine", corpus="x", tokenizer="y")
    with pytest.raises(CommandError, match="Nothing was changed"):
        call_command("seed_demo")
    assert not Track.objects.exists()


def check_numbers(track: Track) -> None:
    """Check that the numbers are those of the fixture and that the board is computed from them."""
    first = Run.objects.order_by("pk").first()
    assert first
    assert sorted(Run.objects.values_list("pk", flat=True)) == list(range(first.pk, first.pk + Run.objects.count()))

    fixture_runs = [run for entry in demo.load_fixture()["entries"] for run in entry["runs"]]
    stored_runs = list(Run.objects.exclude(state=Run.State.WAITING).order_by("pk"))
    scored = [run for run in stored_runs if run.state != Run.State.FAILED]
    assert len(scored) == len(stored_runs) - 1  # nanoGPT's recipe diverged with one seed
    assert sorted((run.bits_per_byte, run.budget, run.seed, run.config["seed"]) for run in scored) == sorted(
        (run["score"]["bits_per_byte"], run["budget"], run["seed"], run["seed"])
        for run in fixture_runs
        if "score" in run
    )
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


def check_season(repository: Repository) -> None:
    """Check that the season is the same on this machine, and that an entry that is submitted is queued."""
    call_command("prepare_season", verbosity=0)
    season = Season.objects.current()
    assert season is not None
    assert season.is_stored
    call_command("submit_entry", str(repository.path), "main", "--title", "Mine", "--arch", "smear", "--approve")
    [job] = Job.objects.filter(state=Job.State.QUEUED)
    assert (job.kind, job.traced_graph.season) == ("smoke", season)


def check_graphs(client: Client) -> None:
    """Check that each entry has its graph and that each file of the graph has an address."""
    entries = {entry["title"]: entry for entry in demo.load_fixture()["entries"][1:]}
    baseline = TracedGraph.objects.get(entry=Season.objects.get().baseline)
    for entry in Entry.objects.filter(title__in=entries):
        stored, (graph,) = entries[entry.title]["graph"], entry.graphs.all()
        assert (graph.hash, graph.baseline_graph, graph.problem) == (stored["summary"]["hash"], baseline, "")
        assert {run.graph for run in entry.runs.all()} == {graph}
        page = client.get(entry.get_absolute_url()).content.decode()
        assert "<code>dailytrain::attention</code>" in page or entry.architecture == "rwkv5"
        for name, text in stored["files"].items():
            address = f"/graphs/{graph.hash}/{name}"
            assert f'href="{address}"' in page
            assert b"".join(client.get(address)).decode() == text  # type: ignore[arg-type]
    run = Run.objects.exclude(bits_per_byte=None).filter(graph=graph).first()
    assert run
    assert graph.hash in client.get(run.get_absolute_url()).content.decode()


def check_labels(client: Client) -> None:
    """Check that every page says that it is a demo and that no job starts."""
    run = Run.objects.filter(state=Run.State.FINISHED)[0]
    paths = ("/", "/queue/", "/nodes/", "/sponsors/", "/calendar/", f"/runs/{run.pk}/", f"/entries/{run.entry_id}/")
    for path in paths:
        assert "Demo data" in client.get(path).content.decode(), path
    assert set(Entry.objects.exclude(author="").values_list("author", flat=True)) == {"demo author"}

    tasks.fill_ladders()
    assert not Job.objects.filter(state=Job.State.QUEUED).exists()
    assert not Event.objects.filter(announced=False).exists()
    assert not OutboxMessage.objects.exists()
