"""A page is made in one thread, from the first middleware to the view, whose connection the next page finds."""

from __future__ import annotations

import threading
from collections.abc import Callable

import httpx
import pytest
from django.http import HttpResponse
from django.middleware.common import CommonMiddleware
from django.test import Client

from dailytrain.compression import Compression

TOO_LARGE = 10**25


def test_middleware_and_view_share_a_thread_which_is_kept(site_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def noted(whole: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        def answer(*given: object) -> HttpResponse:
            seen.append(threading.current_thread().name)
            return whole(*given)

        return answer

    monkeypatch.setattr(Compression, "finished", noted(Compression.finished))
    monkeypatch.setattr(CommonMiddleware, "process_request", noted(CommonMiddleware.process_request))
    assert [httpx.get(f"{site_url}/healthz").status_code for _ in range(3)] == [200] * 3
    assert len(seen) == 6
    assert len(set(seen)) == 1
    assert seen[0] != threading.current_thread().name


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/runs/{}/", "/runs/{}/live.json", "/entries/{}/"])
def test_a_number_that_no_row_can_have_is_no_page(client: Client, path: str) -> None:
    assert client.get(path.format(TOO_LARGE)).status_code == 404
