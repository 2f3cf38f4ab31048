"""Tracks with a start run: their runs start from its weights, which retention keeps."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO

import pytest
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.test import Client
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


def test_run_on_other_track_starts_from_scratch(base_run: Run, proposed_entry: Entry, capable_node: Node) -> None:
    runs.queue_run(runs.make_run(proposed_entry, base_run.track))
    assert claim_training(capable_node)[1].base is None


def test_changed_start_run_does_not_affect_existing_run(finetune_run: Run, capable_node: Node) -> None:
    Track.objects.filter(slug="tune").update(start_run=None)
    assert claim_training(capable_node)[1].base is not None


def test_replay_of_finetune_has_same_base_weights(base_run: Run, finetune_run: Run, capable_node: Node) -> None:
    finish_run(finetune_run, capable_node)
    replay = replays.request_replay(finetune_run, actor="mara")
    assert replay.job
    order = replays.ReplayHandler().build_order(replay.job, None)
    assert order.base is not None
    assert order.base.name == f"run-{base_run.pk}"


def test_finetune_page_and_json_name_the_base_run(client: Client, base_run: Run, finetune_run: Run) -> None:
    page = client.get(finetune_run.get_absolute_url()).content.decode()
    assert f'<a href="{base_run.get_absolute_url()}">run {base_run.pk}</a>, {base_run.entry.title}' in page
    assert f"--from run-{base_run.pk}" in page
    assert client.get(f"/api/v1/runs/{finetune_run.pk}").json()["start_run"] == base_run.pk
    assert "Starts from" not in client.get(base_run.get_absolute_url()).content.decode()


def test_retention_keeps_weights_of_start_run(base_run: Run, finetune_run: Run) -> None:
    retention.delete_expired(timezone.now() + timedelta(days=365))
    assert base_run.job
    assert [checkpoint.step for checkpoint in Checkpoint.objects.filter(job=base_run.job)] == [20, 30]
    assert finetune_run.start_run
    assert finetune_run.start_run.checkpoint
    assert finetune_run.start_run.checkpoint.blobs.count() == 1


def test_track_with_unfinished_start_run_is_refused(run: Run) -> None:
    track = run.track
    track.start_run = run
    with pytest.raises(ValidationError, match="has not been trained to its end"):
        track.clean()


def test_track_with_runs_cannot_change_start_run(finetune_run: Run) -> None:
    track = finetune_run.track
    track.clean()
    track.start_run = None
    with pytest.raises(ValidationError, match="make another track"):
        track.clean()


def test_create_track_command_with_start_sets_start_run(base_run: Run) -> None:
    call_command("create_track", "tune-1b5-2x24gb", "--start", str(base_run.pk), stdout=StringIO())
    assert Track.objects.get(slug="tune-1b5-2x24gb").start_run == base_run
    with pytest.raises(CommandError, match="There is no run 987654"):
        call_command("create_track", "tune-1b5-2x24gb", "--slug", "x", "--start", "987654")
