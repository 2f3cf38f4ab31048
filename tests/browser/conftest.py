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
            chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        except Error as error:
            pytest.skip(f"Chromium is not installed (apt install chromium): {str(error).splitlines()[0]}")
        expect.set_options(timeout=1000 * WAIT_SECONDS)
        yield chromium
        chromium.close()
    del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@pytest.fixture
def open_page(browser: Browser, live_server: Any) -> Iterator[Callable[..., Page]]:
    """Return a function that opens a path of the site. Console messages and errors of a page fail the test."""
    contexts, problems = [], []

    def add_problem(text: str) -> None:
        problems.append(text)

    def open_path(path: str, **options: Any) -> Page:
        context = browser.new_context(
            **{"locale": "en-GB", "timezone_id": "Europe/Berlin", "base_url": live_server.url, **options}
        )
        context.set_default_timeout(1000 * WAIT_SECONDS)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: add_problem(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: add_problem(str(error)))
        page.on(
            "requestfailed", lambda request: None if request.failure == "net::ERR_ABORTED" else add_problem(request.url)
        )
        page.goto(path)
        return page

    yield open_path
    for context in contexts:
        context.close()
    assert problems == []
