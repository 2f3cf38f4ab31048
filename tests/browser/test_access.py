"""Accessibility of pages: without scripts, by keyboard, on a phone, in dark colors, with a screen reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from playwright.sync_api import Page, expect

from tests.support import scene
from tests.support.page_list import addresses

pytestmark = [pytest.mark.processes, pytest.mark.browser, pytest.mark.django_db(transaction=True)]

AXE = Path(settings.BASE_DIR) / "node_modules" / "axe-core" / "axe.min.js"
PHONE = {"width": 390, "height": 844}


@pytest.mark.parametrize(("scheme", "rules"), [("light", "{}"), ("dark", "{runOnly: ['color-contrast']}")])
def test_pages_in_each_color_scheme_have_no_serious_axe_violation(
    open_page: Callable[..., Page], scheme: str, rules: str
) -> None:
    """Light pages are checked by all rules, dark ones by that of contrast only, since only colors differ."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed: npm ci")
    page = open_page("/about/", color_scheme=scheme)
    serious = []

    for name, address in addresses(scene.create_night_board()).items():
        page.goto(address)
        page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true; })")
        page.evaluate(AXE.read_text())
        result = page.evaluate(f"axe.run({rules})")
        serious += [
            f"{name}: {found['id']}: {found['help']} {[node['html'][:120] for node in found['nodes']]}"
            for found in result["violations"]
            if found["impact"] in ("serious", "critical")
        ]

    assert serious == []


def test_pages_on_a_phone_do_not_scroll_sideways(open_page: Callable[..., Page]) -> None:
    page = open_page("/about/", viewport=PHONE)
    over = {}

    for name, address in addresses(scene.create_night_board()).items():
        page.goto(address)
        over[name] = page.evaluate("document.documentElement.scrollWidth - innerWidth")

    assert {name: pixels for name, pixels in over.items() if pixels > 0} == {}


@pytest.mark.parametrize("name", ["board", "running run"])
def test_tab_key_reaches_every_link_with_a_focus_ring(open_page: Callable[..., Page], name: str) -> None:
    page = open_page(addresses(scene.create_night_board())[name])
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

    assert len(reached) == wanted


def test_first_tab_focuses_the_skip_link(open_page: Callable[..., Page]) -> None:
    scene.create_night_board()
    page = open_page("/")

    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the page")).to_be_in_viewport()
    page.keyboard.press("Enter")

    expect(page.locator("#main")).to_be_focused()


def test_board_without_script_shows_curve_and_rows(open_page: Callable[..., Page]) -> None:
    scene.create_night_board()
    page = open_page("/", java_script_enabled=False)

    expect(page.locator("#train path.smooth")).to_be_visible()
    expect(page.locator("table.board tbody tr")).to_have_count(3)
    expect(page.locator(".board time").first).to_be_visible()
    expect(page.locator(".clock")).to_be_hidden()


def test_run_page_without_script_draws_curve_over_time(open_page: Callable[..., Page]) -> None:
    best = scene.create_night_board()["best"]
    page = open_page(best.get_absolute_url(), java_script_enabled=False)

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


def test_pages_request_no_other_host(open_page: Callable[..., Page], live_server: Any) -> None:
    night = scene.create_night_board()
    page = open_page("/")
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))

    for path in addresses(night).values():
        page.goto(path)

    assert urls
    assert all(url.startswith((live_server.url, "data:")) for url in urls)
