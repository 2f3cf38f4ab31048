"""A season's secret: in the orders of scores, nowhere else before the season has ended, then public."""

from __future__ import annotations

import hashlib
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.test import Client
from django.utils import timezone

from leaderboard import tasks
from leaderboard.job_handlers.score import build_score_order
from leaderboard.models import Run, Season, Track
from leaderboard.models.seasons import MIN_RESERVED_TOKENS
from scheduler.models import Event, Lease, Node
from tests.leaderboard.conftest import finish_run
from trainer.protocol import ScoreOrder, encode_message

pytestmark = pytest.mark.django_db
SECRET = "5ec2e7" + "0" * 58
COMMITMENT = hashlib.sha256(bytes.fromhex(SECRET)).hexdigest()


@pytest.fixture
def scored_run(run: Run, node: Node) -> Run:
    Season.objects.filter(pk=run.season_id).update(test_secret=SECRET, reserved_tokens=MIN_RESERVED_TOKENS)
    return finish_run(Run.objects.get(pk=run.pk), node)


def end_season(season: Season) -> Season:
    """Begin another season, in which all tracks continue."""
    later = Season.objects.create(name="Later", corpus="python-docs", started_at=timezone.now() + timedelta(days=1))
    Track.objects.filter(season=season).update(season=later)
    return later


def build_order(run: Run) -> ScoreOrder:
    run = Run.objects.get(pk=run.pk)
    return build_score_order(run, run.checkpoint.manifest, ())


def test_secret_is_shown_nowhere_before_the_season_has_ended(client: Client, scored_run: Run, maintainer: User) -> None:
    lease, season = Lease.objects.get(job=scored_run.score_job), Season.objects.get(pk=scored_run.season_id)
    lease.spec = encode_message(build_order(scored_run))
    assert SECRET in lease.spec
    lease.save()
    client.force_login(User.objects.create_superuser("root"))
    addresses = [
        scored_run.get_absolute_url(),
        scored_run.track.get_absolute_url(),
        "/api/v1/seasons",
        f"/api/v1/tracks/{scored_run.track.slug}",
        f"/api/v1/runs/{scored_run.pk}",
        f"/admin/leaderboard/season/{season.pk}/change/",
        f"/admin/scheduler/lease/{lease.pk}/change/",
        f"/admin/scheduler/job/{lease.job_id}/change/",
    ]
    assert scored_run.score_job.needs_trusted
    other = Season.objects.create(name="Other", corpus="python-docs")
    assert len(other.test_secret) == 64
    for address in addresses:
        page = client.get(address)
        assert page.status_code == 200, address
        assert SECRET not in page.content.decode(), address
    assert COMMITMENT in client.get(scored_run.get_absolute_url()).content.decode()
    assert not Event.objects.filter(sentence__contains=SECRET).exists()
    assert client.get("/api/v1/seasons").json()[0]["secret"] == ""


def test_secret_of_an_ended_season_is_published_once(client: Client, scored_run: Run) -> None:
    season = Season.objects.get(pk=scored_run.season_id)
    tasks.publish_datasets()
    assert not Season.objects.get(pk=season.pk).published_secret, "the season goes on"
    end_season(season)
    for _ in range(2):
        tasks.publish_datasets()
    shown = {row["name"]: row for row in client.get("/api/v1/seasons").json()}
    assert shown[season.name]["secret"] == SECRET
    assert shown[season.name]["commitment"] == COMMITMENT
    assert shown["Later"]["secret"] == ""
    assert SECRET in client.get(scored_run.get_absolute_url()).content.decode()
    assert Event.objects.filter(sentence__contains=SECRET).count() == 1


def test_secret_is_public_after_the_last_run_and_its_track_cannot_return(scored_run: Run) -> None:
    track = Track.objects.get(pk=scored_run.track_id)
    season = track.season
    end_season(season)
    for state in Run.UNFINISHED:
        Run.objects.filter(pk=scored_run.pk).update(state=state)
        tasks.publish_datasets()
        assert not Season.objects.get(pk=season.pk).published_secret
    Run.objects.filter(pk=scored_run.pk).update(state=Run.State.FINISHED)
    tasks.publish_datasets()
    track.season = Season.objects.get(pk=season.pk)
    with pytest.raises(ValidationError, match="its test text is public"):
        track.clean()
