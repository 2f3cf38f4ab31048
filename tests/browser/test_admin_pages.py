"""Our admin pages in a real browser: the content security policy blocks nothing, and they fit a phone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from playwright.sync_api import Page, expect

from leaderboard.models import Entry, OutboxMessage, Season
from tests.browser.conftest import PHONE, count_pixels_beside
from tests.support import scene

pytestmark = [pytest.mark.processes, pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def open_as_maintainer(open_as: Callable[..., Page]) -> Callable[..., Page]:
    """Return a function that opens a page on a phone."""
    return functools.partial(open_as, User.objects.create_superuser("mara"), viewport=PHONE)


def test_season_preparation_shows_progress_and_can_be_cancelled(open_as_maintainer: Callable[..., Page]) -> None:
    season = Season.objects.create(name="Next", active=False, corpus="fineweb-edu", tokenizer="bpe:32768")
    page = open_as_maintainer(f"/admin/leaderboard/season/{season.pk}/change/")
    page.get_by_role("button", name="Prepare and begin").click()
    expect(page.get_by_text("for a worker")).to_be_visible()
    progress = {"stage": "Tokenizing", "done": 2 << 30, "total": 4 << 30}
    row = OutboxMessage.objects.filter(kind="season.prepare", state="pending")
    row.update(state="claimed", result=progress, claimed_until=timezone.now() + timedelta(hours=1))
    expect(page.get_by_text("2 GiB of 4 GiB")).to_be_visible()
    OutboxMessage.objects.update(result=progress | {"done": 3 << 30})
    expect(page.get_by_text("3 GiB of 4 GiB")).to_be_visible()
    assert count_pixels_beside(page) <= 0
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("Cancelled by mara.")).to_be_visible()
    assert OutboxMessage.objects.get().state == "done"


def test_entry_rejection_works_by_keyboard(open_as_maintainer: Callable[..., Page]) -> None:
    entry = scene.create_entry(scene.create_track(), "Smeared keys", state=Entry.State.PROPOSED, repository="/nowhere")
    page = open_as_maintainer(f"/admin/leaderboard/entry/{entry.pk}/change/")
    page.get_by_label("Reason, which its author reads").focus()
    page.keyboard.type("It opens a socket.")
    page.keyboard.press("Enter")
    page.wait_for_url("**/queue/")
    entry.refresh_from_db()
    assert (entry.state, entry.reason) == ("rejected", "It opens a socket.")
