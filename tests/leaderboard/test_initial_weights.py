"""Tracks with a start run: their runs start from its weights, which retention keeps."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone

from leaderboard import runs
from leaderboard.job_handlers import replays
from leaderboard.models import Entry, Run, Track
from scheduler import leases, retention, uploads
from scheduler.models import Checkpoint, Lease, Node
from tests.leaderboard.conftest import create_checkpoint, finish_run
from trainer import protocol


@pytest.fixture
def base_run(run: Run, capable_node: Node) -> Run:
    """A finished run whose final checkpoint is of step 20, with a later checkpoint of step 30."""
    finish_run(run, capable_node)
    assert run.job
    create_checkpoint(run.job, 30)
    return run


@pytest.fixture
def finetune_run(base_run: Run, proposed_entry: Entry) -> Run:
    """A queued run on a track that starts from the base run."""
    track = Track.objects.get()
    track.pk, track.slug, track.is_default, track.nightly, track.start_run = None, "tune", False, False, base_run
    track.full_clean()
    track.save()
    run = runs.make_run(proposed_entry, track)
    runs.queue_run(run)
    return run


def claim_training(node: Node) -> tuple[Lease, protocol.TrainOrder]:
    while claimed := leases.claim_job(node):
        order = protocol.JobSpec.model_validate_json(claimed.spec).order
        if isinstance(order, protocol.TrainOrder):
            return Lease.objects.get(pk=claimed.lease), order
    raise AssertionError("no training job is queued")


def test_train_order_has_base_weights_that_node_may_download(
    base_run: Run, finetune_run: Run, capable_node: Node
) -> None:
    lease, order = claim_training(capable_node)
    assert order.base is not None
    assert (order.base.name, order.base.checkpoint.step) == (f"run-{base_run.pk}", 20)
    for file in (order.base.run, *order.base.checkpoint.files):
        assert uploads.get_downloadable_blob(lease, file.sha256).size == file.size
    assert "from" not in order.config


def test_replay_of_finetune_has_same_base_weights(base_run: Run, finetune_run: Run, capable_node: Node) -> None:
    finish_run(finetune_run, capable_node)
    replay = replays.request_replay(finetune_run, actor="mara")
    assert replay.job
    order = replays.ReplayHandler().build_order(replay.job, None)
    assert order.base is not None
    assert order.base.name == f"run-{base_run.pk}"


def test_retention_keeps_weights_of_start_run(base_run: Run, finetune_run: Run) -> None:
    retention.delete_expired(timezone.now() + timedelta(days=365))
    assert base_run.job
    assert [checkpoint.step for checkpoint in Checkpoint.objects.filter(job=base_run.job)] == [20, 30]
    assert finetune_run.start_run
    assert finetune_run.start_run.checkpoint
    assert finetune_run.start_run.checkpoint.blobs.count() == 1


def test_track_with_runs_cannot_change_start_run(finetune_run: Run) -> None:
    track = finetune_run.track
    track.clean()
    track.start_run = None
    with pytest.raises(ValidationError, match="make another track"):
        track.clean()
