"""Visitor prompts: by keyboard, with streamed text, and without scripts."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from django.conf import settings
from playwright.sync_api import Page, expect

from leaderboard.models import Generation, Run
from scheduler.job_kinds import get_job_kind
from scheduler.models import Checkpoint, Job
from tests.support import scene

pytestmark = [pytest.mark.processes, pytest.mark.browser, pytest.mark.django_db(transaction=True)]

AXE = Path(settings.BASE_DIR) / "node_modules" / "axe-core" / "axe.min.js"
PHONE = {"width": 390, "height": 844}


@pytest.fixture
def best() -> Run:
    """The best run of the board, with weights on the site."""
    best: Run = scene.create_night_board()["best"]
    best.job = scene.create_job(best, state=Job.State.DONE)
    best.checkpoint = Checkpoint.objects.create(job=best.job, step=900, manifest={"step": 900, "files": []})
    best.save()
    return best


def list_serious_violations(page: Page) -> list[str]:
    if not AXE.exists():
        pytest.skip("axe-core is not installed: npm ci")
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run()")["violations"]
    return [f"{row['id']}: {row['help']}" for row in found if row["impact"] in ("serious", "critical")]


def send_text(generation: Generation, text: str) -> None:
    get_job_kind(generation.job).handle_metrics(generation.job, [{"kind": "text", "text": text}])


def test_prompt_by_keyboard_shows_queue_then_streamed_text(open_page: Callable[..., Page], best: Run) -> None:
    page = open_page("/try/", viewport=PHONE)
    expect(page.get_by_label("Model")).to_have_value(str(best.pk))
    page.get_by_label("Beginning of a text").fill("The train")
    page.get_by_role("button", name="Continue the text").press("Enter")
    expect(page.get_by_text("in the queue.")).to_be_visible()
    generation = Generation.objects.select_related("job").get()
    Job.objects.filter(pk=generation.job_id).update(state=Job.State.LEASED)
    expect(page.get_by_text("getting ready")).to_be_visible()
    send_text(generation, " leaves <b>at")
    expect(page.locator("#written blockquote")).to_have_text("The train leaves <b>at")
    send_text(generation, " nine")
    expect(page.locator("#written blockquote")).to_have_text("The train leaves <b>at nine")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert list_serious_violations(page) == []
    Job.objects.filter(pk=generation.job_id).update(state=Job.State.DONE)
    expect(page.get_by_text("written", exact=True)).to_be_visible()


def test_prompt_page_without_script_reloads_itself(open_page: Callable[..., Page], best: Run) -> None:
    page = open_page(best.get_absolute_url(), java_script_enabled=False)
    page.get_by_label("Beginning of a text").fill("The train")
    page.get_by_role("button", name="Continue the text").click()
    expect(page.locator("#written")).to_be_visible()
    generation = Generation.objects.select_related("job").get()
    Job.objects.filter(pk=generation.job_id).update(state=Job.State.DONE)
    send_text(generation, " leaves")
    expect(page.locator("#written blockquote")).to_have_text(re.compile("leaves"))


def test_about_page_is_linked_from_navigation(open_page: Callable[..., Page], best: Run) -> None:
    page = open_page(best.get_absolute_url())
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="How it works").click()
    expect(page.get_by_role("heading", name="It gets an error bar")).to_be_visible()
    assert list_serious_violations(page) == []
