"""The demo: real runs in an empty database, by the site's own ways in."""

from __future__ import annotations

import time
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from leaderboard import demo, tasks
from leaderboard.models import CurvePoint, Entry, OutboxMessage, Run, Season, TracedGraph, Track
from leaderboard.rankings.standings_store import load_standings
from scheduler.models import Event, Job

pytestmark = pytest.mark.django_db


def test_it_fills_an_empty_database_within_half_a_minute() -> None:
    begun, out = time.process_time(), StringIO()
    call_command("seed_demo", stdout=out)
    assert time.process_time() - begun < 30
    assert "entries and" in out.getvalue()
    first = Run.objects.order_by("pk").first()
    assert first
    assert sorted(Run.objects.values_list("pk", flat=True)) == list(range(first.pk, first.pk + Run.objects.count()))


def test_it_leaves_a_database_alone_that_has_something_in_it() -> None:
    Season.objects.create(name="Mine", corpus="x", tokenizer="y")
    with pytest.raises(CommandError, match="Nothing was changed"):
        call_command("seed_demo")
    assert not Track.objects.exists()


def test_its_numbers_are_those_of_the_fixture_and_its_board_is_what_the_site_makes_of_them() -> None:
    track = demo.seed_demo()
    told = [run for entry in demo.load_fixture()["entries"] for run in entry["runs"]]
    made = list(Run.objects.exclude(state=Run.State.WAITING).order_by("pk"))
    assert [run.bits_per_byte for run in made] == [run.get("score", {}).get("bits_per_byte") for run in told]
    assert [run.reason for run in made] == [run.get("failure", {}).get("reason", "") for run in told]
    assert [run.config["seed"] for run in made] == [run.seed for run in made] == [run["seed"] for run in told]
    points = CurvePoint.objects.filter(run=made[0], series="train").order_by("step")
    assert [point.step for point in points] == [row[0] for row in told[0]["train"]]

    table = load_standings(Track.objects.select_related("season").get(pk=track.pk))
    assert table.problem == ""
    assert table.row_count == len(demo.load_fixture()["entries"])
    assert all(row.multiplier for row in table.rows.all())
    assert Run.objects.filter(trust=Run.Trust.RECORD).exists()


def test_demo_shows_the_graph_of_each_entry_and_its_files(client: Client) -> None:
    demo.seed_demo()
    entries = {entry["title"]: entry for entry in demo.load_fixture()["entries"][1:]}
    baseline = TracedGraph.objects.get(entry=Season.objects.get().baseline)
    for entry in Entry.objects.filter(title__in=entries):
        stored, (graph,) = entries[entry.title]["graph"], entry.graphs.all()
        assert (graph.hash, graph.reference, graph.problem) == (stored["summary"]["hash"], baseline, "")
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


def test_it_is_labeled_on_every_page_and_nothing_of_it_starts(client: Client) -> None:
    demo.seed_demo()
    run = Run.objects.filter(state=Run.State.FINISHED)[0]
    places = ("/", "/queue/", "/nodes/", "/sponsors/", "/calendar/", f"/runs/{run.pk}/", f"/entries/{run.entry_id}/")
    for page in places:
        assert "Demo data" in client.get(page).content.decode(), page
    assert set(Entry.objects.exclude(author="").values_list("author", flat=True)) == {"demo author"}

    tasks.fill_ladders()
    assert not Job.objects.filter(state=Job.State.QUEUED).exists()
    assert not Event.objects.filter(announced=False).exists()
    assert not OutboxMessage.objects.exists()
