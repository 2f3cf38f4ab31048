"""What a first view costs a visitor, in the browser's own figures."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser

from benchmarks.site.browser import measure_first_view
from tests.support import scene
from tests.support.page_list import addresses

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

MAX_BYTES = 150_000
MOST_SHIFT = 0.05
"""Cumulative layout shift: half of what counts as good (web.dev/articles/cls)."""


@pytest.mark.parametrize("name", ["board", "finished run", "running run", "compare", "entry"])
def test_a_first_view_is_light_and_stands_still(browser: Browser, site_url: str, name: str) -> None:
    path = addresses(scene.night())[name]

    figures: dict[str, Any] = measure_first_view(browser, site_url + path)

    assert 0 < figures["bytes"] < MAX_BYTES, figures
    assert figures["shift"] < MOST_SHIFT, figures
    assert figures["first"] > 0
