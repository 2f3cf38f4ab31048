"""Terms with an explanation (`templates/parts/help.html`) open by touch and by keyboard."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from tests.support import scene
from tests.support.waits import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.browser, pytest.mark.django_db(transaction=True)]
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True}


def measure_help(page: Page) -> tuple[float, float]:
    """Return the right end and the height of the page's first explanation."""
    box = page.locator(".help-text").first.bounding_box()
    assert box is not None
    return box["x"] + box["width"], box["height"]


def test_help_term_opens_by_touch_and_by_keyboard(open_page: Callable[..., Page]) -> None:
    scene.create_night_board()
    phone, desktop = open_page("/nodes/", **PHONE), open_page("/nodes/")
    assert measure_help(phone)[1] <= 1
    phone.locator(".help").first.tap()
    desktop.locator(".help").first.focus()
    for page, width in ((phone, 390), (desktop, 1280)):
        wait_until(lambda page=page: measure_help(page)[1] > 20)  # type: ignore[misc]
        assert measure_help(page)[0] <= width
        page.get_by_role("button", name="trusted The maintainers trust it").wait_for()
