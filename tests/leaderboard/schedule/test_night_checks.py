"""Checks of the next night: each one missing and ok; the command, the admin page and the calendar."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import time
from io import StringIO

import pytest
from celery import Celery
from celery.app.control import Control
from django.contrib.auth.models import User
from django.core.files.storage import default_storage
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone
from django_celery_beat.models import PeriodicTask

from dailytrain import schedule
from dailytrain.celery import app
from leaderboard.models import Entry, Season, SeasonFile, Track
from leaderboard.schedule import evaluation_data, night_checks
from leaderboard.schedule.night_checks import check_next_night
from leaderboard.schedule.track_templates import TEMPLATES
from scheduler import signing, storage
from scheduler.models import Node
from tests.support import scene

pytestmark = [pytest.mark.processes, pytest.mark.django_db]


def find_check(track: Track, name: str) -> tuple[str, str]:
    """Return state and advice of a check."""
    reloaded_track = Track.objects.select_related("season__baseline").get(pk=track.pk)
    (check,) = (check for check in check_next_night(reloaded_track, timezone.now()) if check.name == name)
    return check.state, check.advice


@pytest.fixture
def beat_schedule(db: None) -> None:
    schedule.install()
    PeriodicTask.objects.update(last_run_at=timezone.now())


@pytest.fixture
def broker(redis_url: str) -> Iterator[Celery]:
    """A Celery app on the tests' Redis; it replaces the site's app, which keeps its own connections."""
    yield Celery("tests", broker=redis_url)
    app.set_current()


@pytest.fixture
def ready_track(beat_schedule: None, track: Track, capable_node: Node, monkeypatch: pytest.MonkeyPatch) -> Track:
    """A track whose next night passes all checks."""
    monkeypatch.setattr(Control, "ping", lambda *_, **options: [{"celery@here": {"ok": "pong"}}])
    signing.get_public_key()
    return track


# --- each check ------------------------------------------------------------------------------------------------------


def test_schedule_check_needs_nightly_track_and_enabled_task(beat_schedule: None, track: Track) -> None:
    PeriodicTask.objects.filter(task="leaderboard.tasks.nightly").update(enabled=False)
    assert find_check(track, "Schedule")[0] == "missing"
    PeriodicTask.objects.update(enabled=True)
    Track.objects.update(nightly=False)
    assert "Mark it as nightly" in find_check(track, "Schedule")[1]
    Track.objects.update(nightly=True)
    Season.objects.update(active=False)
    assert "is not active" in find_check(track, "Schedule")[1]
    Season.objects.update(active=True)
    assert find_check(track, "Schedule")[0] == "ok"


def test_season_check_without_dataset_is_missing(track: Track) -> None:
    Season.objects.update(dataset_hash="")
    assert find_check(track, "Season") == (
        "missing",
        "The dataset of Season 0 is not prepared. Run manage.py prepare_season --season 'Season 0'.",
    )
    Season.objects.update(dataset_hash="d" * 64)
    assert find_check(track, "Season")[0] == "cannot tell", "nodes may prepare it themselves"
    shard = storage.store_bytes(b"2 bytes a token")
    SeasonFile.objects.create(season=track.season, kind="dataset", path="train/00000.bin", blob=shard)
    assert find_check(track, "Season")[1].startswith("The storage has only a part of Season 0")
    manifest = storage.store_bytes(b"{}")
    SeasonFile.objects.create(season=track.season, kind="dataset", path="manifest.json", blob=manifest)
    assert find_check(track, "Season")[0] == "ok"
    default_storage.delete(shard.name)
    assert find_check(track, "Season")[1].startswith("The storage lacks 1 files of Season 0, first train/00000.bin.")


def test_baseline_check_needs_ladder_and_approved_baseline(track: Track) -> None:
    assert "has no ladder" in find_check(track, "Baseline and ladder")[1]
    Track.objects.update(ladder={"rungs": [1], "seeds": 1}, expected_seconds=7200)
    assert "has no baseline" in find_check(track, "Baseline and ladder")[1]
    baseline = scene.create_entry(track, "main", state=Entry.State.WITHDRAWN)
    Season.objects.update(baseline=baseline)
    assert "is withdrawn. Choose or approve one" in find_check(track, "Baseline and ladder")[1]
    Entry.objects.update(state=Entry.State.APPROVED)
    assert find_check(track, "Baseline and ladder") == ("ok", "The baseline of Season 0 is main.")


def test_hours_check_compares_lending_hours_with_the_night(
    beat_schedule: None, track: Track, capable_node: Node
) -> None:
    Track.objects.update(expected_seconds=6 * 3600)
    Node.objects.update(max_hours=2)
    assert "is lent for 2.0 h at most, and the night takes 6.0 h" in find_check(track, "Node")[1]
    Node.objects.update(max_hours=None, available=Node.Available.WINDOWS)
    for weekday in range(7):
        capable_node.windows.create(weekday=weekday, start=time(18), end=time(22))
    assert "is lent for 2.0 h" in find_check(track, "Node")[1], "the night is due at 20:00"
    capable_node.windows.update(end=time(6))
    assert find_check(track, "Node")[0] == "ok"


def use_scorer(*gpus: str) -> None:
    details = [{"name": gpu, "memory_bytes": 80 * 10**9} for gpu in gpus]
    hardware = {"memory_bytes": 2**36, "disk_free_bytes": 2**40, "gpus": gpus, "gpu_details": details}
    Node.objects.update(trusted=True, hardware=hardware)


def test_scoring_time_check_names_scorers_that_are_too_slow(track: Track, capable_node: Node) -> None:
    assert find_check(track, "Scoring time")[0] == "ok"
    template = {name: TEMPLATES["night-h100"][name] for name in ("needs_labels", "config", "suite", "suite_limit")}
    Track.objects.update(**template)
    for gpus, state, advice in (
        (["NVIDIA H100 80GB HBM3"], "ok", "Scoring takes about 0.9 h, computed. The limit is 12.5 h."),
        (["Tesla T4"], "missing", f"Too slow to score the night: {capable_node.name} (Tesla T4) 16."),
        (["Unheard-of"], "cannot tell", f"The speed of {capable_node.name} (Unheard-of) is not known."),
        ([], "missing", f"Too slow to score the night: {capable_node.name} (CPU) 132"),
    ):
        use_scorer(*gpus)
        check = find_check(track, "Scoring time")
        assert (check[0], check[1][: len(advice)]) == (state, advice)
    Node.objects.update(trusted=False)
    assert find_check(track, "Scoring time")[0] == "cannot tell"


def test_suite_check_lists_tasks_without_stored_data(track: Track, node: Node) -> None:
    Track.objects.update(suite=[])
    assert "no lm-eval tasks" in find_check(track, "Evaluation data")[1]
    Track.objects.update(suite=["blimp_sample", "hellaswag"])
    state, advice = find_check(track, "Evaluation data")
    assert state == "missing"
    assert advice.startswith("Season 0 has no evaluation data of blimp_sample, hellaswag. Run manage.py prepare_season")
    Track.objects.update(suite=["blimp_sample"])
    evaluation_data.store_evaluation_data(track.season, ["blimp_sample"])
    assert find_check(track, "Evaluation data") == ("ok", "Season 0 has the data of blimp_sample.")


# --- command, page, calendar -----------------------------------------------------------------------------------------


def test_check_night_command_lists_checks_and_fails_without_scorer_or_track(ready_track: Track) -> None:
    output = StringIO()
    call_command("check_night", "small", stdout=output)
    lines = output.getvalue().splitlines()
    assert lines[:1] == ["Small"]
    assert lines[1].startswith("ok                  Schedule")
    assert len(lines) == len(night_checks.CHECKS) + 2
    assert lines[-1] == "Nothing that the night needs is missing."
    Node.objects.update(trusted=False)
    with pytest.raises(CommandError, match=r"^The night would fail\. small: Trusted scorer\.$") as failure:
        call_command("check_night", stdout=output)
    assert failure.value.returncode == 1
    assert "missing             Trusted scorer" in output.getvalue()
    Track.objects.update(nightly=False)
    with pytest.raises(CommandError, match=r"^No track has nightly runs\. Follow docs/tutorial/first-site\.md"):
        call_command("check_night")


def test_night_check_page_is_for_maintainers_only(ready_track: Track, client: Client, maintainer: User) -> None:
    address = f"/admin/leaderboard/track/{ready_track.pk}/night/"
    assert client.get(address).status_code == 302
    client.force_login(maintainer)
    assert "Nothing that the night needs is missing." in client.get(address).content.decode()
    assert address in client.get(f"/admin/leaderboard/track/{ready_track.pk}/change/").content.decode()
    Season.objects.update(dataset_hash="")
    page = client.get(address).content.decode()
    assert "The night would fail." in page
    assert "Run manage.py prepare_season" in page
    calendar = " ".join(client.get("/calendar/").content.decode().split())
    assert "Missing for a valid night: season." in calendar
