"""The ladder: missing runs are queued at the lowest priority, smallest rungs first."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from leaderboard.models import Entry, Run, Track
from leaderboard.schedule import ladder
from leaderboard.schedule.night_checks import check_next_night
from leaderboard.submissions import intake
from scheduler import transitions
from scheduler.models import Job, Node
from scheduler.transitions import JobEvent
from tests.leaderboard.conftest import Repository, finish_run

pytestmark = pytest.mark.sql

RUNGS = {"rungs": [0.25, 0.5, 1, 2], "seeds": 2}


@pytest.fixture
def baseline(main_repository: Repository, track: Track) -> Entry:
    entry = intake.submit_entry(str(main_repository.path), "main", "main", "gpt", track, kind=Entry.Kind.MAIN)
    intake.approve_entry(entry, entry.sha, None)
    track.season.baseline, track.ladder, track.seeds = entry, RUNGS, 2
    track.season.save()
    track.save()
    return entry


def finish_ladder(track: Track, node: Node) -> None:
    """Fill the ladder and finish its runs until none is queued."""
    while ladder.fill_ladder(track) or Run.objects.filter(track=track, state=Run.State.QUEUED).exists():
        for run in Run.objects.filter(track=track, state=Run.State.QUEUED):
            finish_run(run, node)


def test_ladder_starts_with_smallest_rungs_at_lowest_priority(baseline: Entry, track: Track) -> None:
    assert ladder.fill_ladder(track) == ladder.WAITING_AT_ONCE
    ladder_runs = Run.objects.filter(purpose="ladder").order_by("pk").select_related("job", "track")
    assert [(run.budget, run.seed, run.state) for run in ladder_runs] == [
        ("5steps", 1, "queued"),
        ("5steps", 2, "queued"),
        ("10steps", 1, "queued"),
    ]
    assert {(run.job.priority, run.job.preemptible) for run in ladder_runs if run.job} == {(Job.Priority.LADDER, True)}
    assert [run.job.expected_seconds for run in ladder_runs if run.job] == [2.5, 2.5, 5.0]


def test_ladder_retries_infrastructure_failure_after_delay(baseline: Entry, track: Track, node: Node) -> None:
    ladder.fill_ladder(track)
    failed_run = Run.objects.filter(purpose="ladder").earliest("pk")
    transitions.fail_job(failed_run.job, "site", "infrastructure", "No node.")
    ladder.fill_ladder(track)
    failed_run.refresh_from_db()
    assert failed_run.state == "failed"

    Run.objects.filter(pk=failed_run.pk).update(finished_at=timezone.now() - ladder.RETRY_AFTER - timedelta(seconds=1))
    ladder.fill_ladder(track)
    failed_run.refresh_from_db()
    assert failed_run.state == "queued"
    assert Run.objects.filter(budget=failed_run.budget, purpose="ladder").count() == 2


@pytest.mark.parametrize("event", [JobEvent.FAIL, JobEvent.CANCEL])
def test_ladder_does_not_replace_failed_or_cancelled_run(
    baseline: Entry, track: Track, node: Node, event: JobEvent
) -> None:
    ladder.fill_ladder(track)
    ended_run = Run.objects.filter(purpose="ladder").earliest("pk")
    transitions.apply_job_event(ended_run.job, event, actor="mara", cause="model" if event == JobEvent.FAIL else "")
    Run.objects.filter(pk=ended_run.pk).update(finished_at=timezone.now() - timedelta(days=1))
    finish_ladder(track, node)
    assert Run.objects.filter(purpose="ladder", budget=ended_run.budget).count() == 2
    assert ladder.get_ladder_progress(track) == ladder.LadderProgress(7, 8)


def test_full_ladder_queues_further_seeds_of_entries(
    baseline: Entry, proposed_entry: Entry, track: Track, node: Node
) -> None:
    (first,) = intake.approve_entry(proposed_entry, proposed_entry.sha, None)
    finish_run(first, node)
    ladder.fill_ladder(track)
    assert proposed_entry.runs.count() == 1
    finish_ladder(track, node)
    assert proposed_entry.runs.count() == track.seeds == 2
    assert len(set(proposed_entry.runs.values_list("seed", flat=True))) == 2
    seed_job = Job.objects.filter(run__entry=proposed_entry).latest("pk")
    assert (seed_job.priority, seed_job.preemptible) == (Job.Priority.LADDER, True)


@pytest.mark.parametrize(("seconds", "state"), [(75_600.0, "ok"), (85_000.0, "missing")])
def test_ladder_check_of_one_card_depends_on_its_free_hours(
    track: Track, capable_node: Node, seconds: float, state: str
) -> None:
    track.ladder, track.expected_seconds = {"rungs": [0.5, 1, 2], "seeds": 3}, seconds
    track.save()
    (check,) = (found for found in check_next_night(track, timezone.now()) if found.name == "Time for the ladder")
    assert (check.state, check.fails_night) == (state, False), check.advice
    assert f"{3.5 * 3 * seconds / 3600:.1f} h" in check.advice
