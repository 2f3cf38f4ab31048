"""What was just answered to everybody is answered again without asking Django."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx
import pytest
from pytest_django import Settings

from leaderboard.models import Entry
from leaderboard.views import shared
from leaderboard.views.shared import SHARED, SharedAnswers
from scheduler.models import Event
from tests.support import scene

Messages = list[Mapping[str, Any]]


class Pages:
    """In Django's place: numbers its answers, and takes its time where it is told to."""

    def __init__(self, *, for_all: bool = True, extra: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        self.for_all, self.extra, self.asked = for_all, extra, 0
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Callable[..., Awaitable[None]]) -> None:
        self.asked += 1
        number = self.asked
        await self.open.wait()
        if self.for_all and SHARED in scope:
            scope[SHARED].append(True)
        headers = [(b"ETag", b'W/"%d"' % number), (b"Vary", b"Cookie"), *self.extra]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"page ", "more_body": True})
        await send({"type": "http.response.body", "body": b"%d" % number})


async def get(site: SharedAnswers, path: str = "/", **headers: str) -> tuple[int, bytes]:
    told: Messages = []

    async def send(message: Mapping[str, Any]) -> None:
        told.append(message)

    async def receive() -> Mapping[str, Any]:
        return {"type": "http.request", "body": b""}

    given = {"accept-encoding": "gzip", "host": "example.org", **headers}
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()]
    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": raw, "scheme": "http"}
    await site(scope, receive, send)
    return told[0]["status"], b"".join(message.get("body", b"") for message in told[1:])


@pytest.fixture(autouse=True)
def _slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "FRESH_SECONDS", 3600.0)
    monkeypatch.setattr(shared, "MOST_SECONDS", 7200.0)


def test_a_page_for_everybody_is_asked_for_once_and_not_sent_twice_to_the_same_browser() -> None:
    async def visits() -> None:
        site = SharedAnswers(pages := Pages())
        assert [await get(site), await get(site)] == [(200, b"page 1")] * 2
        assert await get(site, if_none_match='"0", W/"1"') == (304, b"")
        assert await get(site, if_none_match='"2"') == (200, b"page 1")
        assert await get(site, "/queue/") == (200, b"page 2")
        assert pages.asked == 2

    asyncio.run(visits())


@pytest.mark.parametrize("own", [{"cookie": "a=1"}, {"authorization": "Bearer a"}, {"accept_encoding": "identity"}])
def test_who_brings_something_of_their_own_is_answered_by_django(own: dict[str, str]) -> None:
    async def visits() -> None:
        site = SharedAnswers(Pages())
        await get(site)
        assert await get(site, **own) == (200, b"page 2")
        assert await get(site) == (200, b"page 1")

    asyncio.run(visits())


@pytest.mark.parametrize("pages", [{"for_all": False}, {"extra": ((b"Set-Cookie", b"a=1"),)}])
def test_an_answer_to_one_visitor_is_given_to_no_other(pages: dict[str, Any]) -> None:
    async def visits() -> None:
        site = SharedAnswers(Pages(**pages))
        assert [await get(site), await get(site)] == [(200, b"page 1"), (200, b"page 2")]

    asyncio.run(visits())


def test_while_one_asks_for_the_next_page_the_others_get_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def visits() -> None:
        site = SharedAnswers(pages := Pages())
        await get(site)
        monkeypatch.setattr(shared, "FRESH_SECONDS", 0.0)
        pages.open.clear()
        first = asyncio.create_task(get(site))
        await asyncio.sleep(0)
        assert await get(site) == (200, b"page 1")
        pages.open.set()
        assert await first == (200, b"page 2")

    asyncio.run(visits())


def test_a_page_that_is_too_old_is_waited_for_and_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def visits() -> None:
        site = SharedAnswers(pages := Pages())
        await get(site)
        monkeypatch.setattr(shared, "FRESH_SECONDS", 0.0)
        monkeypatch.setattr(shared, "MOST_SECONDS", 0.0)
        pages.open.clear()
        crowd = [asyncio.create_task(get(site)) for _ in range(5)]
        await asyncio.sleep(0)
        pages.open.set()
        assert await asyncio.gather(*crowd) == [(200, b"page 2")] * 5
        assert pages.asked == 2

    asyncio.run(visits())


def test_a_change_is_on_the_page_a_moment_later(
    site_url: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the real site: the second answer is the first one's, with its headers; the third knows what has happened."""
    settings.PAGES_KEPT_SECONDS = 3600.0
    night = scene.night()
    first = httpx.get(site_url)
    Entry.objects.filter(pk=night["entry"].pk).update(title="Another name")
    Event.record("site", night["train"], "A checkpoint was kept.")
    second = httpx.get(site_url)
    monkeypatch.setattr(shared, "FRESH_SECONDS", 0.0)
    third = httpx.get(site_url, headers={"If-None-Match": first.headers["ETag"]})

    assert "default-src 'none'" in second.headers["Content-Security-Policy"]
    assert second.text == first.text
    assert third.status_code == 200
    assert "Another name" in third.text
