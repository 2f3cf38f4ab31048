"""The demo data: real runs, created in an empty database through the site's own functions."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from leaderboard import demo, tasks
from leaderboard.models import CurvePoint, Entry, OutboxMessage, Run, Season, TracedGraph, Track
from leaderboard.rankings.standings_store import load_standings
from scheduler.models import Event, Job

pytestmark = pytest.mark.django_db


@pytest.mark.slow
@pytest.mark.services
def test_seed_demo_of_empty_site_creates_numbers_graphs_and_labels(client: Client) -> None:
    out = StringIO()
    call_command("seed_demo", stdout=out)
    assert "entries and" in out.getvalue()
    check_numbers(Track.objects.get())
    check_graphs(client)
    check_labels(client)


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
    assert [run.bits_per_byte for run in stored_runs] == [
        run.get("score", {}).get("bits_per_byte") for run in fixture_runs
    ]
    assert [run.reason for run in stored_runs] == [run.get("failure", {}).get("reason", "") for run in fixture_runs]
    assert (
        [run.config["seed"] for run in stored_runs]
        == [run.seed for run in stored_runs]
        == [run["seed"] for run in fixture_runs]
    )
    points = CurvePoint.objects.filter(run=stored_runs[0], series="train").order_by("step")
    assert [point.step for point in points] == [row[0] for row in fixture_runs[0]["train"]]

    table = load_standings(Track.objects.select_related("season").get(pk=track.pk))
    assert table.problem == ""
    assert table.row_count == len(demo.load_fixture()["entries"])
    assert all(row.multiplier for row in table.rows.all())
    assert Run.objects.filter(trust=Run.Trust.RECORD).exists()


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
