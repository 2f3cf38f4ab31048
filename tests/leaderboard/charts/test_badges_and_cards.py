"""Badges and link previews for other sites."""

from __future__ import annotations

import io

import pytest
from django.test import Client
from PIL import Image

from leaderboard.charts.cards import draw_run_card
from leaderboard.charts.curve_svg import write_curve_csv
from leaderboard.models import Entry, Run
from tests.support import boards, scene

pytestmark = pytest.mark.django_db


@pytest.fixture
def record_entry() -> Entry:
    """The record of a full board."""
    _, entries = boards.create_board()
    scene.confirm_record(entries["Better"])
    Run.objects.filter(entry=entries["Better"]).update(trust=Run.Trust.RECORD, purpose=Run.Purpose.CONFIRMATION)
    return Entry.objects.get(pk=entries["Better"].pk)


def test_badges_show_state_baseline_and_record(client: Client, record_entry: Entry) -> None:
    waiting = scene.create_entry(record_entry.track, "New", "smear", sha="f" * 40, state=Entry.State.PROPOSED)
    assert client.get(f"/entries/{waiting.pk}/badge.json").json()["message"] == "proposed"
    baseline = record_entry.track.season.baseline_id
    assert client.get(f"/entries/{baseline}/badge.json").json()["message"] == "1 (baseline)"
    Entry.objects.filter(pk=record_entry.pk).update(title='"><script>x</script>')
    assert b"<script" not in client.get("/tracks/small/badge.svg").content
    Run.objects.update(trust=Run.Trust.SCORED, revision=5)
    record_entry.confirmations.all().delete()
    assert client.get("/tracks/small/badge.json").json()["message"] == "none yet"


@pytest.mark.parametrize("path", ["/entries/{}/card.png", "/tracks/small/card.png"])
def test_card_has_link_preview_size_and_content(client: Client, record_entry: Entry, path: str) -> None:
    scene.add_curve_points(Run.objects.filter(entry=record_entry)[0], 1, 60)
    Run.objects.update(finished_at="2026-03-04T00:00:00Z", revision=5)
    response = client.get(path.format(record_entry.pk))
    image = Image.open(io.BytesIO(response.content))
    assert (response["Content-Type"], image.size) == ("image/png", (1200, 630))
    assert len(image.convert("RGB").getcolors(2**20) or []) > 10
    assert len(response.content) < 200_000


def test_pages_may_not_be_framed(client: Client, record_entry: Entry) -> None:
    page = client.get(record_entry.get_absolute_url())
    assert "frame-ancestors 'none'" in page["Content-Security-Policy"]
    assert page["X-Frame-Options"] == "DENY"


def test_card_with_markup_in_its_title_is_drawn(client: Client) -> None:
    run = scene.create_night_board()["train"]
    queued = Run.objects.filter(state=Run.State.QUEUED)[0]
    assert draw_run_card(queued).startswith(b"\x89PNG")
    assert len(write_curve_csv(queued).splitlines()) == 1, "it has no points"
    blank = client.get(f"/runs/{run.pk}/curve.png").content
    Entry.objects.filter(pk=run.entry_id).update(title="</text><script>&amp;\x1b]]>\uffff")
    Run.objects.filter(pk=run.pk).update(revision=run.revision + 1)
    drawn = client.get(f"/runs/{run.pk}/curve.png")
    assert drawn.content.startswith(b"\x89PNG")
    assert drawn.content != blank
