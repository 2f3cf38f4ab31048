"""Link-preview cards of runs, and their curves as CSV."""

from __future__ import annotations

import pytest
from django.test import Client

from leaderboard.charts.cards import draw_run_card
from leaderboard.charts.curve_svg import write_curve_csv
from leaderboard.models import Entry, Run
from tests.support import scene

pytestmark = pytest.mark.django_db


def test_run_without_points_has_card_and_empty_csv(client: Client) -> None:
    night = scene.create_night_board()
    queued = Run.objects.filter(state=Run.State.QUEUED).first()
    assert queued
    assert night
    assert draw_run_card(queued).startswith(b"\x89PNG")
    assert len(write_curve_csv(queued).splitlines()) == 1
    assert client.get("/runs/999999/curve.png").status_code == 404


def test_card_with_markup_in_its_title_is_drawn(client: Client) -> None:
    run = scene.create_night_board()["train"]
    blank = client.get(f"/runs/{run.pk}/curve.png").content
    Entry.objects.filter(pk=run.entry_id).update(title="</text><script>&amp;\x1b]]>\uffff")
    Run.objects.filter(pk=run.pk).update(revision=run.revision + 1)
    drawn = client.get(f"/runs/{run.pk}/curve.png")
    assert drawn.content.startswith(b"\x89PNG")
    assert drawn.content != blank
