"""Transferred bytes and layout shift of a first page view, as the browser measures them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from a2wsgi import WSGIMiddleware
from django.core.management import call_command
from django.core.wsgi import get_wsgi_application
from playwright.sync_api import Browser

from benchmarks.site.browser import measure_first_view
from tests.support import scene
from tests.support.http_server import serve_in_thread
from tests.support.page_list import addresses

pytestmark = [pytest.mark.processes, pytest.mark.browser, pytest.mark.django_db(transaction=True)]

MAX_BYTES = 150_000
MOST_SHIFT = 0.05
"""Cumulative layout shift: half of what counts as good (web.dev/articles/cls)."""


@pytest.fixture
def production_url(transactional_db: None, settings: Any, tmp_path: Path) -> Iterator[str]:
    """URL of a site with the compressed static files of `collectstatic`, as in the container."""
    settings.STATIC_ROOT = str(tmp_path / "static")
    settings.WHITENOISE_USE_FINDERS = False
    call_command("collectstatic", interactive=False, verbosity=0)
    with serve_in_thread(WSGIMiddleware(get_wsgi_application())) as url:
        yield url


@pytest.mark.parametrize("name", ["board", "finished run", "running run", "compare", "entry"])
def test_first_view_transfers_few_bytes_without_layout_shift(browser: Browser, production_url: str, name: str) -> None:
    path = addresses(scene.create_night_board())[name]

    figures: dict[str, Any] = measure_first_view(browser, production_url + path)

    assert 0 < figures["bytes"] < MAX_BYTES, figures
    assert figures["shift"] < MOST_SHIFT, figures
    assert figures["first"] > 0
