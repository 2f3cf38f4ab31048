"""What a first view costs a visitor: bytes through the wire, and when there is something to read.

The browser's own figures, through the protocol that its developer tools speak.
"""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.browser import scene
from tests.browser.pages import addresses

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

MAX_BYTES = 150_000
MOST_SHIFT = 0.05
"""Cumulative layout shift; up to 0.1 counts as good (web.dev/articles/cls)."""

WATCH = """
window.figures = { shift: 0, longest: 0, blocked: 0 };
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) figures.shift += entry.value;
}).observe({ type: "layout-shift", buffered: true });
new PerformanceObserver((list) => {
  figures.longest = list.getEntries().at(-1).startTime;
}).observe({ type: "largest-contentful-paint", buffered: true });
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) figures.blocked += entry.duration - 50;
}).observe({ type: "longtask", buffered: true });
"""


def first_view(browser: Browser, address: str) -> dict[str, float]:
    """Open a page with nothing in the cache. Return bytes as transferred, layout shift, and milliseconds."""
    context = browser.new_context()
    page: Page = context.new_page()
    page.add_init_script(WATCH)
    wire = context.new_cdp_session(page)
    wire.send("Network.enable")
    sizes: list[float] = []
    wire.on("Network.loadingFinished", lambda said: sizes.append(said["encodedDataLength"]))
    page.goto(address, wait_until="networkidle")
    page.wait_for_timeout(300)
    figures = page.evaluate(
        "({...figures, painted: performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0})"
    )
    context.close()
    return {**figures, "bytes": sum(sizes), "requests": len(sizes)}


@pytest.mark.parametrize("name", ["board", "finished run", "running run", "compare", "entry"])
def test_a_first_view_is_light_and_stands_still(browser: Browser, site_url: str, name: str) -> None:
    path = addresses(scene.night())[name]

    figures: dict[str, Any] = first_view(browser, site_url + path)

    assert 0 < figures["bytes"] < MAX_BYTES, figures
    assert figures["shift"] < MOST_SHIFT, figures
    assert figures["painted"] > 0
