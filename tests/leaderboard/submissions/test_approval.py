from __future__ import annotations

from pathlib import Path

import pytest
from django.contrib.auth.models import User

from leaderboard.models import Entry, Run, Season, Track
from leaderboard.runs import queue_waiting
from leaderboard.submissions import intake
from leaderboard.submissions.intake import IntakeError
from scheduler.models import Event, Job
from tests.leaderboard.conftest import Repository


def test_approval_makes_the_run_and_its_job(idea: Entry, maintainer: User) -> None:
    (run,) = intake.approve_entry(idea, idea.sha, maintainer)
    assert (run.state, run.purpose, run.budget) == ("queued", "entry", "20steps")
    assert run.job
    assert (run.job.kind, run.job.state, run.job.entry_id) == ("train", "queued", idea.bundle_id)
    assert run.job.needs_sandbox
    assert run.job.limits["wall_seconds"] == 620
    assert (idea.state, idea.approved_by) == ("approved", maintainer)
    assert [event.actor for event in Event.objects.about(run)] == ["mara", "mara"]


def test_approving_another_commit_is_refused(idea: Entry, maintainer: User) -> None:
    with pytest.raises(IntakeError, match="You reviewed 00000000"):
        intake.approve_entry(idea, "0" * 40, maintainer)
    idea.refresh_from_db()
    assert idea.state == "proposed"
    assert not Job.objects.exists()


def test_a_push_is_another_entry_without_approval(
    main: Repository, track: Track, tmp_path: Path, maintainer: User
) -> None:
    fork = main.fork(tmp_path / "fork")
    fork.commit("An idea", {"trainer/models/gpt.py": "x = 1\n"})
    looked_at = intake.submit_entry(str(fork.path), "main", "Idea", "gpt", track)
    pushed = fork.commit("A miner", {"trainer/models/gpt.py": "x = 2\n"})
    intake.approve_entry(looked_at, looked_at.sha, maintainer)
    after = intake.submit_entry(str(fork.path), "main", "Idea", "gpt", track)
    assert (after.sha, after.state) == (pushed, "proposed")
    assert after.pk != looked_at.pk
    assert Job.objects.get().entry_id == looked_at.bundle_id != after.bundle_id


def test_approving_twice_is_approving_once(idea: Entry, maintainer: User) -> None:
    assert intake.approve_entry(idea, idea.sha, maintainer) == intake.approve_entry(idea, idea.sha, maintainer)
    assert Job.objects.count() == Run.objects.count() == 1


def test_a_waiting_run_is_what_the_approval_queues(idea: Entry, maintainer: User) -> None:
    from leaderboard.runs import make_run

    waiting = make_run(idea, idea.track)
    assert intake.approve_entry(idea, idea.sha, maintainer) == [waiting]
    waiting.refresh_from_db()
    assert waiting.state == "queued"


def test_a_maintainers_entry_goes_before_the_communitys(main: Repository, track: Track, maintainer: User) -> None:
    theirs = intake.submit_entry(str(main.path), "main", "x", "gpt", track)
    ours = intake.submit_entry(str(main.path), "main", "y", "smear", track, requested_by=maintainer)
    jobs = [intake.approve_entry(entry, entry.sha, maintainer)[0].job for entry in (theirs, ours)]
    assert [job.priority for job in jobs if job] == [Job.Priority.COMMUNITY, Job.Priority.MAINTAINER]


def test_rejection_needs_a_reason_and_stands(idea: Entry, maintainer: User) -> None:
    with pytest.raises(IntakeError, match="needs a reason"):
        intake.reject_entry(idea, " ", maintainer)
    intake.reject_entry(idea, "It opens a socket.", maintainer)
    intake.reject_entry(idea, "It opens a socket.", maintainer)
    assert (idea.state, idea.reason) == ("rejected", "It opens a socket.")
    with pytest.raises(IntakeError, match="is rejected, so it cannot be approved"):
        intake.approve_entry(idea, idea.sha, maintainer)
    assert Event.objects.about(idea).count() == 2


def test_an_approved_entry_is_not_rejected_but_can_be_withdrawn(idea: Entry, maintainer: User) -> None:
    (run,) = intake.approve_entry(idea, idea.sha, maintainer)
    with pytest.raises(IntakeError, match="is approved, so it cannot be rejected"):
        intake.reject_entry(idea, "Changed my mind.", maintainer)
    intake.withdraw_entry(idea)
    run.refresh_from_db()
    assert (idea.state, run.state) == ("withdrawn", "cancelled")
    assert run.job
    assert run.job.state == Job.State.CANCELLED


def test_before_the_dataset_is_prepared_an_approved_run_waits(idea: Entry, maintainer: User) -> None:
    Season.objects.update(dataset_hash="")
    idea.track.season.refresh_from_db()
    (run,) = intake.approve_entry(idea, idea.sha, maintainer)
    run.refresh_from_db()
    assert (run.state, run.job) == ("waiting", None)
    assert "dataset is prepared" in run.reason
    Season.objects.update(dataset_hash="d" * 64)
    assert queue_waiting(Season.objects.get()) == 1
    run.refresh_from_db()
    assert run.state == "queued"
