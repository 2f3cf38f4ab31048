"""What other people's pages show of ours: badges, link previews, charts in a frame."""

from __future__ import annotations

import io
import re

import pytest
from django.test import Client
from PIL import Image

from leaderboard.models import Entry, Run
from leaderboard.rankings.eligible_runs import RECORD_CONFIRMED
from tests.support import boards, scene

pytestmark = pytest.mark.django_db


@pytest.fixture
def better() -> Entry:
    """The record of a full board."""
    _, entries = boards.board()
    Entry.objects.filter(pk=entries["Better"].pk).update(confirmation=RECORD_CONFIRMED)
    Run.objects.filter(entry=entries["Better"]).update(trust=Run.Trust.RECORD, purpose=Run.Purpose.CONFIRMATION)
    return Entry.objects.get(pk=entries["Better"].pk)


def test_a_badge_is_what_shields_reads_and_a_picture_of_the_same(client: Client, better: Entry) -> None:
    said = client.get(f"/entries/{better.pk}/badge.json").json()
    assert (said["schemaVersion"], said["label"]) == (1, "compute multiplier")
    assert re.fullmatch(r"1\.\d{3} \(1\.\d{3} to 1\.\d{3}\)", said["message"])
    picture = client.get(f"/entries/{better.pk}/badge.svg")
    assert picture["Content-Type"] == "image/svg+xml"
    assert said["message"] in picture.content.decode()


def test_an_entry_without_a_multiplier_says_where_it_is(client: Client, better: Entry) -> None:
    waiting = scene.entry(better.track, "New", "smear", sha="f" * 40, state=Entry.State.PROPOSED)
    assert client.get(f"/entries/{waiting.pk}/badge.json").json()["message"] == "proposed"
    baseline = better.track.season.baseline_id
    assert client.get(f"/entries/{baseline}/badge.json").json()["message"] == "1 (baseline)"


def test_a_title_cannot_break_out_of_a_badge(client: Client, better: Entry) -> None:
    Entry.objects.filter(pk=better.pk).update(title='"><script>x</script>')
    Run.objects.update(revision=5, finished_at="2026-03-04T00:00:00Z")
    assert b"<script" not in client.get("/tracks/small/badge.svg").content


def test_a_track_without_records_has_a_badge_too(client: Client) -> None:
    boards.board()
    assert client.get("/tracks/small/badge.json").json()["message"] == "none yet"


@pytest.mark.parametrize("place", ["/entries/{}/card.png", "/tracks/small/card.png"])
def test_a_card_has_the_shape_of_a_link_preview_and_something_on_it(client: Client, better: Entry, place: str) -> None:
    scene.points(Run.objects.filter(entry=better)[0], 1, 60)
    Run.objects.update(finished_at="2026-03-04T00:00:00Z", revision=5)
    answer = client.get(place.format(better.pk))
    picture = Image.open(io.BytesIO(answer.content))
    assert (answer["Content-Type"], picture.size) == ("image/png", (1200, 630))
    assert len(picture.convert("RGB").getcolors(2**20) or []) > 10
    assert len(answer.content) < 200_000


def test_a_chart_may_be_framed_and_nothing_else(client: Client, better: Entry) -> None:
    run = Run.objects.filter(entry=better)[0]
    for address in ("/?", "/tracks/small/?", f"/runs/{run.pk}/?", f"/compare/?runs={run.pk}&"):
        page, chart = client.get(address), client.get(f"{address}embed=1")
        assert "frame-ancestors 'none'" in page["Content-Security-Policy"]
        assert page["X-Frame-Options"] == "DENY"
        assert "frame-ancestors *" in chart["Content-Security-Policy"]
        assert "X-Frame-Options" not in chart
        assert b"<form" not in chart.content
        assert b"<script" not in chart.content
        assert chart.status_code == 200


def test_an_embedded_chart_says_when_there_is_nothing_to_draw(client: Client, better: Entry) -> None:
    run = scene.run(better, seed=77)
    assert "Nothing to draw yet" in client.get(f"/runs/{run.pk}/?embed=1").content.decode()
    scene.points(run, 1, 40)
    assert "<path" in client.get(f"/runs/{run.pk}/?embed=1").content.decode()


def test_an_embedded_comparison_has_the_curves_of_its_runs_and_leads_to_the_page(client: Client, better: Entry) -> None:
    runs = [scene.run(better, seed=seed) for seed in (77, 78)]
    address = f"/compare/?runs={runs[0].pk},{runs[1].pk}"
    assert "Nothing to draw yet" in client.get(f"{address}&embed=1").content.decode()
    for run in runs:
        scene.points(run, 1, 40)

    chart = client.get(f"{address}&embed=1").content.decode()

    assert chart.count("<path") == 2
    assert f'href="{address}"' in chart
    assert "seed 77" in chart
    assert f"runs={runs[0].pk},{runs[1].pk}&amp;embed=1" in client.get(address).content.decode()
