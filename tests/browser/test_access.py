"""For everybody: without script, by keyboard, on a phone, in the dark, with a screen reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from playwright.sync_api import Page, expect

from tests.support import scene
from tests.support.page_list import addresses

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

AXE = Path(settings.BASE_DIR) / "node_modules" / "axe-core" / "axe.min.js"
PHONE = {"width": 390, "height": 844}


@pytest.mark.parametrize(("scheme", "rules"), [("light", "{}"), ("dark", "{runOnly: ['color-contrast']}")])
def test_axe_finds_nothing_serious(open_page: Callable[..., Page], scheme: str, rules: str) -> None:
    """All rules on light pages. On dark ones only colors differ."""
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


def test_nothing_hangs_over_the_edge_of_a_phone(open_page: Callable[..., Page]) -> None:
    page = open_page("/about/", viewport=PHONE)
    over = {}

    for name, address in addresses(scene.create_night_board()).items():
        page.goto(address)
        over[name] = page.evaluate("document.documentElement.scrollWidth - innerWidth")

    assert {name: pixels for name, pixels in over.items() if pixels > 0} == {}


@pytest.mark.parametrize("name", ["board", "running run"])
def test_the_keyboard_reaches_every_link_and_shows_where_it_is(open_page: Callable[..., Page], name: str) -> None:
    page = open_page(addresses(scene.create_night_board())[name])
    page.wait_for_load_state("networkidle")
    wanted = page.evaluate(
        """() => [...document.querySelectorAll("a[href], summary, [tabindex='0']")]
            .filter((element) => element.checkVisibility()).length  // what a closed <details> holds is out of reach"""
    )
    reached = set()
    for _ in range(3 * wanted):  # fields of forms are on the way, too
        if len(reached) == wanted:
            break
        page.keyboard.press("Tab")
        here = page.evaluate(
            """() => {
                const at = document.activeElement, style = getComputedStyle(at);
                if (at === document.body) return null;
                const all = [...document.querySelectorAll("a[href], summary, [tabindex='0']")];
                return [all.indexOf(at), style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2];
            }"""
        )
        if here and here[0] >= 0:
            assert here[1], f"no focus ring on element {here[0]}"
            reached.add(here[0])

    assert len(reached) == wanted


def test_the_first_key_leads_past_the_masthead(open_page: Callable[..., Page]) -> None:
    scene.create_night_board()
    page = open_page("/")

    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the page")).to_be_in_viewport()
    page.keyboard.press("Enter")

    assert page.evaluate("document.activeElement.id") == "main"


def test_the_board_works_without_script(open_page: Callable[..., Page]) -> None:
    scene.create_night_board()
    page = open_page("/", java_script_enabled=False)

    expect(page.locator("#train path.smooth")).to_be_visible()
    expect(page.locator("table.board tbody tr")).to_have_count(3)
    expect(page.locator(".board time").first).to_be_visible()
    expect(page.locator(".clock")).to_be_hidden()


def test_a_runs_curve_is_drawn_over_time_without_script(open_page: Callable[..., Page]) -> None:
    best = scene.create_night_board()["best"]
    page = open_page(best.get_absolute_url(), java_script_enabled=False)

    page.get_by_role("link", name="time", exact=True).click()

    expect(page.locator("svg.drawing").first).to_contain_text("30 s")
    expect(page.locator(".route time").first).to_contain_text("UTC")
    page.get_by_text("The numbers behind the curve").click()
    expect(page.get_by_role("caption").first).to_be_visible()


def test_nothing_moves_for_those_who_asked_for_rest(open_page: Callable[..., Page]) -> None:
    scene.create_night_board()
    moving = "getComputedStyle(document.querySelector('.pulse')).animationName"

    assert open_page("/", reduced_motion="reduce").evaluate(moving) == "none"
    assert open_page("/", reduced_motion="no-preference").evaluate(moving) == "pulse"


def test_no_page_asks_anybody_else_for_anything(open_page: Callable[..., Page], live_server: Any) -> None:
    night = scene.create_night_board()
    page = open_page("/")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    for path in addresses(night).values():
        page.goto(path)

    assert asked
    assert all(url.startswith((live_server.url, "data:")) for url in asked)
