"""A long run leaves its weights behind at every tenth of its budget, each once, and its page says how far it is."""

from __future__ import annotations

import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from leaderboard.models import Publication, Run
from leaderboard.publishing import releases
from leaderboard.schedule import track_templates
from scheduler.job_kinds import get_job_kind
from scheduler.models import Node
from tests.leaderboard.conftest import finish, lease, train_row, upload


@pytest.fixture
def long_run(run: Run, node: Node) -> Run:
    """A run that trains, on a track with a release every 10 percent."""
    type(run.track).objects.filter(pk=run.track_id).update(releases=10)
    assert run.job
    lease(run.job, node)
    run.refresh_from_db()
    return run


def arrive(run: Run, step: int, of: int, checkpoint: bool = True) -> list[str]:
    """The run is at `step` of `of`, with a checkpoint; return the names of what is released."""
    assert run.job
    point = {"fraction": step / of, "tokens": step * 512}
    dev = {**train_row(step, 3 - step / of), **point, "kind": "dev", "bits_per_byte": 1.0}
    get_job_kind(run.job).handle_metrics(run.job, [train_row(step, **point), dev])
    if checkpoint:
        upload(run.job, step)
    return [kept.name for kept in releases.cut_releases()]


def test_each_mark_that_a_checkpoint_passes_is_released_once(long_run: Run) -> None:
    assert arrive(long_run, 90, 1000) == []
    assert arrive(long_run, 100, 1000) == ["10-percent"]
    assert arrive(long_run, 110, 1000) == []
    assert releases.cut_releases() == []
    assert arrive(long_run, 450, 1000) == ["40-percent"]  # of several marks the last
    kept = Publication.objects.get(name="40-percent")
    assert (kept.step, kept.reason) == (450, "40 % of the budget, at step 450.")
    assert kept.blobs.count() == 1


def test_a_mark_is_passed_by_a_checkpoint_and_not_by_the_run(long_run: Run) -> None:
    assert arrive(long_run, 150, 1000) == ["10-percent"]
    assert arrive(long_run, 250, 1000, checkpoint=False) == []  # its weights are of 15 percent
    assert arrive(long_run, 290, 1000) == ["20-percent"]


def test_other_tracks_release_nothing(run: Run, node: Node) -> None:
    assert run.job
    lease(run.job, node)
    assert arrive(run, 500, 1000) == []
    assert releases.get_release_progress(run) is None


def test_the_end_is_the_last_release(run: Run, node: Node) -> None:
    type(run.track).objects.filter(pk=run.track_id).update(releases=10)
    done = finish(run, node)
    assert [kept.name for kept in releases.cut_releases()] == ["final"]
    assert releases.cut_releases() == []
    way = releases.get_release_progress(Run.objects.get(pk=done.pk))
    assert way is not None
    assert (way.milestones[-1].percent, way.milestones[-1].publication) == (100, Publication.objects.get())


def test_the_page_says_how_far_it_is(long_run: Run, client: Client) -> None:
    arrive(long_run, 230, 1000)
    page = " ".join(client.get(long_run.get_absolute_url()).content.decode().split())
    assert "23.0 % of the way" in page
    assert "20-percent, below" in page
    assert "passed without a checkpoint" in page  # 10
    assert "Next: 30 %, and so on to 100 %." in page
    assert "2.7700" in page


@given(st.floats(0, 1.2), st.integers(1, 50))
def test_marks_are_whole_steps_that_lie_behind(fraction: float, every: int) -> None:
    mark = releases.get_passed_percent(fraction, every)
    assert mark % every == 0
    assert mark <= min(fraction, 1) * 100 + 1e-6 < mark + every + 1e-6


def test_the_long_run_has_a_track_with_releases() -> None:
    template = track_templates.TEMPLATES["long-run-8x80gb"]
    assert (template["releases"], template["budget"]) == (10, "627B-tokens")
