"""Visitor prompts, to a finished model and to a swarm that trains: by keyboard, with streamed text, without scripts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from leaderboard.models import Generation
from scheduler.job_kinds import get_job_kind
from scheduler.models import Node
from tests.browser.conftest import PHONE, count_pixels_beside
from tests.support.node_jobs import finish_job, lease_job
from tests.support.swarm_scene import STEPS, create_swarm, record_event

pytestmark = [pytest.mark.processes, pytest.mark.browser, pytest.mark.django_db(transaction=True)]


class Writer:
    """A trusted node that writes the text of the only prompt."""

    def __init__(self) -> None:
        self.generation = Generation.objects.select_related("job").get()
        lease_job(self.generation.job, Node.objects.create(name="trusted", trusted=True))

    def send(self, text: str) -> None:
        get_job_kind(self.generation.job).handle_metrics(self.generation.job, [{"kind": "text", "text": text}])

    def finish(self) -> None:
        finish_job(self.generation.job, {"version": 1, "tokens": 5, "seconds": 2, "ended": "length"})


def write_prompt(page: Page) -> None:
    page.get_by_label("Beginning of a text").fill("The train")
    page.get_by_role("button", name="Continue the text").press("Enter")


# --- a swarm ---------------------------------------------------------------------------------------------------------


def test_swarm_page_shows_live_members_and_replays_the_run(open_page: Callable[..., Page]) -> None:
    swarm = create_swarm()
    page = open_page(f"/runs/{swarm.run_id}/swarm/")
    columns, machines = page.locator(".swarm-stage"), page.locator(".swarm-machine")
    expect(columns).to_have_count(2)
    expect(columns.first).to_contain_text("cellar")
    expect(machines).to_have_count(5)
    expect(page.locator(".swarm-machine.is-banned")).to_contain_text("library-2")
    expect(page.locator("#clock")).to_contain_text("step 60")

    page.locator("#moment").fill("150")
    expect(machines).to_have_count(2)
    expect(page.locator("#clock")).not_to_contain_text("step 60")
    page.locator("#now").click()
    expect(machines).to_have_count(5)

    record_event(swarm, "join", STEPS, "newcomer", stage=1)
    expect(columns.nth(1)).to_contain_text("newcomer")
    expect(page.locator("#happened")).to_contain_text("newcomer took a seat at stage 2")


@pytest.mark.parametrize("script", [True, False])
def test_swarm_page_on_a_phone_continues_prompt_of_visitor(open_page: Callable[..., Page], script: bool) -> None:
    swarm = create_swarm()
    options = {"viewport": PHONE, "color_scheme": "dark", "java_script_enabled": script}
    page = open_page(f"/runs/{swarm.run_id}/swarm/", **options)
    if script:
        assert count_pixels_beside(page) <= 0
    else:
        expect(page.locator(".swarm-machine")).to_have_count(5)
        expect(page.locator("#replay")).to_be_hidden()
        expect(page.locator("#people")).to_contain_text("attic-3090")
    write_prompt(page)
    expect(page.locator("#written")).to_contain_text("The train")
    writer = Writer()
    writer.send(" leaves at nine.")
    writer.finish()
    if not script:
        page.reload()
    expect(page.locator("#written")).to_contain_text("The train leaves at nine.")
    page.get_by_role("link", name="Write another").click()
    expect(page.get_by_role("heading", name="Try this model")).to_be_visible()
