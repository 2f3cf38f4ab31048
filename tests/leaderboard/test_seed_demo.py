"""The demo: real runs in an empty database, by the site's own ways in."""

from __future__ import annotations

import time
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from leaderboard import demo, standings
from leaderboard.models import CurvePoint, Effect, Entry, Run, Season, Track
from scheduler.models import Event, Job

pytestmark = pytest.mark.django_db


@pytest.fixture
def track() -> Track:
    return demo.seed()


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


def test_every_number_is_that_of_the_fixture(track: Track) -> None:
    told = [run for entry in demo.read()["entries"] for run in entry["runs"]]
    made = list(Run.objects.filter(state=Run.State.FINISHED).order_by("pk"))
    assert [run.bits_per_byte for run in made] == [run["score"]["bits_per_byte"] for run in told]
    assert [run.seed for run in made] == [run["seed"] for run in told]
    assert [run.config["seed"] for run in made] == [run["seed"] for run in told], "as the trainer wrote it"
    points = CurvePoint.objects.filter(run=made[0], series="train").order_by("step")
    assert [point.step for point in points] == [row[0] for row in told[0]["train"]]


def test_the_board_has_multipliers_with_intervals_and_a_record_that_the_site_itself_found(track: Track) -> None:
    table = standings.of(Track.objects.select_related("season").get(pk=track.pk))
    assert table.problem == ""
    assert len(table.rows) == len(demo.read()["entries"])
    assert all(row.estimate and row.estimate.cm for row in table.rows)
    assert Run.objects.filter(trust=Run.Trust.RECORD).exists()


def test_it_is_labelled_on_every_page(client: Client, track: Track) -> None:
    run = Run.objects.filter(state=Run.State.FINISHED)[0]
    for page in (
        "/",
        "/queue/",
        "/nodes/",
        "/sponsors/",
        "/calendar/",
        f"/runs/{run.pk}/",
        f"/entries/{run.entry_id}/",
    ):
        assert "Demo data" in client.get(page).content.decode(), page
    assert set(Entry.objects.exclude(author="").values_list("author", flat=True)) == {"demo author"}


def test_nothing_of_it_starts_or_is_told_to_anybody(track: Track) -> None:
    from leaderboard import tasks

    tasks.fill_ladders()
    assert not Job.objects.filter(state=Job.State.QUEUED).exists()
    assert not Event.objects.filter(announced=False).exists()
    assert not Effect.objects.exists()
