"""Every public page as a picture, compared with the stored one in `tests/browser/pictures`.

Pages are drawn with a fixed clock and fixed fonts, in light and dark colors, on a desktop and on a phone. After an
intended change `make pictures` renews the stored pictures: look at them before you commit them.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import time_machine
from PIL import Image, ImageChops
from playwright.sync_api import Browser, Page
from pytest_django import Settings

from tests.support import scene, swarm_scene
from tests.support.page_list import addresses

OpenFixedPage = Callable[[str, tuple[int, int]], Page]
PICTURES = Path(__file__).parent / "pictures"
NOW = datetime(2026, 3, 4, 15, 30, tzinfo=UTC)
FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
DESKTOP, PHONE = (1280, 800), (390, 844)
CHANGED_LEVELS = 64  # of 255: a pixel that differs by more has changed
MAX_CHANGED_SHARE = 0.003  # of a picture's pixels: versions of Chromium smooth letters differently
USE_FIXED_FONTS = """
addEventListener("DOMContentLoaded", () => {
    const style = document.createElement("style");
    style.textContent = `
        @font-face { font-family: "Fixed sans"; src: url(/fixed-fonts/DejaVuSans.ttf); }
        @font-face { font-family: "Fixed mono"; src: url(/fixed-fonts/DejaVuSansMono.ttf); }
        * { font-family: "Fixed sans" !important; }
        code, code *, pre, pre *, kbd, .sha, textarea { font-family: "Fixed mono" !important; }`;
    document.head.append(style);
});
"""

pytestmark = [
    pytest.mark.processes,
    pytest.mark.browser,
    pytest.mark.check,
    pytest.mark.django_db(transaction=True, reset_sequences=True),
]


@pytest.fixture
def fixed_clock() -> Iterator[None]:
    with time_machine.travel(NOW, tick=False):
        yield


@pytest.fixture
def open_fixed_page(browser: Browser, live_server: Any) -> Iterator[OpenFixedPage]:
    """Return a function that opens a page with a fixed clock, fixed fonts and no animations."""
    contexts = []

    def open_fixed_page(scheme: str, size: tuple[int, int]) -> Page:
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            device_scale_factor=0.5,  # half the size still shows what moved
            color_scheme=scheme,  # type: ignore[arg-type]
            reduced_motion="reduce",
            locale="en-GB",
            timezone_id="UTC",
            base_url=live_server.url,
            bypass_csp=True,  # for the fonts
        )
        contexts.append(context)
        context.clock.set_fixed_time(NOW)
        context.add_init_script(USE_FIXED_FONTS)
        context.route("**/fixed-fonts/*", lambda route: route.fulfill(path=FONTS / Path(route.request.url).name))
        return context.new_page()

    yield open_fixed_page
    for context in contexts:
        context.close()


def test_pages_look_like_their_stored_pictures(
    fixed_clock: None, open_fixed_page: OpenFixedPage, settings: Settings, tmp_path: Path
) -> None:
    settings.PACKAGE_NAME = "dailytrain"
    compare_with_pictures(open_fixed_page, addresses(scene.create_night_board()), tmp_path)


def test_swarm_page_looks_like_its_stored_picture(
    fixed_clock: None, open_fixed_page: OpenFixedPage, tmp_path: Path
) -> None:
    swarm = swarm_scene.create_swarm(began=NOW - timedelta(minutes=20))
    compare_with_pictures(open_fixed_page, {"swarm": f"/runs/{swarm.run_id}/swarm/"}, tmp_path)


def compare_with_pictures(open_fixed_page: OpenFixedPage, pages: dict[str, str], folder: Path) -> None:
    """Compare pages, addresses by name, with their stored pictures. Pictures that differ are saved in `folder`."""
    changed = []
    for scheme, size in product(("light", "dark"), (DESKTOP, PHONE)):
        page = open_fixed_page(scheme, size)
        for name, address in pages.items():
            path = PICTURES / f"{name.replace(', ', '-').replace(' ', '-').lower()}-{size[0]}-{scheme}.png"
            picture = take_picture(page, address)
            if os.environ.get("RENEW_PICTURES"):
                picture.quantize(128).save(path, optimize=True)
            elif difference := describe_difference(picture, path):
                picture.save(folder / path.name)
                changed.append(f"{name}: {difference}, see {folder / path.name}")
    assert not changed, "\n".join([*changed, "If the changes are intended: make pictures, and look at them."])


def take_picture(page: Page, address: str) -> Image.Image:
    page.goto(address)
    page.wait_for_load_state("networkidle")
    page.evaluate("document.fonts.ready")
    content = page.screenshot(full_page=True, animations="disabled", caret="hide")
    return Image.open(io.BytesIO(content)).convert("RGB")


def describe_difference(picture: Image.Image, path: Path) -> str:
    """Return what differs from the stored picture; empty if they look the same."""
    if not path.exists():
        return f"{path.name} is missing"
    stored = Image.open(path).convert("RGB")
    if abs(stored.height - picture.height) > 2 or stored.width != picture.width:
        return f"{picture.size} instead of {stored.size} pixels"
    size = (picture.width, min(picture.height, stored.height))
    difference = ImageChops.difference(picture.crop((0, 0, *size)), stored.crop((0, 0, *size))).convert("L")
    share = sum(difference.histogram()[CHANGED_LEVELS:]) / (size[0] * size[1])
    return f"{share:.1%} of its pixels differ" if share > MAX_CHANGED_SHARE else ""
