"""A crawler that follows links from the first page, as a visitor, a sponsor and a maintainer, in three widths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.contrib.auth.models import User
from django.urls import resolve
from playwright.sync_api import Page

from leaderboard.models import Track
from scheduler.models import Event
from tests.browser.test_pages import create_garage
from tests.support import scene
from tests.support.page_list import addresses

pytestmark = [
    pytest.mark.processes,
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.django_db(transaction=True),
]

FIND_FAULTS = Path(__file__).with_name("find_layout_faults.js").read_text()
WIDTHS = {390: "dark", 768: "light", 1280: "light"}
HREFS = "[...document.querySelectorAll('a[href]')].map((link) => link.href)"


def crawl(page: Page, start: list[str], site: str) -> Iterator[tuple[str, list[str]]]:
    """Yield addresses of the site with the faults of their pages: one address for each route that links lead to."""
    queue, seen = list(start), set()
    while queue:
        address = queue.pop(0)
        try:
            route = resolve(urlsplit(address).path).route
        except LookupError:
            route = address
        query = urlsplit(address).query if address in start else ""
        if (route, query) in seen or "logout" in route or "/periodictask/" in route:  # its form has an inline script
            continue
        seen.add((route, query))
        reply = page.request.get(address)
        if not reply.ok:
            yield address, [f"status {reply.status}"]
        if not reply.ok or not reply.headers["content-type"].startswith("text/html") or "api/" in route:
            continue
        faults = []
        for width, scheme in WIDTHS.items():
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
            page.goto(address)
            faults += [f"{width}: {fault}" for fault in page.evaluate(FIND_FAULTS)]
        yield address, faults
        found = (urlsplit(link) for link in page.evaluate(HREFS) if link.startswith(site))
        queue += [link.path for link in found]


@pytest.mark.parametrize("role", ["visitor", "sponsor", "maintainer"])
def test_pages_that_links_lead_to_have_no_layout_faults(
    open_page: Callable[..., Page], open_as: Callable[..., Page], live_server: object, role: str
) -> None:
    site = str(live_server)
    public = list(addresses(scene.create_night_board()).values())
    ada, own = create_garage()
    if role == "visitor":
        pages = crawl(open_page("/about/"), public, site)
    elif role == "sponsor":
        pages = crawl(open_as(ada, "/about/"), own, site)
    else:
        entry = scene.create_entry(Track.objects.get(), "Wider keys", "wide", state="proposed", repository="/nowhere")
        Event.record("mara", entry, "A sentence without_any_place_to_break_it_" + "x" * 80)
        pages = crawl(open_as(User.objects.create_superuser("mara"), "/about/"), ["/admin/"], site)
    faults = dict(pages)

    assert len(faults) > len(public)
    assert {address: found for address, found in faults.items() if found} == {}
