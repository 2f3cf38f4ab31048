"""A run that goes on from a checkpoint of another: its live chart has the other's branches too."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from leaderboard.models import Run
from scheduler.models import Checkpoint, Job
from tests.support import scene

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def gated() -> Run:
    """RWKV-5.1, from step 400 of a run of 5.0 that had gone on to step 520."""
    track = scene.create_track()
    eagle = scene.create_training_run(
        scene.create_entry(track, "Eagle", "rwkv5", config={"model": {"version": 5.0}}), 520
    )
    Run.objects.filter(pk=eagle.pk).update(
        state=Run.State.CANCELLED, job=scene.create_job(eagle, state=Job.State.CANCELLED)
    )
    eagle.refresh_from_db()
    left = Checkpoint.objects.create(job=eagle.job, step=400, manifest={"step": 400, "files": []})
    after = {"config": {"from": {"versions": [5.0, 5.1]}}, "start_run": eagle, "start_checkpoint": left}
    return scene.create_training_run(
        scene.create_entry(track, "Eagle, gated", "rwkv5", sha="c0ffee" + scene.SHA[6:]), 150, **after
    )


def test_the_chart_has_the_old_branch_the_step_back_and_the_new_one(open_page: Callable[..., Page], gated: Run) -> None:
    page = open_page(gated.get_absolute_url(), viewport={"width": 1440, "height": 1400})
    legend = page.locator("#curve .u-legend")
    for label in (f"run {gated.start_run_id}", f"run {gated.start_run_id}, left behind", "step back", "smoothed"):
        expect(legend.get_by_text(label, exact=True)).to_be_visible()
    expect(page.locator(".lineage")).to_contain_text("left at step 400, 120 steps before its last")
    page.get_by_role("link", name="steps", exact=True).click()
    expect(legend.locator(".u-series").first).to_contain_text(re.compile("550"))  # counted from the first one's start
