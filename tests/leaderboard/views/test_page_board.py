"""The board and its small JSON."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from leaderboard.models import Run
from leaderboard.rankings.standings_store import recompute_standings
from scheduler.models import Event
from tests.support import boards, scene

pytestmark = pytest.mark.django_db


def extract_text(html: bytes) -> str:
    """Return the text of a page without its tags."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html.decode()).replace("\xa0", " "))


@pytest.mark.stored_standings
def test_board_with_many_rows_takes_ten_queries(
    client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    night = scene.create_night_board()
    for seed in range(20, 40):
        scene.create_scored_run(night["entry"], 2.1, 0.01, steps=2, seed=seed)
        scene.create_run(night["entry"], seed=100 + seed, state=Run.State.QUEUED)

    recompute_standings(night["entry"].track)

    with django_assert_max_num_queries(10):
        page = extract_text(client.get("/").content)
    assert "main" in page
    assert "The loss became NaN at step 212." in page


def test_board_live_json_is_304_until_a_change(client: Client) -> None:
    night = scene.create_night_board()
    address = "/tracks/three-minutes/live.json"

    first = client.get(address)
    unchanged = client.get(address, headers={"if-none-match": first["ETag"]})
    scene.add_curve_points(night["train"], 521, 530)
    changed = client.get(address, headers={"if-none-match": first["ETag"]})

    assert first.status_code == 200
    assert "main" in first.json()["parts"]["train"]
    assert unchanged.status_code == 304
    assert changed.status_code == 200
    assert changed.json()["revision"] == first.json()["revision"]
    Event.record("site", night["train"], "Training is over; it is being scored.")
    assert client.get(address).json()["revision"] > first.json()["revision"]


def test_board_ladder_chart_has_marks_and_table(client: Client) -> None:
    track, _ = boards.create_board()
    boards.create_scored_run(scene.create_entry(track, '"><script>alert(1)</script>', sha="9" * 40))

    response = client.get("/")
    page = extract_text(response.content)

    assert b"<script>alert" not in response.content
    assert response.content.count(b'class="seed"') == 15
    assert response.content.count(b"mark-entry") == 4
    assert re.search(r"1/8 1\.3 × 10¹² 3 2\.\d{4} ± 0\.\d{4} 2\.\d{4}", page)
    assert "results.json --baseline entry-" in page
