from __future__ import annotations

from pathlib import Path

import pytest
from django.contrib.auth.models import User

from leaderboard.models import Entry, Season, Track
from leaderboard.runs import queue_waiting
from leaderboard.submissions import intake
from leaderboard.submissions.intake import IntakeError
from scheduler.models import Event, Job
from tests.leaderboard.conftest import Repository

pytestmark = pytest.mark.processes


def test_approved_entry_gets_run_and_job(proposed_entry: Entry, maintainer: User) -> None:
    (run,) = intake.approve_entry(proposed_entry, proposed_entry.sha, maintainer)
    assert (run.state, run.purpose, run.budget) == ("queued", "entry", "20steps")
    assert (run.job.kind, run.job.state, run.job.entry_id) == ("train", "queued", proposed_entry.bundle_id)
    assert run.job.needs_sandbox
    assert run.job.limits["wall_seconds"] == 620
    assert (proposed_entry.state, proposed_entry.approved_by) == ("approved", maintainer)
    assert [event.actor for event in Event.objects.about(run)] == ["mara", "mara"]


def test_approval_of_other_commit_is_refused(proposed_entry: Entry, maintainer: User) -> None:
    with pytest.raises(IntakeError, match="You reviewed 00000000"):
        intake.approve_entry(proposed_entry, "0" * 40, maintainer)
    proposed_entry.refresh_from_db()
    assert proposed_entry.state == "proposed"
    assert not Job.objects.exists()


def test_pushed_commit_is_a_new_unapproved_entry(
    main_repository: Repository, track: Track, tmp_path: Path, maintainer: User
) -> None:
    fork = main_repository.fork(tmp_path / "fork")
    fork.commit("An idea", {"trainer/models/gpt.py": "x = 1\n"})
    reviewed_entry = intake.submit_entry(str(fork.path), "main", "Idea", "gpt", track)
    pushed_sha = fork.commit("A miner", {"trainer/models/gpt.py": "x = 2\n"})
    intake.approve_entry(reviewed_entry, reviewed_entry.sha, maintainer)
    pushed_entry = intake.submit_entry(str(fork.path), "main", "Idea", "gpt", track)
    assert (pushed_entry.sha, pushed_entry.state) == (pushed_sha, "proposed")
    assert pushed_entry.pk != reviewed_entry.pk
    job = Job.objects.get()
    assert job.entry_id == reviewed_entry.bundle_id != pushed_entry.bundle_id
    own = intake.submit_entry(str(main_repository.path), "main", "y", "smear", track, requested_by=maintainer)
    (run,) = intake.approve_entry(own, own.sha, maintainer)
    assert (job.priority, run.job.priority) == (Job.Priority.COMMUNITY, Job.Priority.MAINTAINER)


def test_approved_entry_can_be_withdrawn_but_not_rejected(proposed_entry: Entry, maintainer: User) -> None:
    (run,) = intake.approve_entry(proposed_entry, proposed_entry.sha, maintainer)
    with pytest.raises(IntakeError, match="is approved, so it cannot be rejected"):
        intake.reject_entry(proposed_entry, "Changed my mind.", maintainer)
    intake.withdraw_entry(proposed_entry)
    run.refresh_from_db()
    assert (proposed_entry.state, run.state) == ("withdrawn", "cancelled")
    assert run.job.state == Job.State.CANCELLED


def test_approved_run_waits_until_dataset_is_prepared(proposed_entry: Entry, maintainer: User) -> None:
    Season.objects.update(dataset_hash="")
    proposed_entry.track.season.refresh_from_db()
    (run,) = intake.approve_entry(proposed_entry, proposed_entry.sha, maintainer)
    run.refresh_from_db()
    assert (run.state, run.job) == ("waiting", None)
    assert "dataset is prepared" in run.reason
    Season.objects.update(dataset_hash="d" * 64)
    assert queue_waiting(Season.objects.get()) == 1
    run.refresh_from_db()
    assert run.state == "queued"
