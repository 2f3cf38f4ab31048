"""The live chart of a run that continues another run's checkpoint has the branches of both."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from leaderboard.models import Run
from scheduler.models import Checkpoint, Job
from tests.support import scene

pytestmark = [pytest.mark.processes, pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def rewound() -> Run:
    """A run of RWKV-5.1 from step 400 of a run of 5.0 that was trained to step 520."""
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


def test_lineage_chart_has_old_and_new_branch_and_step_back(open_page: Callable[..., Page], rewound: Run) -> None:
    page = open_page(rewound.get_absolute_url(), viewport={"width": 1440, "height": 1400})
    legend = page.locator("#curve .u-legend")
    for label in (
        f"run {rewound.start_run_id}",
        f"run {rewound.start_run_id}, left behind",
        "step back",
        "smoothed",
    ):
        expect(legend.get_by_text(label, exact=True)).to_be_visible()
    expect(page.locator(".lineage")).to_contain_text("left at step 400, 120 steps before its last")
    page.get_by_role("link", name="steps", exact=True).click()
    expect(legend.locator(".u-series").first).to_contain_text(re.compile("550"))  # from the first run's start
