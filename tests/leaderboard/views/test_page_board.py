"""The board and its small JSON."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from leaderboard.models import Run
from leaderboard.rankings.standings_store import recompute_standings
from leaderboard.schedule.start_estimates import estimate_starts
from scheduler.models import Event, Node
from tests.support import boards, scene

pytestmark = pytest.mark.django_db


def extract_text(html: bytes) -> str:
    """Return the text of a page without its tags."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html.decode()).replace("\xa0", " "))


def test_board_shows_nightly_run_with_node_progress_and_curve(client: Client) -> None:
    night = scene.create_night_board()

    response = client.get("/")
    page = extract_text(response.content)

    assert "Tonight’s train running main" in page
    assert "on this-machine" in page
    assert "1 min 16 s" in page
    assert "left of 3 min" in page
    assert b'class="smooth is-ink" d="m' in response.content
    assert f"/tracks/{night['track'].slug}/live.json" in response.content.decode()
    assert "Waits for a node that fits." in page
    assert "It trains about" not in page, "the queue's page estimates that from measured speeds"
    assert "A maintainer has to approve commit beef1c7b first." in page
    assert "The loss became NaN at step 212." in page


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


def test_start_estimates_follow_queue_order_and_nodes() -> None:
    night = scene.create_night_board()
    now = timezone.now()
    waiting = list(Run.objects.queued().select_related("job"))

    one_node = estimate_starts(waiting, now)
    scene.create_node("another")
    two_nodes = estimate_starts(waiting, now)
    Node.objects.update(state=Node.State.OFFLINE)
    no_nodes = estimate_starts(waiting, now)

    time_left = timedelta(seconds=night["train"].seconds_left)
    assert [estimate.begins_at for estimate in one_node] == [now + time_left, now + time_left + timedelta(seconds=180)]
    ends = [estimate.ends_at for estimate in one_node]
    assert ends == [now + time_left + number * timedelta(seconds=180) for number in (1, 2)]
    assert [estimate.begins_at for estimate in two_nodes] == [now, now + time_left]
    assert [estimate.begins_at for estimate in no_nodes] == [None, None]
    assert [estimate.position for estimate in no_nodes] == [1, 2]
    assert no_nodes[0].reason == "Waits for a node that fits: none is online. It starts as soon as one is."
