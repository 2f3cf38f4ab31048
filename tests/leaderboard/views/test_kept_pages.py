"""A crowd in front of the board: pages are kept for a moment, compressed, and not sent twice."""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from pytest_django import DjangoAssertNumQueries

from leaderboard.models import Entry, Run
from leaderboard.views import kept
from scheduler.models import Event
from tests.support import scene

pytestmark = pytest.mark.django_db

GZIP = {"Accept-Encoding": "gzip"}


@pytest.fixture(autouse=True)
def _moments(settings: Any) -> Iterator[None]:
    from django.core.cache import caches

    settings.PAGES_KEPT_SECONDS = 3600.0
    caches["pages"].clear()
    yield
    caches["pages"].clear()


def test_a_board_that_was_just_made_costs_one_query(
    client: Client, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    scene.night()
    first = client.get("/")

    with django_assert_num_queries(1):
        again = client.get("/")
    with django_assert_num_queries(1):
        told = Client().get("/", headers={"If-None-Match": first["ETag"]})

    assert again.content == first.content
    assert (told.status_code, told.content) == (304, b"")


def test_whatever_happens_makes_another_page(client: Client) -> None:
    night = scene.night()
    first = client.get("/")
    Entry.objects.filter(pk=night["entry"].pk).update(title="Another name")
    assert client.get("/").content == first.content

    Event.record("site", night["train"], "A checkpoint was kept.")

    changed = client.get("/", headers={"If-None-Match": first["ETag"]})
    assert changed.status_code == 200
    assert b"Another name" in changed.content


def test_who_is_signed_in_has_a_page_of_their_own(client: Client) -> None:
    scene.night()
    client.get("/")
    known = Client()
    known.force_login(User.objects.create_user("mira"))

    page = known.get("/")

    assert b"mira</a>" in page.content
    assert "ETag" not in page
    assert b"Sign in" in client.get("/").content


def test_pages_are_kept_by_their_whole_address(client: Client) -> None:
    scene.night()

    by_flops, by_time = client.get("/"), client.get("/?axis=seconds")

    assert by_flops.content != by_time.content
    assert by_flops["ETag"] != by_time["ETag"]


def test_what_is_not_there_is_not_kept(client: Client) -> None:
    assert client.get("/runs/987654321/").status_code == 404
    assert "ETag" not in client.get("/runs/987654321/")


@pytest.mark.parametrize("path", ["/", "/queue/", "/tracks/three-minutes/live.json"])
def test_text_is_sent_compressed_to_those_who_can_read_it(client: Client, path: str) -> None:
    scene.night()

    plain, small = client.get(path), client.get(path, headers=GZIP)

    assert "Content-Encoding" not in plain
    assert small["Content-Encoding"] == "gzip"
    assert len(small.content) < len(plain.content) / 2
    assert int(small["Content-Length"]) == len(small.content)
    assert gzip.decompress(small.content)
    assert "Accept-Encoding" in small["Vary"]


def test_pictures_are_sent_as_they_are(client: Client) -> None:
    run = Run.objects.get(pk=scene.night()["best"].pk)

    assert "Content-Encoding" not in client.get(f"/runs/{run.pk}/curve.png", headers=GZIP)


def test_of_a_crowd_that_comes_at_once_one_makes_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    @kept.kept
    def slow(request: HttpRequest) -> HttpResponse:
        made.append(request)
        time.sleep(0.05)
        return HttpResponse("The board")

    monkeypatch.setattr(kept, "latest_event", lambda: 1)
    requests = [RequestFactory().get("/", headers=GZIP) for _ in range(8)]
    with ThreadPoolExecutor(8) as crowd:
        answers = list(crowd.map(slow, requests))

    assert len(made) == 1
    assert {gzip.decompress(answer.content) for answer in answers} == {b"The board"}  # type: ignore[attr-defined]
