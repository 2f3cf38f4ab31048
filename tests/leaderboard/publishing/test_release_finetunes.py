"""Tracks that follow another track: each new release starts one fine-tuning run from its weights."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError
from django.test import Client

from leaderboard import runs, tasks
from leaderboard.models import Entry, Publication, Run, Track
from leaderboard.publishing import release_finetunes, releases
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
    assert run.job
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
    send_milestone(followed_run, 10, 100)
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
    lease, order = claim_training(capable_node)
    assert order.base is not None
    assert (order.base.name, order.base.checkpoint.step) == (f"run-{followed_run.pk}", 100)
    for file in (order.base.run, *order.base.checkpoint.files):
        assert uploads.get_downloadable_blob(lease, file.sha256).size == file.size


def test_last_release_starts_finetune_from_final_weights(followed_run: Run, follower_track: Track, node: Node) -> None:
    finish_run(followed_run, node)
    tasks.finetune_releases()
    assert not list_finetunes(follower_track), "it is not published yet"
    releases.publish_last_releases()
    tasks.finetune_releases()
    (finetune,) = list_finetunes(follower_track)
    assert (finetune.start_run, finetune.start_checkpoint) == (followed_run, None)
    assert finetune.release is not None
    assert finetune.release.percent == 100


def test_release_before_following_starts_no_finetune(followed_run: Run, follower_track: Track) -> None:
    Track.objects.filter(pk=followed_run.track_id).update(releases=20)
    send_milestone(followed_run, 10, 100)
    send_milestone(followed_run, 20, 200)
    follower_track.followed_track = None
    follower_track.save()
    follower_track.followed_track = followed_run.track
    follower_track.save()
    assert release_finetunes.start_finetunes() == 0
    send_milestone(followed_run, 40, 400)
    assert release_finetunes.start_finetunes() == 1
    (finetune,) = list_finetunes(follower_track)
    assert finetune.release == Publication.objects.get(name="40-percent")


def test_run_finished_before_following_starts_no_finetune(followed_run: Run, follower_track: Track, node: Node) -> None:
    finish_run(followed_run, node)
    follower_track.followed_track = None
    follower_track.save()
    follower_track.followed_track = followed_run.track
    follower_track.save()
    releases.publish_last_releases()
    assert Publication.objects.get().is_final
    assert release_finetunes.start_finetunes() == 0


def test_ladder_run_starts_no_finetune(followed_run: Run, follower_track: Track, node: Node) -> None:
    Run.objects.filter(pk=followed_run.pk).update(purpose=Run.Purpose.LADDER)
    finish_run(followed_run, node)
    releases.publish_last_releases()
    assert release_finetunes.start_finetunes() == 0


def test_waiting_finetune_is_queued_by_next_task(followed_run: Run, follower_track: Track) -> None:
    send_milestone(followed_run, 10, 100)
    (release,) = release_finetunes.list_new_releases(follower_track)
    finetune = release_finetunes.make_finetune(follower_track, release)
    assert finetune is not None
    assert finetune.state == Run.State.WAITING
    assert release_finetunes.start_finetunes() == 1
    assert release_finetunes.start_finetunes() == 0


def test_finetune_of_withdrawn_entry_fails_with_reason(followed_run: Run, follower_track: Track) -> None:
    send_milestone(followed_run, 10, 100)
    Entry.objects.update(state=Entry.State.WITHDRAWN)
    assert release_finetunes.start_finetunes() == 0
    (finetune,) = list_finetunes(follower_track)
    assert (finetune.state, "only approved entries run" in finetune.reason) == (Run.State.FAILED, True)
    assert release_finetunes.start_finetunes() == 0
    assert len(list_finetunes(follower_track)) == 1


def test_release_without_run_json_starts_no_finetune_yet(followed_run: Run, follower_track: Track) -> None:
    assert followed_run.job
    followed_run.job.files.all().delete()
    send_milestone(followed_run, 10, 100)
    assert release_finetunes.start_finetunes() == 0
    create_checkpoint(followed_run.job, 60)
    assert release_finetunes.start_finetunes() == 1


@pytest.mark.django_db(transaction=True)
def test_concurrent_workers_start_one_finetune_per_release(followed_run: Run, follower_track: Track) -> None:
    send_milestone(followed_run, 10, 100)
    call_concurrently([release_finetunes.start_finetunes] * 4)
    (finetune,) = list_finetunes(follower_track)
    assert finetune.state == Run.State.QUEUED


def test_database_rejects_second_finetune_of_a_release(followed_run: Run, follower_track: Track) -> None:
    send_milestone(followed_run, 10, 100)
    release_finetunes.start_finetunes()
    (finetune,) = list_finetunes(follower_track)
    with pytest.raises(IntegrityError):
        Run.objects.create(
            entry=finetune.entry,
            track=follower_track,
            season=finetune.season,
            seed=1,
            budget="1steps",
            release=finetune.release,
        )


def test_entry_on_follower_track_cannot_train_from_scratch(followed_run: Run, follower_track: Track) -> None:
    run = runs.make_run(followed_run.entry, follower_track)
    with pytest.raises(RunError, match="fine-tunes the releases of another track only"):
        runs.queue_run(run)


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


def test_track_and_run_pages_show_the_finetune(followed_run: Run, follower_track: Track, client: Client) -> None:
    page = " ".join(client.get("/tracks/tuned/").content.decode().split())
    assert "No release has come since this track follows." in page
    assert "The board</h2>" not in page
    send_milestone(followed_run, 10, 100)
    tasks.finetune_releases()
    (finetune,) = list_finetunes(follower_track)
    page = client.get("/tracks/tuned/").content.decode()
    assert f"fine-tune of run {followed_run.pk}" in page
    assert f'<a href="/runs/{followed_run.pk}/">run {followed_run.pk}</a>, {followed_run.entry.title}' in page
    assert client.get(f"/runs/{finetune.pk}/").status_code == 200


def test_finetune_has_no_rank_and_track_can_be_saved(followed_run: Run, follower_track: Track, node: Node) -> None:
    send_milestone(followed_run, 10, 100)
    release_finetunes.start_finetunes()
    (finetune,) = list_finetunes(follower_track)
    finish_run(finetune, node)
    assert not Run.objects.on_board(follower_track).exists()
    Track.objects.get(pk=follower_track.pk).full_clean()
