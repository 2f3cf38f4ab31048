"""Departures and nodes."""

from __future__ import annotations

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from leaderboard.models import Run
from scheduler.models import Node
from tests.leaderboard.views.test_page_board import words
from tests.support import scene

pytestmark = pytest.mark.django_db


def test_what_runs_comes_before_what_waits_and_then_what_has_arrived(client: Client) -> None:
    scene.night()

    page = words(client.get("/queue/").content)

    assert page.index("1 min 16 s left of 3 min") < page.index("needs approval") < page.index("Arrivals")
    assert page.index("Arrivals") < page.index("Did not arrive") < page.index("The loss became NaN")


def test_an_empty_queue_says_how_to_send_a_train(client: Client) -> None:
    scene.track()

    page = words(client.get("/queue/").content)

    assert "Nothing runs and nothing waits" in page
    assert "No node is online" in page


def test_the_queue_takes_few_queries_however_long_it_is(
    client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    night = scene.night()
    for seed in range(50):
        scene.run(night["entry"], seed=100 + seed, state=Run.State.QUEUED)

    with django_assert_max_num_queries(18):
        client.get("/queue/")


def test_a_node_shows_what_it_is_and_what_it_does(
    client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    scene.night()
    for number in range(10):
        scene.node(f"lent-{number}")
    Node.objects.create(name="troublemaker", state=Node.State.BANNED)

    with django_assert_max_num_queries(10):
        page = words(client.get("/nodes/").content)

    assert "8 cores, 16 GiB" in page
    assert "Trains main , since" in page
    assert "Free. It takes the next job that fits." in page
    assert "troublemaker" not in page
    assert "main" in client.get("/nodes/live.json").json()["parts"]["nodes"]


def test_without_nodes_the_page_says_how_to_add_one(client: Client) -> None:
    assert "make node URL=" in words(client.get("/nodes/").content)
