"""The ladder: missing runs are queued at the lowest priority, smallest rungs first."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from leaderboard import runs
from leaderboard.models import Entry, Run, Season, Track
from leaderboard.schedule import ladder
from leaderboard.submissions import intake
from leaderboard.tasks import fill_ladders
from scheduler import leases, preemption, transitions, uploads
from scheduler.models import Job, Lease, Node
from scheduler.transitions import JobEvent
from tests.leaderboard.conftest import Repository, finish_run
from trainer import protocol

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


def list_ladder_runs(track: Track) -> list[tuple[str, int]]:
    return sorted(Run.objects.filter(track=track, purpose="ladder").values_list("budget", "seed"))


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


def test_ladder_run_of_any_age_pauses_for_a_night_and_goes_on(
    baseline: Entry, track: Track, capable_node: Node
) -> None:
    ladder.fill_ladder(track)
    Job.objects.update(queued_at=timezone.now() - timedelta(days=30))
    assert leases.claim_job(capable_node)
    lease = Lease.objects.get()
    night = runs.make_run(baseline, track, purpose=Run.Purpose.NIGHTLY)
    runs.queue_run(night)
    assert preemption.make_room() == 1
    assert leases.renew_lease(lease, protocol.Heartbeat(phase="running", seconds=1)).stop == "finish"
    uploads.record_checkpoint(lease, protocol.Checkpoint(step=3, files=()))
    leases.finish_lease(lease, protocol.FinishLease(outcome="released", seconds=1, reason="A stop was requested."))
    assert leases.claim_job(capable_node)
    tonight = Lease.objects.select_related("job").get(state=Lease.State.ACTIVE)
    assert tonight.job == night.job
    leases.finish_lease(tonight, protocol.FinishLease(outcome="failed", cause="model", seconds=1, reason="NaN"))
    assert leases.claim_job(capable_node)
    again = Lease.objects.select_related("job").get(state=Lease.State.ACTIVE)
    assert (again.job_id, again.attempt) == (lease.job_id, 2)
    assert again.job.checkpoints.get().step == 3


def test_ladder_with_queued_runs_queues_no_more(baseline: Entry, track: Track) -> None:
    ladder.fill_ladder(track)
    assert ladder.fill_ladder(track) == 0
    assert len(list_ladder_runs(track)) == ladder.WAITING_AT_ONCE


def test_ladder_fills_to_seeds_times_rungs(baseline: Entry, track: Track, node: Node) -> None:
    finish_ladder(track, node)
    assert list_ladder_runs(track) == [(f"{steps}steps", seed) for steps in (10, 20, 40) for seed in (1, 2)] + [
        ("5steps", 1),
        ("5steps", 2),
    ]
    assert ladder.get_ladder_progress(track) == ladder.LadderProgress(8, 8)
    assert ladder.fill_ladder(track) == 0


def test_ladder_counts_other_runs_of_the_baseline(baseline: Entry, track: Track, node: Node) -> None:
    from leaderboard.runs import make_run

    make_run(baseline, track)  # like a nightly run with a drawn seed
    finish_ladder(track, node)
    assert [budget for budget, _ in list_ladder_runs(track)].count("20steps") == 1


def test_ladder_retries_infrastructure_failure_after_delay(baseline: Entry, track: Track, node: Node) -> None:
    ladder.fill_ladder(track)
    failed_run = Run.objects.filter(purpose="ladder").earliest("pk")
    assert failed_run.job is not None
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
    assert ended_run.job is not None
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


def test_full_ladder_queues_no_seeds_of_failed_entry(
    baseline: Entry, proposed_entry: Entry, track: Track, node: Node
) -> None:
    intake.approve_entry(proposed_entry, proposed_entry.sha, None)
    proposed_entry.runs.update(state="failed", cause="model")
    finish_ladder(track, node)
    assert proposed_entry.runs.count() == 1


@pytest.mark.parametrize("change", ["baseline", "dataset"])
def test_ladder_of_new_season_starts_over(
    baseline: Entry, track: Track, node: Node, main_repository: Repository, change: str
) -> None:
    finish_ladder(track, node)
    old_season, old_runs = track.season, list_ladder_runs(track)
    entry = baseline
    if change == "baseline":
        sha = main_repository.commit("Faster", {"trainer/models/gpt.py": "x = 1\n"})
        entry = intake.submit_entry(str(main_repository.path), sha, "main", "gpt", track, kind=Entry.Kind.MAIN)
        intake.approve_entry(entry, sha, None)
    track.season = Season.objects.create(
        name="Season 1", corpus="python-library", tokenizer="bpe:512", dataset_hash="e" * 64, baseline=entry
    )
    track.save()
    assert ladder.get_ladder_progress(track) == ladder.LadderProgress(0, 8)
    finish_ladder(track, node)
    assert ladder.get_ladder_progress(track) == ladder.LadderProgress(8, 8)
    assert Run.objects.filter(season=old_season, purpose="ladder").count() == len(old_runs)
    assert Run.objects.filter(season=track.season, purpose="ladder").count() == 8


@pytest.mark.parametrize("missing", ["ladder", "baseline", "dataset", "season"])
def test_ladder_without_prerequisite_queues_nothing(baseline: Entry, track: Track, missing: str) -> None:
    Track.objects.update(ladder={}) if missing == "ladder" else None
    Season.objects.update(
        **{"baseline": {"baseline": None}, "dataset": {"dataset_hash": ""}, "season": {"active": False}}.get(
            missing, {"active": True}
        )
    )
    fill_ladders()
    assert not Run.objects.filter(purpose="ladder").exists()


def test_wall_time_limit_of_larger_rung_is_longer(track: Track) -> None:
    track.ladder = RUNGS
    assert track.training_limits(track.part("40steps")).wall_seconds == 2 * track.training_limits().wall_seconds
    assert track.training_limits(track.part("5steps")).wall_seconds == track.training_limits().wall_seconds


@pytest.mark.parametrize(
    ("rungs", "message"),
    [
        ({"rungs": [0.5, 1]}, "it is"),
        ({"rungs": [0.5, 2], "seeds": 3}, "1 .the whole budget. is one of them"),
        ({"rungs": [1, 1], "seeds": 3}, "each rung comes once"),
        ({"rungs": [1, "2"], "seeds": 3}, "rungs are parts of the budget"),
        ({"rungs": [1, 0.001], "seeds": 3}, "from 1/64 to 64"),
        ({"rungs": [1], "seeds": 0}, "seeds is a whole number"),
        ({"rungs": [1], "seeds": True}, "seeds is a whole number"),
        ({"rungs": [0.51, 0.52, 1], "seeds": 1}, "too small for rungs so near"),
        ([], "it is"),
    ],
)
def test_track_with_invalid_ladder_is_refused(track: Track, rungs: Any, message: str) -> None:
    track.ladder = rungs
    with pytest.raises(ValidationError, match=message):
        track.clean()


BUDGETS = st.lists(st.sampled_from(["a", "b", "c", "d"]), unique=True, min_size=1)


@given(st.integers(1, 5), BUDGETS, st.dictionaries(st.sampled_from(["a", "b", "c", "d", "e"]), st.integers(0, 8)))
def test_missing_budgets_fill_each_rung_exactly(seeds: int, budgets: list[str], existing: dict[str, int]) -> None:
    missing = list(ladder.list_missing_budgets(seeds, budgets, existing))
    assert missing == sorted(missing, key=budgets.index)
    for budget in budgets:
        assert max(existing.get(budget, 0), seeds) == existing.get(budget, 0) + missing.count(budget)


@given(st.sets(st.integers(0, 30)))
def test_free_seeds_are_the_lowest_unused(used: set[int]) -> None:
    seeds = ladder.iterate_free_seeds(used)
    first, second = next(seeds), next(seeds)
    assert 1 <= first < second
    assert not {first, second} & used
    assert set(range(1, first)) <= used
