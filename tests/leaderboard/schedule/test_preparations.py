"""Preparation of seasons: started in the admin, run by a worker, resumed after a killed process."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import caches
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from leaderboard import broker, outbox, tasks
from leaderboard.models import OutboxMessage, Season, Track
from leaderboard.schedule import preparations
from leaderboard.schedule.first_season import SetupError
from leaderboard.schedule.preparation_progress import ClaimLostError, PreparationProgress
from scheduler.models import Event

pytestmark = [pytest.mark.processes, pytest.mark.sql, pytest.mark.django_db]
SUITE = {"suite": "blimp_sample", "evaluation_folder": ""}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DAILYTRAIN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def season(small_corpus: str, cache: Path) -> Season:
    return Season.objects.create(name="Season 1", active=False, corpus=small_corpus, tokenizer="bpe:300")


def request_preparation(season: Season) -> OutboxMessage:
    return preparations.request_preparation(season, "mara", ["blimp_sample"])


def claim(message: OutboxMessage) -> OutboxMessage:
    """Return the message as a process that works on it has it."""
    message.state, message.claimed_until = OutboxMessage.State.CLAIMED, timezone.now() + timedelta(minutes=1)
    message.save()
    return message


def test_prepare_button_prepares_season_and_shows_progress(
    maintainer_client: Client,
    track: Track,
    season: Season,
    monkeypatch: pytest.MonkeyPatch,
    django_capture_on_commit_callbacks: Any,
) -> None:
    sent_tasks: list[tuple[str, Any]] = []
    caches["default"].delete(broker.BROKER_DOWN)
    monkeypatch.setattr(broker.settings, "REDIS_URL", "redis://broker:6379")
    monkeypatch.setattr(
        broker.current_app, "send_task", lambda name, arguments, **_: sent_tasks.append((name, arguments))
    )
    address = f"/admin/leaderboard/season/{season.pk}"
    assert "Nothing is prepared yet" in maintainer_client.get(f"{address}/change/").content.decode()
    with django_capture_on_commit_callbacks(execute=True):
        maintainer_client.post(f"{address}/prepare/", SUITE)
    preparation = OutboxMessage.objects.get()
    assert sent_tasks == [("leaderboard.tasks.process_long_message", (preparation.pk,))]
    page = maintainer_client.get(f"{address}/change/").content.decode()
    assert "<strong>Waiting for a worker</strong>" in page
    assert f'data-live="{address}/live/"' in page
    assert 'name="corpus"' not in page
    live = maintainer_client.get(f"{address}/live/").json()
    assert live["wait"] > 0
    assert f'data-revision="{live["revision"]}"' in page
    tasks.process_long_message(preparation.pk)
    preparation.refresh_from_db()
    assert (preparation.state, preparation.payload["actor"]) == ("done", "mara")
    assert preparation.result["message"] == "1 tracks continue in it; 0 runs of its baseline's ladder are requested"
    finished = maintainer_client.get(f"{address}/live/").json()
    assert (finished["wait"], finished["revision"] == live["revision"]) == (0, False)
    assert "1 tracks continue in it" in finished["parts"]["preparation-progress"]
    assert "Prepare and begin" not in maintainer_client.get(f"{address}/change/").content.decode()
    track.refresh_from_db()
    assert track.season == season == Season.objects.current()
    tasks.process_long_message(preparation.pk)
    assert Event.objects.about(season).filter(sentence__startswith="Preparation").count() == 2


def test_cancelled_preparation_stops_process_and_can_be_requested_again(
    maintainer_client: Client, season: Season
) -> None:
    preparation = claim(request_preparation(season))
    progress = PreparationProgress(preparation)
    progress.begin_stage("Tokenizing", 90 << 20, 30 << 20)
    page = maintainer_client.get(f"/admin/leaderboard/season/{season.pk}/live/").json()["parts"]["preparation-progress"]
    assert "<strong>Tokenizing</strong>" in page
    assert "30 MiB of 90 MiB" in " ".join(page.split())
    maintainer_client.post(f"/admin/leaderboard/season/{season.pk}/cancel/")
    with pytest.raises(ClaimLostError):
        progress.begin_stage("Storing the dataset")
    preparation.refresh_from_db()
    assert preparation.result["message"].startswith("Cancelled by mara.")
    page = maintainer_client.post(f"/admin/leaderboard/season/{season.pk}/cancel/", follow=True).content.decode()
    assert "There is nothing to cancel: it has ended." in page
    assert request_preparation(season).state == "pending"


def test_seasons_are_prepared_one_at_a_time(season: Season) -> None:
    preparation = claim(request_preparation(season))
    assert request_preparation(season) == preparation
    other_season = Season.objects.create(name="Season 2", active=False, corpus=season.corpus, tokenizer="bpe:300")
    with pytest.raises(CommandError, match="Another process prepares a season, and a second preparation"):
        call_command("prepare_season", season="Season 2", verbosity=0, stdout=StringIO())
    waiting = request_preparation(other_season)
    outbox.process_message(waiting.pk)
    waiting.refresh_from_db()
    assert (waiting.state, waiting.problem) == ("pending", "Another season is being prepared.")
    past = timezone.now() - timedelta(seconds=1)
    OutboxMessage.objects.update(claimed_until=past, not_before=past)
    tasks.process_due_long_messages()
    assert {message.state for message in OutboxMessage.objects.filter(kind=preparations.KIND)} == {"done"}
    assert Season.objects.filter(pk__in=(season.pk, other_season.pk), active=True).count() == 2


def test_preparation_with_unknown_task_or_folder_is_refused(
    maintainer_client: Client, season: Season, tmp_path: Path
) -> None:
    address = f"/admin/leaderboard/season/{season.pk}/prepare/"
    page = maintainer_client.post(address, {"suite": "mmlu"}, follow=True).content.decode()
    assert "There is no task &#x27;mmlu&#x27; in the suite; known: blimp, " in page
    page = maintainer_client.post(
        address, {**SUITE, "evaluation_folder": str(tmp_path / "none")}, follow=True
    ).content.decode()
    assert "name one with evaluation data, or none" in page
    assert not OutboxMessage.objects.exists()
    with pytest.raises(SetupError, match="There is no folder"):
        preparations.request_preparation(season, "mara", ["blimp_sample"], tmp_path / "none")
