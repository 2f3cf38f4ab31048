"""The admin's own pages in a real browser: nothing is blocked by the policy, nothing is wider than a phone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Page, expect

from leaderboard.models import Entry
from scheduler.models import Event
from tests.support import scene

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def signed_in(open_page: Callable[..., Page], live_server: Any, client: Client) -> Callable[..., Page]:
    client.force_login(User.objects.create_superuser("mara"))
    cookie = {"name": "sessionid", "value": client.cookies["sessionid"].value, "url": live_server.url}

    def opened(path: str, **options: Any) -> Page:
        page = open_page("/", **options)
        page.context.add_cookies([cookie])  # type: ignore[list-item]
        page.goto(path)
        return page

    return opened


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_maintainers_pages_fit_a_phone(signed_in: Callable[..., Page], scheme: str) -> None:
    waits = scene.entry(
        scene.track(), "Smeared keys", "smear", state=Entry.State.PROPOSED, hypothesis="Sooner. " * 40,
        repository="/nowhere", base_sha=scene.SHA,
    )  # fmt: skip
    Event.record("mara", waits, "A sentence without_any_place_to_break_it_" + "x" * 80)
    page = signed_in("/admin/", viewport={"width": 390, "height": 844}, color_scheme=scheme)
    page.get_by_role("link", name="1 waiting for approval").click()
    page.get_by_role("link", name="Smeared keys").click()
    expect(page.get_by_role("button", name=f"Approve exactly {scene.SHA[:8]}")).to_be_visible()
    addresses = [f"/admin/leaderboard/entry/{waits.pk}/change/", "/admin/leaderboard/entry/queue/"]
    for address in (*addresses, "/admin/scheduler/event/", "/accounts/two-step/", "/accounts/two-step/app/"):
        page.goto(address)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, address


def test_a_reason_is_typed_and_the_entry_rejected_by_keyboard_alone(signed_in: Callable[..., Page]) -> None:
    waits = scene.entry(scene.track(), "Smeared keys", state=Entry.State.PROPOSED, repository="/nowhere")
    page = signed_in(f"/admin/leaderboard/entry/{waits.pk}/change/")
    page.get_by_label("Reason, which its author reads").focus()
    page.keyboard.type("It opens a socket.")
    page.keyboard.press("Enter")
    page.wait_for_url("**/queue/")
    waits.refresh_from_db()
    assert (waits.state, waits.reason) == ("rejected", "It opens a socket.")
