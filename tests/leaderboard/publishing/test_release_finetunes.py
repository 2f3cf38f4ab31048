"""Tracks that follow another track: each new release starts one fine-tuning run from its weights."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError

from leaderboard import runs, tasks
from leaderboard.models import Entry, Run, Track
from leaderboard.publishing import release_finetunes
from leaderboard.run_states import RunError
from scheduler import leases, uploads
from scheduler.models import Lease, Node
from tests.leaderboard.conftest import create_checkpoint, finish_run
from tests.leaderboard.publishing.test_releases import send_milestone
from tests.scheduler.test_claims_race import call_concurrently
from tests.support.node_jobs import lease_job
from trainer import protocol


@pytest.fixture
def followed_run(run: Run, node: Node) -> Run:
    """A run that trains, on a track with a release every 10 percent; its node has sent run.json."""
    Track.objects.filter(pk=run.track_id).update(releases=10)
    lease_job(run.job, node)
    create_checkpoint(run.job, 50)
    return Run.objects.get(pk=run.pk)


@pytest.fixture
def follower_track(followed_run: Run) -> Track:
    track = Track.objects.get(pk=followed_run.track_id)
    track.pk, track.slug, track.name, track.is_default, track.nightly = None, "tuned", "Tuned", False, False
    track.ladder, track.monthly, track.releases, track.is_traced = {}, 0, 0, False
    track.followed_track = followed_run.track
    track.full_clean()
    track.save()
    return track


def list_finetunes(track: Track) -> list[Run]:
    return list(Run.objects.filter(track=track).order_by("pk"))


def claim_training(node: Node) -> tuple[Lease, protocol.TrainOrder]:
    while claimed := leases.claim_job(node):
        order = protocol.JobSpec.model_validate_json(claimed.spec).order
        if isinstance(order, protocol.TrainOrder) and order.base is not None:
            return Lease.objects.get(pk=claimed.lease), order
    raise AssertionError("no fine-tuning job is queued")


def test_each_release_starts_one_finetune_from_its_weights(
    followed_run: Run, follower_track: Track, capable_node: Node
) -> None:
    with pytest.raises(RunError, match="fine-tunes the releases of another track only"):
        runs.queue_run(runs.make_run(followed_run.entry, follower_track))
    Run.objects.filter(track=follower_track).delete()
    run_json = followed_run.job.files.get()
    run_json.delete()
    send_milestone(followed_run, 10, 100)
    tasks.finetune_releases()
    assert list_finetunes(follower_track) == [], "run.json is missing"
    run_json.save()
    for _ in range(2):
        tasks.finetune_releases()
    send_milestone(followed_run, 20, 200)
    tasks.finetune_releases()
    first, second = list_finetunes(follower_track)
    assert [run.release.percent for run in (first, second) if run.release] == [10, 20]
    assert (first.state, first.purpose, first.entry, first.budget) == (
        Run.State.QUEUED, Run.Purpose.FINETUNE, followed_run.entry, follower_track.budget,
    )  # fmt: skip
    finish_run(followed_run, capable_node)
    assert not Run.objects.on_board(follower_track).exists()
    lease, order = claim_training(capable_node)
    assert (order.base.name, order.base.checkpoint.step) == (f"run-{followed_run.pk}", 100)
    for file in (order.base.run, *order.base.checkpoint.files):
        assert uploads.get_downloadable_blob(lease, file.sha256).size == file.size


def test_finetune_of_withdrawn_entry_fails_with_reason(followed_run: Run, follower_track: Track) -> None:
    send_milestone(followed_run, 10, 100)
    Entry.objects.update(state=Entry.State.WITHDRAWN)
    assert release_finetunes.start_finetunes() == 0
    (finetune,) = list_finetunes(follower_track)
    assert (finetune.state, "only approved entries run" in finetune.reason) == (Run.State.FAILED, True)
    assert release_finetunes.start_finetunes() == 0
    assert len(list_finetunes(follower_track)) == 1


@pytest.mark.django_db(transaction=True)
def test_concurrent_workers_start_one_finetune_per_release(followed_run: Run, follower_track: Track) -> None:
    send_milestone(followed_run, 10, 100)
    call_concurrently([release_finetunes.start_finetunes] * 4)
    (finetune,) = list_finetunes(follower_track)
    assert finetune.state == Run.State.QUEUED
    with pytest.raises(IntegrityError):
        Run.objects.create(**{**Run.objects.filter(pk=finetune.pk).values().get(), "id": None, "job_id": None})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"nightly": True}, "no ladder, trial, nightly or monthly run"),
        ({"is_traced": True}, "is not traced"),
        ({"ladder": {"rungs": [0.5, 1], "seeds": 1}}, "no ladder"),
    ],
)
def test_follower_track_with_other_run_kinds_is_refused(
    follower_track: Track, fields: dict[str, Any], message: str
) -> None:
    for name, value in fields.items():
        setattr(follower_track, name, value)
    with pytest.raises(ValidationError, match=message):
        follower_track.clean()


def test_following_track_without_releases_is_refused(followed_run: Run, follower_track: Track) -> None:
    other_track = Track.objects.get(pk=follower_track.pk)
    other_track.pk, other_track.slug, other_track.followed_track = None, "other", follower_track
    with pytest.raises(ValidationError, match="fine-tunes releases itself"):
        other_track.clean()
    Track.objects.filter(pk=followed_run.track_id).update(releases=0)
    with pytest.raises(ValidationError, match="has no releases"):
        Track.objects.get(pk=follower_track.pk).clean()
