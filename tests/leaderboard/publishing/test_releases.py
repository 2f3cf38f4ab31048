"""Milestones and releases of long runs, and the fine-tuning runs of tracks that follow them."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import IntegrityError
from django.test import Client
from django.utils import timezone

from leaderboard import initial_weights, run_jobs, runs, tasks
from leaderboard.job_handlers import score
from leaderboard.models import Entry, Publication, Run, Track
from leaderboard.publishing import release_finetunes, releases
from leaderboard.run_states import RunError
from scheduler import leases, storage, uploads
from scheduler.models import Checkpoint, Event, Lease, Node
from tests.leaderboard.conftest import create_checkpoint, finish_run
from tests.scheduler.test_claims_race import call_concurrently
from tests.support.node_jobs import lease_job
from trainer import protocol

pytestmark = pytest.mark.sql


@pytest.fixture
def long_run(run: Run, node: Node) -> Run:
    """A training run on a track with a release every 10 percent."""
    type(run.track).objects.filter(pk=run.track_id).update(releases=10)
    lease_job(run.job, node)
    run.refresh_from_db()
    return run


def send_milestone(run: Run, percent: int, step: int, content: bytes = b"bf16 weights") -> None:
    """Send weights in bf16 as a node does."""
    lease = Lease.objects.get(job=run.job)
    Lease.objects.filter(pk=lease.pk).update(state=Lease.State.ACTIVE)
    blobs = {"model.safetensors": storage.store_bytes(content), "state.json": storage.store_bytes(b"{}")}
    lease.uploads.add(*blobs.values())
    files = tuple(storage.build_file_reference(blob, name) for name, blob in blobs.items())
    uploads.record_checkpoint(lease, protocol.Checkpoint(step=step, files=files, milestone=percent))


def list_publications(run: Run) -> list[tuple[str, int]]:
    return list(run.publications.values_list("name", "step"))


def test_milestone_sent_twice_is_stored_once(long_run: Run, client: Client) -> None:
    type(long_run.track).objects.filter(pk=long_run.track_id).update(releases=20)
    send_milestone(long_run, 10, 100)
    send_milestone(long_run, 20, 205)
    send_milestone(long_run, 20, 207, b"after a resume")
    assert list_publications(long_run) == [("10-percent", 100), ("20-percent", 205)]
    assert Event.objects.filter(sentence="Kept: the weights of step 100. 10 % of the budget.").count() == 1
    first, second = long_run.publications.order_by("step")
    assert second.reason == "20 % of the budget."
    assert (first.percent, second.percent) == (10, 20)
    assert not Checkpoint.objects.filter(job=long_run.job).exists(), "bf16 is no checkpoint to resume from"
    file = f"/runs/{long_run.pk}/weights/10-percent/checkpoints/step-00000100/model.safetensors"
    assert b"".join(client.get(file)) == b"bf16 weights"
    create_checkpoint(long_run.job, 250)  # type: ignore[arg-type]  # with run.json
    assert score.queue_release_scores() == 1
    assert long_run.publications.exclude(score_job=None).get() == second, "a milestone is no release"
    ladder_run = Run.objects.get(pk=long_run.pk)
    assert run_jobs.get_milestone_percent(ladder_run) == 10
    ladder_run.purpose = Run.Purpose.LADDER
    assert run_jobs.get_milestone_percent(ladder_run) == 0
    type(long_run.track).objects.filter(pk=long_run.track_id).update(releases=0, milestones=0)
    send_milestone(long_run, 30, 300)
    assert len(list_publications(long_run)) == 2
    assert releases.get_release_progress(Run.objects.get(pk=long_run.pk)) is None


@pytest.mark.parametrize(
    ("fields", "is_kept"),
    [
        ({"state": "failed"}, False),
        ({"state": "cancelled"}, False),
        ({"state": "finished", "bits_per_byte": 1.0, "trust": "disputed"}, False),
        ({"state": "finished", "bits_per_byte": 1.0, "trust": "scored", "purpose": "rewind"}, False),
        ({"state": "finished", "bits_per_byte": 1.0, "trust": "scored"}, True),
        ({"state": "training"}, True),
    ],
)
def test_milestones_are_deleted_two_days_after_an_unranked_run(
    long_run: Run, fields: dict[str, Any], is_kept: bool
) -> None:
    type(long_run.track).objects.filter(pk=long_run.track_id).update(releases=20, is_traced=False)
    send_milestone(long_run, 10, 100)
    send_milestone(long_run, 20, 200)
    end = timezone.now()
    Run.objects.filter(pk=long_run.pk).update(**fields, finished_at=None if fields["state"] == "training" else end)
    assert releases.delete_old_milestones(end + timedelta(days=1)) == 0
    assert releases.delete_old_milestones(end + timedelta(days=3)) == (0 if is_kept else 1)
    assert list_publications(long_run) == ([("10-percent", 100)] if is_kept else []) + [("20-percent", 200)]


def test_finished_run_is_the_last_release(run: Run, node: Node) -> None:
    type(run.track).objects.filter(pk=run.track_id).update(releases=10)
    scored_run = finish_run(run, node)
    assert [publication.name for publication in releases.publish_last_releases()] == ["final"]
    assert releases.publish_last_releases() == []
    progress = releases.get_release_progress(Run.objects.get(pk=scored_run.pk))
    assert (progress.milestones[-1].percent, progress.milestones[-1].publication) == (100, Publication.objects.get())


@pytest.mark.django_db(transaction=True)
def test_concurrent_starts_from_milestone_share_its_checkpoint(long_run: Run) -> None:
    steps = (100, 200, 300)
    for step in steps:
        send_milestone(long_run, step // 10, step)
    for step in steps:
        start = partial(initial_weights.get_checkpoint_at, long_run, step)
        checkpoints = call_concurrently([start] * 4)
        assert len({checkpoint.pk for checkpoint in checkpoints}) == 1
        assert checkpoints[0].blobs.count() == 2


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
