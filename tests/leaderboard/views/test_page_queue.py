"""The queue page and the nodes page."""

from __future__ import annotations

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from leaderboard.models import Entry, Run
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


def test_queue_page_lists_arrivals_with_their_seeds(client: Client) -> None:
    track = scene.create_track()
    entry = scene.create_entry(track, "Twice", "gpt")
    for seed in (1, 2):
        scene.create_scored_run(entry, 1.5, 0.01, seed=seed)

    page = extract_text(client.get("/queue/").content)

    assert [seed for seed in (1, 2) if f"Twice gpt, seed {seed}" in page] == [1, 2]


def test_queue_page_says_which_waiting_run_needs_approval(client: Client) -> None:
    scene.create_night_board()
    Entry.objects.filter(runs__state=Run.State.WAITING).update(state=Entry.State.PROPOSED)

    page = extract_text(client.get("/queue/").content)

    assert "needs approval" in page
    assert "being prepared" not in page


def test_queue_page_without_runs_shows_a_message(client: Client) -> None:
    scene.create_track()

    page = extract_text(client.get("/queue/").content)

    assert "No run is training or queued" in page
    assert "No node is online" in page


def test_queue_page_of_long_queue_takes_few_queries(
    client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    night = scene.create_night_board()
    for seed in range(50):
        scene.create_run(night["entry"], seed=100 + seed, state=Run.State.QUEUED)

    with django_assert_max_num_queries(19):
        client.get("/queue/")


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


def test_nodes_page_without_nodes_explains_adding_one(client: Client) -> None:
    assert "make node URL=" in extract_text(client.get("/nodes/").content)


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
