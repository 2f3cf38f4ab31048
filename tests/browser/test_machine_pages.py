"""What is for machines, in a real browser: the API's page, and a chart in somebody else's page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def test_the_apis_page_asks_nobody_else_and_shows_what_comes_back(
    open_page: Callable[..., Page], live_server: Any
) -> None:
    page = open_page("/api/v1/docs")
    asked = page.evaluate("performance.getEntriesByType('resource').map(entry => entry.name)")
    assert all(address.startswith(live_server.url) for address in asked)
    page.get_by_role("link", name="GET /api/v1/runs/{run_id}/curve").click()
    page.locator("#get-api-v1-runs-run-id-curve").get_by_text("Response", exact=True).click()
    assert page.get_by_text('"gradient_norm": "number or null"').first.is_visible()
