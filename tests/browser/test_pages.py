"""All pages: without scripts, by keyboard and touch, on a phone, in dark colors, with a screen reader; their weight."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from a2wsgi import WSGIMiddleware
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.wsgi import get_wsgi_application
from playwright.sync_api import Browser, Page, expect

from benchmarks.site.browser import measure_first_view
from leaderboard.models import Track
from scheduler.models import Lease, Node, Sponsor
from tests.browser.conftest import PHONE, count_pixels_beside, list_serious_violations
from tests.support import scene
from tests.support.http_server import serve_in_thread
from tests.support.page_list import addresses
from tests.support.waits import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.browser, pytest.mark.django_db(transaction=True)]

MAX_BYTES = 150_000
MOST_SHIFT = 0.05
"""Cumulative layout shift: half of what counts as good (web.dev/articles/cls)."""


def create_garage() -> tuple[User, list[str]]:
    """Make the volunteer of the campaign a sponsor with a working and a draining node; return it and its pages."""
    ada = User.objects.get(username="ada")  # of the campaign
    sponsor = Sponsor.objects.create(user=ada, name="Ada’s garage", link="https://example.org/ada")
    values = {"owner": ada, "trusted": False}
    gpu = {"gpus": ["NVIDIA GeForce RTX 3090"], "cpus": 16, "memory_bytes": 64 * 2**30, "sandboxes": ["bubblewrap"]}
    labels = {"labels": ["1x24gb", "1x3090"]}
    loco = scene.create_node("loco", **{**values, **labels, "token_hash": "1" * 64, "hardware": gpu})
    rest = {"state": Node.State.DRAINING, "reason": "It rests."}
    scene.create_node("steam", **{**values, **rest, "token_hash": "2" * 64})
    entry = scene.create_entry(Track.objects.get(), "A gate", sha="f" * 40)
    train = scene.create_training_run(entry, 40)
    held = scene.create_lease(train, loco)
    Lease.objects.filter(pk=held.pk).update(gpus=1, accelerator=gpu["gpus"][0], seconds=9000)
    pages = ["", "lend/", "mine/", f"{sponsor.pk}/certificate/", f"nodes/{loco.pk}/", f"nodes/{loco.pk}/settings/"]
    return ada, [f"/sponsors/{path}" for path in pages]


def find_faults(page: Page, address: str) -> Iterator[str]:
    """Yield what is wrong with a page: for screen readers, in dark colors, on a phone."""
    page.set_viewport_size({"width": 1280, "height": 800})
    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    page.goto(address)
    page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true; })")
    yield from list_serious_violations(page)
    page.emulate_media(color_scheme="dark")  # only colors differ
    yield from (f"dark: {found}" for found in list_serious_violations(page, "{runOnly: ['color-contrast']}"))
    page.set_viewport_size(PHONE)
    page.goto(address)
    yield from (f"{pixels} pixels too wide" for pixels in [count_pixels_beside(page)] if pixels > 0)
    for choice in page.locator('[name="available"]').all():  # each shows other fields
        choice.check()
        yield from (f"{pixels} pixels too wide" for pixels in [count_pixels_beside(page)] if pixels > 0)


def test_pages_are_accessible_fit_a_phone_and_request_no_other_host(
    open_page: Callable[..., Page], open_as: Callable[..., Page], live_server: Any
) -> None:
    public = [*addresses(scene.create_night_board()).values(), "/accounts/signup/"]
    ada, own = create_garage()
    faults, urls = {}, []
    for page, pages in ((open_page("/about/"), public), (open_as(ada, "/about/"), own)):
        page.on("request", lambda request: urls.append(request.url))
        for address in pages:
            faults[address] = list(find_faults(page, address))

    assert {address: found for address, found in faults.items() if found} == {}
    assert len(urls) > len(faults)
    assert all(url.startswith((live_server.url, "data:")) for url in urls)


def test_tab_key_reaches_every_link_with_a_focus_ring(open_page: Callable[..., Page]) -> None:
    pages = addresses(scene.create_night_board())
    page = open_page(pages["board"])
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the page")).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    for name in ("board", "running run"):
        page.goto(pages[name])
        page.wait_for_load_state("networkidle")
        wanted = page.evaluate(
            """() => [...document.querySelectorAll("a[href], summary, [tabindex='0']")]
                .filter((element) => element.checkVisibility()).length  // content of a closed <details> has no focus"""
        )
        reached = set()
        for _ in range(3 * wanted):  # form fields are focused, too
            if len(reached) == wanted:
                break
            page.keyboard.press("Tab")
            focused = page.evaluate(
                """() => {
                    const at = document.activeElement, style = getComputedStyle(at);
                    if (at === document.body) return null;
                    const all = [...document.querySelectorAll("a[href], summary, [tabindex='0']")];
                    return [all.indexOf(at), style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2];
                }"""
            )
            if focused and focused[0] >= 0:
                assert focused[1], f"no focus ring on element {focused[0]}"
                reached.add(focused[0])
        assert len(reached) == wanted, name


def test_board_and_run_without_script_draw_curves(open_page: Callable[..., Page]) -> None:
    night = scene.create_night_board()
    page = open_page("/", java_script_enabled=False)
    expect(page.locator("#train path.smooth")).to_be_visible()
    expect(page.locator("table.board tbody tr")).to_have_count(3)
    expect(page.locator(".board time").first).to_be_visible()
    expect(page.locator(".clock")).to_be_hidden()

    page.goto(night["best"].get_absolute_url())
    page.get_by_role("link", name="time", exact=True).click()
    expect(page.locator("svg.drawing").first).to_contain_text("30 s")
    expect(page.locator(".route time").first).to_contain_text("UTC")
    page.get_by_text("The numbers behind the curve").click()
    expect(page.get_by_role("caption").first).to_be_visible()


def test_page_with_reduced_motion_has_no_animation(open_page: Callable[..., Page]) -> None:
    scene.create_night_board()
    animation = "getComputedStyle(document.querySelector('.pulse')).animationName"

    assert open_page("/", reduced_motion="reduce").evaluate(animation) == "none"
    assert open_page("/", reduced_motion="no-preference").evaluate(animation) == "pulse"


def measure_help(page: Page) -> tuple[float, float]:
    """Return the right end and the height of the page's first explanation."""
    box = page.locator(".help-text").first.bounding_box()
    assert box is not None
    return box["x"] + box["width"], box["height"]


def test_help_term_opens_by_touch_and_by_keyboard(open_page: Callable[..., Page]) -> None:
    scene.create_night_board()
    phone, desktop = open_page("/nodes/", viewport=PHONE, has_touch=True), open_page("/nodes/")
    assert measure_help(phone)[1] <= 1
    phone.locator(".help").first.tap()
    desktop.locator(".help").first.focus()
    for page, width in ((phone, 390), (desktop, 1280)):
        wait_until(lambda page=page: measure_help(page)[1] > 20)  # type: ignore[misc]
        assert measure_help(page)[0] <= width
        page.get_by_role("button", name="trusted The maintainers trust it").wait_for()


def test_api_docs_page_shows_response_and_requests_no_other_host(
    open_page: Callable[..., Page], live_server: Any
) -> None:
    page = open_page("/api/v1/docs")
    page.locator("[data-path='/api/v1/runs/{run_id}/curve']").click()
    page.get_by_text("gradient_norm").first.wait_for()
    urls = page.evaluate("performance.getEntriesByType('resource').map(entry => entry.name)")
    assert urls
    assert all(url.startswith((live_server.url, "data:")) for url in urls)


def test_first_view_transfers_few_bytes_without_layout_shift(
    browser: Browser, transactional_db: None, settings: Any, tmp_path: Path
) -> None:
    # Compressed static files, as in the container.
    settings.STATIC_ROOT, settings.WHITENOISE_USE_FINDERS = str(tmp_path / "static"), False
    settings.WHITENOISE_AUTOREFRESH = False
    call_command("collectstatic", interactive=False, verbosity=0)
    pages = addresses(scene.create_night_board())
    with serve_in_thread(WSGIMiddleware(get_wsgi_application())) as url:
        for name in ("board", "finished run", "running run", "compare", "entry"):
            figures: dict[str, Any] = measure_first_view(browser, url + pages[name])
            assert 0 < figures["bytes"] < MAX_BYTES, (name, figures)
            assert figures["shift"] < MOST_SHIFT, (name, figures)
            assert figures["first"] > 0, name
