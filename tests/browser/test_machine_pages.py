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
    page.locator("[data-path='/api/v1/runs/{run_id}/curve']").click()
    page.get_by_text("gradient_norm").first.wait_for()
    urls = page.evaluate("performance.getEntriesByType('resource').map(entry => entry.name)")
    assert urls
    assert all(url.startswith((live_server.url, "data:")) for url in urls)
