"""Eight nights with a new `main` each, and a failure of each kind: none holds a later night back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta

import pytest
import time_machine
from django.utils import timezone

from leaderboard import runs
from leaderboard.models import Entry, Night, Run, Season, Track
from leaderboard.schedule import nightly
from leaderboard.submissions import intake
from leaderboard.tasks import fill_ladders
from scheduler import leases, transitions
from scheduler.models import Event, Job, Lease, Node
from tests.leaderboard.conftest import Repository, finish_run
from tests.support.nights import MONDAY
from tests.support.node_jobs import end_lease, lease_job, requeue_job

DAY = timedelta(days=1)
NIGHTS = 8


def fail_by_infrastructure(run: Run, lease: Lease) -> None:
    Job.objects.filter(pk=lease.job_id).update(failures=99)
    requeue_job(lease)


def fail_by_model(run: Run, lease: Lease) -> None:
    end_lease(lease, "failed", cause="model", reason="The loss is not a number.")


def cancel_run(run: Run, lease: Lease) -> None:
    runs.cancel_run(run, "Enough.", "mara")
    end_lease(lease, "released", reason="A stop was requested.")


def hold_run(run: Run, lease: Lease) -> None:
    transitions.hold_job(lease.job, "mara", "Later.")
    end_lease(lease, "released", reason="A stop was requested.")


def fall_silent(run: Run, lease: Lease) -> None:
    leases.lose_lease(lease, "It fell silent.")


def finish_without_checkpoint(run: Run, lease: Lease) -> None:
    end_lease(lease, "done", result={"step": 20})


def fail_and_retry(run: Run, lease: Lease) -> None:
    """It is given up, a maintainer retries, and no node takes the job."""
    fail_by_infrastructure(run, lease)
    runs.retry_run(Run.objects.get(pk=run.pk), actor="mara")


FAILURES: tuple[Callable[[Run, Lease], None], ...] = (
    fail_by_infrastructure,
    fail_by_model,
    cancel_run,
    hold_run,
    fall_silent,
    finish_without_checkpoint,
    fail_and_retry,
)


def test_nights_start_whatever_happened_to_those_before(
    track: Track, main_repository: Repository, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim_night, failing = nightly.claim_night, MONDAY.date() + 5 * DAY

    def fail_to_claim(track: Track, day: date, sha: str, is_late: bool) -> Night | None:
        if day == failing and not is_late:
            raise RuntimeError("of this night")
        return claim_night(track, day, sha, is_late)

    monkeypatch.setattr(nightly, "claim_night", fail_to_claim)
    with time_machine.travel(MONDAY, tick=False) as clock:
        for number in range(NIGHTS):
            clock.move_to(MONDAY + number * DAY)
            sha = main_repository.commit(f"Night {number}")
            nightly.start_nightly_runs(timezone.now())
            clock.shift(timedelta(minutes=1))
            nightly.start_late_nights(timezone.now())
            run = Run.objects.select_related("entry", "job").get(entry__sha=sha)
            assert (run.state, run.purpose) == ("queued", "nightly"), f"night {number}"
            clock.move_to(MONDAY + number * DAY)
            FAILURES[number % len(FAILURES)](run, lease_job(run.job, node))
    assert Night.objects.exclude(run=None).count() == Night.objects.count() == NIGHTS
    ended = {(run.state, run.cause) for run in Run.objects.all()}
    assert {("failed", "infrastructure"), ("failed", "model"), ("cancelled", ""), ("paused", "")} <= ended


def test_baseline_is_not_withdrawn_before_a_maintainer_decides(finished_monday_night: Night) -> None:
    baseline = finished_monday_night.run.entry
    for _ in range(2):
        with pytest.raises(intake.IntakeError, match="It is the baseline of Season 0"):
            intake.withdraw_entry(baseline, "The pull request was closed.", "github:ada")
    baseline.refresh_from_db()
    assert baseline.state == Entry.State.APPROVED
    asked = "Not withdrawn (The pull request was closed): it is the baseline of Season 0. A maintainer decides."
    assert Event.objects.about(baseline).filter(sentence=asked).count() == 1
    Season.objects.update(baseline=None)
    intake.withdraw_entry(baseline)


def test_nights_go_on_beside_a_withdrawn_baseline(
    finished_monday_night: Night, main_repository: Repository, node: Node
) -> None:
    Track.objects.update(ladder={"rungs": [0.5, 1], "seeds": 1})
    Entry.objects.update(state=Entry.State.WITHDRAWN)
    idle = nightly.start_nightly_runs(MONDAY + DAY)[0]
    assert idle.run is None
    assert idle.sentence.endswith("the baseline is withdrawn: a maintainer chooses another one.")
    fill_ladders()
    assert not Job.objects.filter(state=Job.State.QUEUED).exists()
    main_repository.commit("Moved")
    (night,) = nightly.start_nightly_runs(MONDAY + 2 * DAY)
    assert finish_run(night.run, node).state == "finished"
