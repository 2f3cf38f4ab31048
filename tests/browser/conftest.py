"""A real Chromium (Debian's or Playwright's own) in front of the live site."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Browser, Error, Page, expect, sync_playwright

from tests.support.waits import WAIT_SECONDS

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
AXE = Path(settings.BASE_DIR) / "node_modules" / "axe-core" / "axe.min.js"
PHONE = {"width": 390, "height": 844}


def list_serious_violations(page: Page, rules: str = "{}") -> list[str]:
    """Return what axe finds on a page by all rules or by these."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed: npm ci")
    page.evaluate(AXE.read_text())
    return [
        f"{found['id']}: {found['help']} {[node['html'][:120] for node in found['nodes']]}"
        for found in page.evaluate(f"axe.run({rules})")["violations"]
        if found["impact"] in ("serious", "critical")
    ]


def count_pixels_beside(page: Page) -> int:
    """Return by how much a page is wider than its window."""
    pixels: int = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    return pixels


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


@pytest.fixture
def open_as(open_page: Callable[..., Page], live_server: Any) -> Callable[..., Page]:
    """Return a function that opens a page as a given user."""

    def open_signed_in(user: User, path: str, **options: Any) -> Page:
        client = Client()
        client.force_login(user)
        page = open_page("/about/", **options)
        cookie = {"name": "sessionid", "value": client.cookies["sessionid"].value, "url": live_server.url}
        page.context.add_cookies([cookie])  # type: ignore[list-item]
        page.goto(path)
        return page

    return open_signed_in
