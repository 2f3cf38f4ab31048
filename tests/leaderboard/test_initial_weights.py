"""A track names a run; its runs start from that run's weights, which stay, and say so."""

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
from tests.leaderboard.conftest import finish, upload
from trainer import protocol


@pytest.fixture
def base(run: Run, able: Node) -> Run:
    """A finished run, whose last checkpoint is of step 20, and one that came after it was over."""
    finish(run, able)
    assert run.job
    upload(run.job, 30)
    return run


@pytest.fixture
def tuned(base: Run, idea: Entry) -> Run:
    """A queued run on the track, which now starts from the other one."""
    tune = Track.objects.get()
    tune.pk, tune.slug, tune.is_default, tune.nightly, tune.start_run = None, "tune", False, False, base
    tune.full_clean()
    tune.save()
    made = runs.make_run(idea, tune)
    runs.queue_run(made)
    return made


def claim(node: Node) -> tuple[Lease, protocol.TrainOrder]:
    while given := leases.claim_job(node):
        order = protocol.JobSpec.model_validate_json(given.spec).order
        if isinstance(order, protocol.TrainOrder):
            return Lease.objects.get(pk=given.lease), order
    raise AssertionError("no training waits")


def test_the_order_carries_what_the_run_starts_from_and_its_node_may_fetch_it(
    base: Run, tuned: Run, able: Node
) -> None:
    lease, order = claim(able)
    assert order.base is not None
    assert (order.base.name, order.base.checkpoint.step) == (f"run-{base.pk}", 20)
    for file in (order.base.run, *order.base.checkpoint.files):
        assert uploads.get_downloadable_blob(lease, file.sha256).size == file.size
    assert "from" not in order.config


def test_a_run_on_any_other_track_starts_from_scratch(base: Run, idea: Entry, able: Node) -> None:
    runs.queue_run(runs.make_run(idea, base.track))
    assert claim(able)[1].base is None


def test_another_start_later_changes_nothing_for_a_run_that_has_one(tuned: Run, able: Node) -> None:
    Track.objects.filter(slug="tune").update(start_run=None)
    assert claim(able)[1].base is not None


def test_a_replay_starts_from_the_same_weights(base: Run, tuned: Run, able: Node) -> None:
    finish(tuned, able)
    replay = replays.request_replay(tuned, actor="mara")
    assert replay.job
    order = replays.ReplayHandler().build_order(replay.job, None)
    assert order.base is not None
    assert order.base.name == f"run-{base.pk}"


def test_its_page_and_the_api_say_whose_weights_they_were(client: Client, base: Run, tuned: Run) -> None:
    page = client.get(tuned.get_absolute_url()).content.decode()
    assert f'<a href="{base.get_absolute_url()}">run {base.pk}</a>, {base.entry.title}' in page
    assert f"--from run-{base.pk}" in page
    assert client.get(f"/api/v1/runs/{tuned.pk}").json()["start_run"] == base.pk
    assert "Starts from" not in client.get(base.get_absolute_url()).content.decode()


def test_the_weights_are_kept_for_as_long_as_a_track_names_them(base: Run, tuned: Run) -> None:
    retention.delete_expired(timezone.now() + timedelta(days=365))
    assert base.job
    assert [checkpoint.step for checkpoint in Checkpoint.objects.filter(job=base.job)] == [20, 30]
    assert tuned.start_run
    assert tuned.start_run.checkpoint
    assert tuned.start_run.checkpoint.blobs.count() == 1


def test_nothing_starts_from_a_run_that_has_not_arrived(run: Run) -> None:
    track = run.track
    track.start_run = run
    with pytest.raises(ValidationError, match="has not been trained to its end"):
        track.clean()


def test_a_track_keeps_what_its_runs_started_from(tuned: Run) -> None:
    track = tuned.track
    track.clean()
    track.start_run = None
    with pytest.raises(ValidationError, match="make another track"):
        track.clean()


def test_a_track_for_fine_tunes_is_made_with_a_run_to_start_from(base: Run) -> None:
    call_command("create_track", "tune-1b5-2x24gb", "--start", str(base.pk), stdout=StringIO())
    assert Track.objects.get(slug="tune-1b5-2x24gb").start_run == base
    with pytest.raises(CommandError, match="There is no run 987654"):
        call_command("create_track", "tune-1b5-2x24gb", "--slug", "x", "--start", "987654")
