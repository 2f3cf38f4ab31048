"""The page of a swarm in a browser: live members, and the replay of the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from leaderboard.models import Generation
from scheduler.job_kinds import get_job_kind
from scheduler.models import Node
from tests.support.node_jobs import finish_job, lease_job
from tests.support.swarm_scene import STEPS, create_swarm, record_event

pytestmark = [pytest.mark.processes, pytest.mark.browser, pytest.mark.django_db(transaction=True)]

PHONE = {"width": 390, "height": 844}


def test_swarm_page_shows_live_members_and_replays_the_run(open_page: Callable[..., Page]) -> None:
    swarm = create_swarm()
    page = open_page(f"/runs/{swarm.run_id}/swarm/")
    columns = page.locator(".swarm-stage")
    expect(columns).to_have_count(2)
    expect(columns.first).to_contain_text("cellar")
    expect(page.locator(".swarm-machine")).to_have_count(5)
    expect(page.locator(".swarm-machine.is-banned")).to_contain_text("library-2")
    expect(page.locator("#clock")).to_contain_text("step 60")

    page.locator("#moment").fill("150")
    expect(page.locator(".swarm-machine")).to_have_count(2)
    expect(page.locator("#clock")).not_to_contain_text("step 60")
    page.locator("#now").click()
    expect(page.locator(".swarm-machine")).to_have_count(5)

    record_event(swarm, "join", STEPS, "newcomer", stage=1)
    expect(columns.nth(1)).to_contain_text("newcomer")
    expect(page.locator("#happened")).to_contain_text("newcomer took a seat at stage 2")


def test_swarm_page_without_script_shows_members(open_page: Callable[..., Page]) -> None:
    swarm = create_swarm()
    page = open_page(f"/runs/{swarm.run_id}/swarm/", java_script_enabled=False)
    expect(page.locator(".swarm-machine")).to_have_count(5)
    expect(page.locator("#replay")).to_be_hidden()
    expect(page.locator("#people")).to_contain_text("attic-3090")


@pytest.mark.parametrize("script", [True, False])
def test_swarm_page_continues_prompt_of_visitor(open_page: Callable[..., Page], script: bool) -> None:
    swarm = create_swarm()
    options = {"viewport": PHONE, "color_scheme": "dark", "java_script_enabled": script}
    page = open_page(f"/runs/{swarm.run_id}/swarm/", **options)
    width = page.evaluate("document.documentElement.scrollWidth") if script else PHONE["width"]
    assert width <= PHONE["width"]
    page.get_by_label("Beginning of a text").fill("The train")
    page.get_by_role("button", name="Continue the text").click()
    expect(page.locator("#written")).to_contain_text("The train")
    generation = Generation.objects.select_related("job").get()
    lease_job(generation.job, Node.objects.create(name="trusted", trusted=True))
    get_job_kind(generation.job).handle_metrics(generation.job, [{"kind": "text", "text": " leaves at nine."}])
    finish_job(generation.job, {"version": 1, "tokens": 5, "seconds": 2, "ended": "length"})
    if not script:
        page.reload()
    expect(page.locator("#written")).to_contain_text("The train leaves at nine.")
    page.get_by_role("link", name="Write another").click()
    expect(page.get_by_role("heading", name="Try this model")).to_be_visible()
