"""The cache of public pages, their ETags and their compression."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import get_token
from django.test import Client, RequestFactory
from pytest_django import DjangoAssertNumQueries

from leaderboard.models import Run
from scheduler.page_cache import cache_public
from tests.support import scene

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _long_cache_lifetime(settings: Any) -> None:
    settings.PAGE_CACHE_SECONDS = 3600


def test_cached_board_without_cookie_takes_no_query(
    client: Client, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    scene.create_night_board()
    first = client.get("/")

    with django_assert_num_queries(0):
        second = client.get("/")
        conditional = Client().get("/", headers={"If-None-Match": first["ETag"]})

    assert second.content == first.content
    by_time = client.get("/?axis=seconds")
    assert (by_time.content != first.content, by_time["ETag"] != first["ETag"]) == (True, True)
    assert "default-src 'none'" in second["Content-Security-Policy"]
    assert (conditional.status_code, conditional.content) == (304, b"")


def test_page_with_csrf_token_is_not_cached() -> None:
    page = cache_public(lambda request: HttpResponse(get_token(request)))

    def get_page() -> HttpResponse:
        request: HttpRequest = RequestFactory().get("/form/")
        response = page(request)
        assert isinstance(response, HttpResponse)
        return response

    assert get_page().content != get_page().content


def test_live_part_is_rendered_once_for_each_revision(
    client: Client, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    run = scene.create_night_board()["train"]
    address = f"/runs/{run.pk}/live.json"
    first = client.get(address)

    with django_assert_num_queries(2):  # those of the ETag
        second = Client().get(address)
    unchanged = client.get(address, headers={"If-None-Match": first["ETag"]})
    without_etag = client.get(address)
    Run.objects.filter(pk=run.pk).update(revision=run.revision + 1, tokens=run.tokens + 10**9)
    changed = client.get(address, headers={"If-None-Match": first["ETag"]})

    assert (second.content, second["ETag"], second["Cache-Control"]) == (first.content, first["ETag"], "no-cache")
    assert "Expires" not in second
    assert list(second.headers).index("X-Accel-Expires") < list(second.headers).index("Cache-Control")
    assert (unchanged.status_code, without_etag.status_code) == (304, 200)
    assert changed.status_code == 200
    assert changed.content != first.content
