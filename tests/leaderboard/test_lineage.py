"""Rewound runs: start checkpoint, order for the node, and the lineage on the page and in the API."""

from __future__ import annotations

from io import StringIO

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from leaderboard import actions, runs
from leaderboard.job_handlers import replays
from leaderboard.models import Entry, Run, Track
from leaderboard.run_states import RunError
from scheduler import leases, uploads
from scheduler.job_kinds import get_job_kind
from scheduler.models import Checkpoint, Node
from tests.leaderboard.conftest import build_train_row, create_checkpoint, finish_run, publish_release
from tests.leaderboard.publishing.test_releases import claim_training
from tests.support.node_jobs import lease_job, requeue_job
from trainer import protocol


@pytest.fixture
def original_run(run: Run, capable_node: Node) -> Run:
    """A run at step 16 of 20 with checkpoints of steps 8 and 16, whose lease has ended."""
    lease = lease_job(run.job, capable_node)
    get_job_kind(run.job).handle_metrics(run.job, [build_train_row(step, 4 - step / 10) for step in range(1, 17)])
    create_checkpoint(run.job, 8)
    create_checkpoint(run.job, 16)
    requeue_job(lease)
    run.refresh_from_db()
    return run


def test_rewound_run_has_remaining_budget_and_start_checkpoint(original_run: Run, capable_node: Node) -> None:
    new_run = runs.rewind_run(original_run, 8, actor="mara")
    assert (new_run.entry, new_run.budget, new_run.purpose) == (original_run.entry, "12steps", Run.Purpose.REWIND)
    assert new_run.start_run == original_run
    assert new_run.start_checkpoint == Checkpoint.objects.get(job=original_run.job, step=8)
    runs.cancel_run(original_run, "Cancelled by mara.", "mara")
    claimed = leases.claim_job(capable_node)
    order = protocol.JobSpec.model_validate_json(claimed.spec).order
    assert isinstance(order, protocol.TrainOrder)
    assert (order.base.name, order.base.checkpoint.step) == (f"run-{original_run.pk}", 8)


def test_rewind_to_release_without_checkpoint_files_restores_them(original_run: Run) -> None:
    checkpoint = Checkpoint.objects.get(job=original_run.job, step=8)
    publish_release(original_run, checkpoint, "40-percent")
    checkpoint.blobs.clear()
    Checkpoint.objects.filter(pk=checkpoint.pk).update(files_deleted_at=timezone.now())
    new_run = runs.rewind_run(original_run, 8, actor="mara")
    assert (new_run.start_checkpoint.step, new_run.start_checkpoint.from_milestone) == (8, True)
    assert original_run.job.checkpoints.uploaded().get(step=8) == checkpoint
    assert new_run.start_checkpoint.files_deleted_at is None
    assert new_run.start_checkpoint.blobs.count() == 1


def test_second_rewind_to_a_step_waits_for_the_first(original_run: Run) -> None:
    first = runs.rewind_run(original_run, 8, actor="mara")
    with pytest.raises(RunError, match=f"Run {first.pk} starts from step 8 too"):
        runs.rewind_run(original_run, 8, actor="mara")
    runs.rewind_run(original_run, 16, actor="mara")
    runs.cancel_run(first, "Cancelled by mara.", "mara")
    runs.rewind_run(original_run, 8, actor="mara")
    assert Run.objects.filter(purpose=Run.Purpose.REWIND).count() == 3


def test_rewind_action_is_for_maintainers_only(original_run: Run, maintainer: User, client: Client) -> None:
    author = User.objects.create_user("ada")
    Entry.objects.filter(pk=original_run.entry_id).update(requested_by=author)
    original_run.refresh_from_db()
    allowed = actions.list_run_actions(author, original_run, is_maintainer=False)
    assert "rewind" not in [action.name for action in allowed]
    client.force_login(maintainer)
    page = client.get(original_run.get_absolute_url()).content.decode()
    assert "<option>16</option><option>8</option>" in page
    response = client.post(f"{original_run.get_absolute_url()}ask/rewind/", {"step": "8"}, follow=True)
    assert "This new run resumes from there" in response.content.decode()
    assert Run.objects.get(purpose=Run.Purpose.REWIND).start_run == original_run
    response = client.post(f"{original_run.get_absolute_url()}ask/rewind/", {"step": "x"}, follow=True)
    assert "choose a step" in response.content.decode()


def test_track_can_start_from_checkpoint_of_training_run(original_run: Run) -> None:
    call_command("create_track", "tune-1b5-2x24gb", "--start", str(original_run.pk), "--step", "8", stdout=StringIO())
    track = Track.objects.get(slug="tune-1b5-2x24gb")
    assert (track.start_run, track.start_checkpoint.step) == (original_run, 8)
    new_run = runs.make_run(original_run.entry, track)
    assert new_run.start_checkpoint == track.start_checkpoint
    track.clean()
    with pytest.raises(CommandError, match="no checkpoint of step 9"):
        call_command("create_track", "ci-16gb", "--start", str(original_run.pk), "--step", "9", stdout=StringIO())
    track.start_run = None
    with pytest.raises(ValidationError, match="belongs to a run"):
        track.clean()


@pytest.fixture
def base_run(run: Run, capable_node: Node) -> Run:
    """A finished run whose final checkpoint is of step 20, with a later checkpoint of step 30."""
    finish_run(run, capable_node)
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


def test_train_order_has_base_weights_and_track_with_runs_keeps_its_start(
    base_run: Run, finetune_run: Run, capable_node: Node
) -> None:
    lease, order = claim_training(capable_node)
    assert (order.base.name, order.base.checkpoint.step) == (f"run-{base_run.pk}", 20)
    for file in (order.base.run, *order.base.checkpoint.files):
        assert uploads.get_downloadable_blob(lease, file.sha256).size == file.size
    assert "from" not in order.config
    finish_run(finetune_run, capable_node)
    replay = replays.request_replay(finetune_run, actor="mara")
    assert replays.ReplayHandler().build_order(replay.job, None).base == order.base
    track = finetune_run.track
    track.clean()
    track.start_run = None
    with pytest.raises(ValidationError, match="make another track"):
        track.clean()
