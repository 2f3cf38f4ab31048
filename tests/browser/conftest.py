"""A real Chromium (Debian's or Playwright's own) in front of the live site."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Error, Page, expect, sync_playwright

from tests.support.waits import WAIT_SECONDS

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # Playwright's loop runs in this thread, so Django thinks the tests are asynchronous. They are not. It ends with the
    # module: tests of other folders call asynchronous views, which a running loop would forbid.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        try:
            started = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        except Error as error:
            pytest.skip(f"no Chromium to look with (apt install chromium): {str(error).splitlines()[0]}")
        expect.set_options(timeout=1000 * WAIT_SECONDS)
        yield started
        started.close()
    del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@pytest.fixture
def open_page(browser: Browser, live_server: Any) -> Iterator[Callable[..., Page]]:
    """Open an address of the site. Whatever a page says on its console, or breaks, fails the test."""
    contexts, complaints = [], []

    def complain(text: str) -> None:
        complaints.append(text)

    def opened(path: str, **options: Any) -> Page:
        context = browser.new_context(
            **{"locale": "en-GB", "timezone_id": "Europe/Berlin", "base_url": live_server.url, **options}
        )
        context.set_default_timeout(1000 * WAIT_SECONDS)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: complain(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complain(str(error)))
        page.on(
            "requestfailed", lambda request: None if request.failure == "net::ERR_ABORTED" else complain(request.url)
        )
        page.goto(path)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []
