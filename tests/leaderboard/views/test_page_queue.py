"""The queue page and the nodes page."""

from __future__ import annotations

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from leaderboard.models import Run
from leaderboard.views import pool
from scheduler.models import Node
from tests.leaderboard.views.test_page_board import extract_text
from tests.support import scene

pytestmark = pytest.mark.django_db


def test_queue_page_lists_running_then_waiting_then_finished(client: Client) -> None:
    scene.create_night_board()

    page = extract_text(client.get("/queue/").content)

    assert page.index("1 min 16 s left of 3 min") < page.index("being prepared") < page.index("Arrivals")
    assert page.index("Arrivals") < page.index("Did not arrive") < page.index("The loss became NaN")


def test_nodes_page_shows_hardware_and_activity(
    client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    scene.create_night_board()
    for number in range(10):
        scene.create_node(f"lent-{number}")
    Node.objects.create(name="troublemaker", state=Node.State.BANNED)

    with django_assert_max_num_queries(10):
        page = extract_text(client.get("/nodes/").content)

    assert "8 cores, 16 GiB" in page
    assert "Trains main , since" in page
    assert "Free. It takes the next job that fits." in page
    assert "troublemaker" not in page
    assert "main" in client.get("/nodes/live.json").json()["parts"]["nodes"]


def test_queue_page_lists_no_more_live_runs_than_its_limit(
    client: Client, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "QUEUE_LIVE_RUNS", 2)
    Run.objects.filter(pk=run.pk).update(state=Run.State.TRAINING)
    Run.objects.bulk_create(
        Run(entry=run.entry, track=run.track, season=run.season, budget=run.budget, seed=seed, state="training")
        for seed in (101, 102, 103)
    )

    page = client.get("/queue/").content.decode()

    assert page.count("<progress") == 2
    assert "2 more runs are live." in page
