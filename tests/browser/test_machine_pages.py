"""The documentation page of the API in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page

pytestmark = [pytest.mark.processes, pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def test_api_docs_page_requests_no_other_host_and_shows_response(
    open_page: Callable[..., Page], live_server: Any
) -> None:
    page = open_page("/api/v1/docs")
    urls = page.evaluate("performance.getEntriesByType('resource').map(entry => entry.name)")
    assert all(url.startswith(live_server.url) for url in urls)
    page.get_by_role("link", name="GET /api/v1/runs/{run_id}/curve").click()
    page.locator("#get-api-v1-runs-run-id-curve").get_by_text("Response", exact=True).click()
    assert page.get_by_text('"gradient_norm": "number or null"').first.is_visible()
