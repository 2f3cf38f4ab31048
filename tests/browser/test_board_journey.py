"""Search, sorting, columns and keys of the board, with and without scripts."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import PHONE, count_pixels_beside
from tests.support import boards, scene

pytestmark = [pytest.mark.processes, pytest.mark.browser, pytest.mark.django_db(transaction=True)]

ROWS = "table.board tbody tr"


def test_board_is_searched_and_sorted_in_place(open_page: Callable[..., Page]) -> None:
    boards.create_board()
    page = open_page("/")
    page.evaluate("window.sameDocument = true")
    expect(page.locator(".board-form > button")).to_be_hidden()

    page.keyboard.press("/")
    page.keyboard.type("worse")
    expect(page.locator(ROWS)).to_have_count(2)  # with the baseline
    expect(page.locator(".found")).to_contain_text("1 of 4")
    expect(page).to_have_url(re.compile(r"/\?q=worse$"))
    assert page.evaluate("document.activeElement.name") == "q"
    page.get_by_role("link", name="Show all", exact=True).click()
    expect(page.locator(ROWS)).to_have_count(4)
    expect(page.get_by_role("searchbox")).to_have_value("")
    assert page.evaluate("window.sameDocument")

    page.get_by_role("link", name="Bits per byte").press("Enter")  # a click could miss it while the page is redrawn
    expect(page).to_have_url(re.compile(r"\?sort=bits$"))
    expect(page.get_by_role("link", name="Bits per byte")).to_have_attribute("href", re.compile("sort=-bits"))
    page.get_by_role("link", name="Bits per byte").press("Enter")  # a click could miss it while the page is redrawn
    expect(page).to_have_url(re.compile(r"\?sort=-bits$"))
    expect(page.locator(ROWS).first).to_contain_text("Worse")
    page.go_back()
    expect(page.locator(ROWS).first).to_contain_text("Better")


def test_board_columns_are_those_ticked_and_are_remembered(open_page: Callable[..., Page]) -> None:
    boards.create_board()
    page = open_page("/")
    for width in (1280, 900):
        page.set_viewport_size({"width": width, "height": 800})
        page.goto("/")
        page.get_by_text("Columns", exact=True).first.click()
        for box in page.locator(".menu input").all():
            cells = page.locator(f".board tbody .col-{box.get_attribute('value')}")
            is_shown = cells.count() > 0 and cells.first.is_visible()
            assert box.is_checked() == is_shown, (width, box.get_attribute("value"))
    page.get_by_role("checkbox", name="Author").check()
    expect(page.locator("thead .col-author")).to_be_visible()
    expect(page).to_have_url(re.compile("columns=author,"))
    page.goto("/")
    expect(page.locator("thead .col-author")).to_be_visible()


def test_board_record_is_in_the_first_viewport_and_keys_open_a_row(open_page: Callable[..., Page]) -> None:
    _, entries = boards.create_board()
    scene.create_node()
    page = open_page("/", viewport={"width": 1440, "height": 900})
    for place in (page.locator(".record-number"), page.locator("svg .others"), page.locator(ROWS).first):
        expect(place).to_be_in_viewport()

    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("next entry")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    for key in "jjk":
        page.keyboard.press(key)
    page.keyboard.press("Enter")

    expect(page).to_have_url(re.compile(f"/entries/{entries['Better'].pk}/$"))


def test_board_without_script_and_on_a_phone_is_searched_and_sorted(open_page: Callable[..., Page]) -> None:
    boards.create_board()
    page = open_page("/", java_script_enabled=False)
    page.get_by_role("searchbox").fill("worse")
    page.locator(".menu summary").click()
    page.get_by_role("checkbox", name="Author").check()
    page.get_by_role("button", name="Show").click()
    expect(page.locator(ROWS)).to_have_count(2)
    expect(page.locator("thead .col-author")).to_be_visible()
    page.get_by_role("link", name="Author").click()
    expect(page).to_have_url(re.compile("q=worse&sort=author&columns=author,"))

    page = open_page("/", viewport=PHONE)
    card = page.locator(ROWS).first
    expect(card.locator(".cm strong")).to_be_visible()
    bits = card.locator(".col-bits")
    assert bits.evaluate("cell => getComputedStyle(cell, '::before').content") == '"Bits per byte"'
    assert count_pixels_beside(page) <= 0
    page.get_by_label("Order").select_option(label="by entry")
    expect(page).to_have_url(re.compile(r"\?sort=entry"))
