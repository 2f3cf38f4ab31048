"""What a night needs: each check of it missing, then ok; the command, the page and the calendar show them."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from datetime import time, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.files.storage import default_storage
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone
from django_celery_beat.models import PeriodicTask
from pytest_django import Settings

from dailytrain import schedule
from leaderboard.models import Entry, Night, Run, Season, SeasonFile, Track
from leaderboard.schedule import night_checks
from leaderboard.schedule.night_checks import check_next_night
from leaderboard.schedule.track_templates import TEMPLATES
from scheduler import signing, storage
from scheduler.models import Blob, Node
from tests.leaderboard.conftest import VERDICT, finish
from tests.support import scene

pytestmark = pytest.mark.django_db
OWN_SIZES = {"model": {"width": 64}, "train": {}}
"""A configuration of a model whose size no formula gives."""
Usage = namedtuple("Usage", "total used free")


def find(track: Track, name: str) -> tuple[str, str]:
    """Return state and advice of a check."""
    fresh = Track.objects.select_related("season__baseline").get(pk=track.pk)
    (found,) = (check for check in check_next_night(fresh, timezone.now()) if check.name == name)
    return found.state, found.advice


def train_night(track: Track, node: Node, **verdict: Any) -> Run:
    """Train and score a run of main as the season's baseline."""
    entry = Entry.objects.first() or scene.entry(track, "main", kind=Entry.Kind.MAIN)
    run = finish(scene.run(entry, state=Run.State.QUEUED), node, {**VERDICT, **verdict})
    Season.objects.update(baseline=entry)
    return run


@pytest.fixture
def beat(db: None) -> None:
    schedule.install()
    PeriodicTask.objects.update(last_run_at=timezone.now())


@pytest.fixture
def ready(beat: None, track: Track, able: Node) -> Track:
    """A track whose next night lacks nothing that it needs."""
    signing.get_public_key()
    return track


# --- each check ------------------------------------------------------------------------------------------------------


def test_schedule_check_needs_nightly_track_and_enabled_task(beat: None, track: Track) -> None:
    PeriodicTask.objects.filter(task="leaderboard.tasks.nightly").update(enabled=False)
    assert find(track, "Schedule")[0] == "missing"
    PeriodicTask.objects.update(enabled=True)
    Track.objects.update(nightly=False)
    assert "Mark it as nightly" in find(track, "Schedule")[1]
    Track.objects.update(nightly=True)
    Season.objects.update(active=False)
    assert "is not active" in find(track, "Schedule")[1]
    Season.objects.update(active=True)
    assert find(track, "Schedule")[0] == "ok"


def test_beat_check_without_recent_task_is_missing(track: Track) -> None:
    schedule.install()
    assert find(track, "Background work")[0] == "missing"
    PeriodicTask.objects.update(last_run_at=timezone.now() - timedelta(hours=1))
    assert "No periodic task has started since" in find(track, "Background work")[1]
    PeriodicTask.objects.update(last_run_at=timezone.now())
    assert find(track, "Background work")[0] == "ok"


def test_earlier_night_check_names_unfinished_run(track: Track) -> None:
    run = scene.run(scene.entry(track, "main", kind=Entry.Kind.MAIN), state=Run.State.QUEUED)
    night = Night.objects.create(track=track, date=timezone.now().date(), run=run)
    state, advice = find(track, "Earlier night")
    assert (state, f"Run {run.pk} " in advice) == ("missing", True)
    night.delete()
    assert find(track, "Earlier night")[0] == "ok"


def test_main_check_shows_last_problem(track: Track) -> None:
    assert find(track, "Main")[0] == "cannot tell"
    night = Night.objects.create(track=track, date=timezone.now().date(), sha="a" * 40, problem="It is not Python.")
    assert "It is not Python." in find(track, "Main")[1]
    Night.objects.filter(pk=night.pk).update(problem="")
    assert find(track, "Main")[0] == "ok"


def test_season_check_without_dataset_is_missing(track: Track) -> None:
    Season.objects.update(dataset_hash="")
    assert find(track, "Season") == (
        "missing",
        "The dataset of Season 0 is not prepared. Run manage.py create_season, which takes over tracks.",
    )
    Season.objects.update(dataset_hash="d" * 64)
    assert find(track, "Season")[0] == "cannot tell", "nodes prepare it"
    shard = storage.store_bytes(b"2 bytes a token")
    SeasonFile.objects.create(season=track.season, kind="dataset", path="train/00000.bin", blob=shard)
    assert find(track, "Season")[1].startswith("The storage has only a part of Season 0")
    manifest = storage.store_bytes(b"{}")
    SeasonFile.objects.create(season=track.season, kind="dataset", path="manifest.json", blob=manifest)
    assert find(track, "Season")[0] == "ok"
    default_storage.delete(shard.name)
    assert find(track, "Season")[1].startswith("The storage lacks 1 files of Season 0, first train/00000.bin.")


def test_text_check_counts_stored_tokens(track: Track) -> None:
    Track.objects.update(budget="5B-tokens")
    shard = storage.store_bytes(b"shard")
    SeasonFile.objects.create(season=track.season, kind="dataset", path="train/00000.bin", blob=shard)
    Blob.objects.filter(pk=shard.pk).update(size=2 * 10**9)
    assert find(track, "Amount of text")[0] == "missing"
    Blob.objects.filter(pk=shard.pk).update(size=4 * 10**9)
    assert find(track, "Amount of text") == ("ok", "About 2.0e+09 tokens, for a night that reads 5.0e+09.")


@pytest.mark.parametrize("budget", ["83700s", "1e19flops", "5B-tokens"])
def test_text_check_of_small_season_for_large_night_is_missing(track: Track, budget: str) -> None:
    Track.objects.update(budget=budget, needs_labels=["1x80gb"], config=TEMPLATES["night-h100"]["config"])
    Season.objects.update(limit_bytes=16 * 2**20)
    assert find(track, "Amount of text")[0] == "missing"
    Season.objects.update(limit_bytes=40 * 10**9)
    assert find(track, "Amount of text")[0] == "ok"
    Season.objects.update(limit_bytes=None)
    assert find(track, "Amount of text")[0] == "cannot tell"


@pytest.mark.parametrize(
    ("labels", "config", "peak"),
    [
        (["1xh100", "1x80gb"], {}, 756e12),  # the PCIe card has the same label
        (["1xh200"], {}, 835e12),
        (["4x3090", "500gb"], {"devices": 4}, 4 * 71e12),
        (["8xh100"], {"devices": 2}, 2 * 756e12),
        (["2x80gb"], {"devices": 2}, 2 * 26e12),
    ],
)
def test_flops_of_a_time_are_those_of_the_slowest_gpus(
    track: Track, labels: list[str], config: dict[str, int], peak: float
) -> None:
    Track.objects.update(budget="83700s", needs_labels=labels, config=config)
    track.refresh_from_db()
    assert night_checks.estimate_flops(track) == pytest.approx(83_700 * 0.4 * peak)


def test_ladder_check_follows_its_runs(track: Track, node: Node) -> None:
    assert "has no ladder" in find(track, "Ladder")[1]
    Track.objects.update(ladder={"rungs": [1], "seeds": 1})
    assert "has no baseline" in find(track, "Ladder")[1]
    Season.objects.update(baseline=scene.entry(track, "main"))
    assert find(track, "Ladder") == ("missing", "0 of 1 runs are scored. The site queues the others by itself.")
    train_night(track, node)
    assert find(track, "Ladder")[0] == "ok"


def test_node_check_names_what_online_nodes_lack(track: Track, able: Node) -> None:
    Track.objects.update(limits={"disk_bytes": 2**41})
    assert find(track, "Node")[1].endswith("Missing is one with 2199 GB of free disk.")
    Track.objects.update(limits={})
    assert find(track, "Node")[0] == "ok"
    Node.objects.update(state=Node.State.OFFLINE)
    assert "No node is online" in find(track, "Node")[1]


def test_hours_check_compares_lending_hours_with_the_night(beat: None, track: Track, able: Node) -> None:
    Track.objects.update(expected_seconds=6 * 3600)
    Node.objects.update(max_hours=2)
    assert "is lent for 2.0 h at most, and the night takes 6.0 h" in find(track, "Hours of the node")[1]
    Node.objects.update(max_hours=None, available=Node.Available.WINDOWS)
    for weekday in range(7):
        able.windows.create(weekday=weekday, start=time(18), end=time(22))
    assert "is lent for 2.0 h" in find(track, "Hours of the node")[1], "the night is due at 20:00"
    able.windows.update(end=time(6))
    assert find(track, "Hours of the node")[0] == "ok"
    Node.objects.update(state=Node.State.OFFLINE)
    assert find(track, "Hours of the node")[0] == "cannot tell"


def test_sandbox_check_reads_node(track: Track, able: Node) -> None:
    able.hardware["sandboxes"] = ["none"]
    able.save()
    assert find(track, "Sandbox")[0] == "missing"
    able.hardware["sandboxes"] = ["bubblewrap"]
    able.save()
    assert find(track, "Sandbox")[0] == "ok"


def test_scorer_check_needs_trusted_node_that_fits(track: Track, able: Node) -> None:
    Node.objects.update(trusted=False)
    assert "join_token --trusted" in find(track, "Trusted scorer")[1]
    Node.objects.update(trusted=True)
    Track.objects.update(needs_memory_bytes=2**40)
    assert find(track, "Trusted scorer")[1].startswith("No trusted node fits.")
    Track.objects.update(needs_memory_bytes=0)
    assert find(track, "Trusted scorer")[0] == "ok"


def test_suite_check_reads_last_score(track: Track, node: Node) -> None:
    Track.objects.update(suite=[])
    assert "no lm-eval tasks" in find(track, "Evaluation data")[1]
    Track.objects.update(suite=["blimp"])
    assert find(track, "Evaluation data")[0] == "cannot tell"
    run = train_night(track, node, suite_missing=["hellaswag"])
    assert find(track, "Evaluation data") == ("missing", f"The scorer of run {run.pk} lacked the data of hellaswag.")
    Run.objects.update(suite_missing=[])
    assert find(track, "Evaluation data")[0] == "ok"


@pytest.mark.parametrize(
    ("setting", "name"),
    [("BLOB_MAX_BYTES", "The limit of an uploaded file"), ("LEASE_MAX_BYTES", "The limit of a lease's files")],
)
def test_limits_check_compares_newest_checkpoint(
    track: Track, node: Node, settings: Settings, setting: str, name: str
) -> None:
    Track.objects.update(config=OWN_SIZES)
    assert find(track, "Limits of uploads")[0] == "cannot tell"
    train_night(track, node)
    assert find(track, "Limits of uploads")[0] == "ok"
    setattr(settings, setting, 10)
    assert find(track, "Limits of uploads")[1].startswith(name)


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        ({"file_bytes": 10**9}, "The limit of an uploaded file is 1 GB"),
        ({"lease_bytes": 10**9}, "The limit of a lease's files is 1 GB"),
        ({"disk_bytes": 10**9}, "disk_bytes in the track's limits is 1 GB"),
    ],
)
def test_limits_check_of_new_track_uses_computed_sizes(track: Track, limits: dict[str, int], name: str) -> None:
    Track.objects.update(**{field: TEMPLATES["night-h100"][field] for field in ("config", "needs_labels")})
    state, advice = find(track, "Limits of uploads")
    assert (state, "A GPU needs" in advice) == ("ok", True)
    Track.objects.update(limits=limits)
    assert find(track, "Limits of uploads")[1].startswith(name)
    Track.objects.update(limits={}, needs_labels=["1x24gb"])
    assert find(track, "Limits of uploads")[1].startswith("The GPU memory in the track's labels is 24 GB")


def test_storage_check_compares_free_space(
    track: Track, node: Node, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    Track.objects.update(config=OWN_SIZES)
    assert find(track, "Storage for 30 nights")[0] == "cannot tell"
    train_night(track, node)
    assert find(track, "Storage for 30 nights")[0] == "ok"
    monkeypatch.setattr(night_checks.shutil, "disk_usage", lambda path: Usage(100, 50, 50))
    assert find(track, "Storage for 30 nights")[0] == "missing"
    settings.S3_BUCKET = "nights"
    assert find(track, "Storage for 30 nights")[0] == "cannot tell"


def test_key_check_changes_nothing(track: Track, site: Settings) -> None:
    assert find(track, "Signing key")[0] == "missing"
    assert not Path(site.SIGNING_KEY).exists()
    signing.get_public_key()
    assert find(track, "Signing key")[0] == "ok"


def test_package_check_without_wheel_is_missing(track: Track, settings: Settings, tmp_path: Path) -> None:
    settings.WHEELS = tmp_path
    assert find(track, "Package for nodes") == ("missing", "The site has no wheel. Run manage.py build_wheel.")
    settings.PACKAGE_NAME = "our-train"
    assert find(track, "Package for nodes")[0] == "cannot tell"


@pytest.mark.django_db(transaction=True)
def test_package_check_requests_the_wheel(track: Track, settings: Settings, tmp_path: Path, site_url: str) -> None:
    settings.SITE_URL, settings.WHEELS = f"{site_url}/elsewhere", tmp_path
    (tmp_path / "dailytrain-1.2.3-py3-none-any.whl").write_bytes(b"a wheel")
    assert "answers 404" in find(track, "Package for nodes")[1]
    settings.SITE_URL = site_url
    assert find(track, "Package for nodes")[0] == "ok"
    settings.SITE_URL = "http://127.0.0.1:1"
    assert find(track, "Package for nodes")[0] == "cannot tell"


# --- command, page, calendar -----------------------------------------------------------------------------------------


@pytest.fixture
def output() -> Iterator[StringIO]:
    with StringIO() as stream:
        yield stream


def test_command_of_ready_track_succeeds(ready: Track, output: StringIO) -> None:
    call_command("check_night", "small", stdout=output)
    lines = output.getvalue().splitlines()
    assert lines[:1] == ["Small"]
    assert lines[1].startswith("ok           Schedule")
    assert len(lines) == len(night_checks.CHECKS) + 2
    assert lines[-1] == "Nothing that the night needs is missing."


def test_command_without_scorer_fails(ready: Track, output: StringIO) -> None:
    Node.objects.update(trusted=False)
    with pytest.raises(CommandError, match=r"^The night would fail\. small: Trusted scorer\.$") as failure:
        call_command("check_night", "small", stdout=output)
    assert failure.value.returncode == 1
    assert "missing      Trusted scorer" in output.getvalue()


def test_command_for_unknown_track_lists_tracks(track: Track) -> None:
    with pytest.raises(CommandError, match=r"There is no track night\. Tracks: small\."):
        call_command("check_night", "night")


def test_command_without_track_checks_nightly_tracks(ready: Track, output: StringIO) -> None:
    call_command("check_night", stdout=output)
    assert output.getvalue().startswith("Small\n")
    Track.objects.update(nightly=False)
    with pytest.raises(CommandError, match=r"^No track has nightly runs\. Run manage\.py create_season, "):
        call_command("check_night")


def test_page_shows_checks_to_maintainers_only(ready: Track, client: Client, maintainer: User) -> None:
    address = f"/admin/leaderboard/track/{ready.pk}/night/"
    assert client.get(address).status_code == 302
    client.force_login(maintainer)
    assert "Nothing that the night needs is missing." in client.get(address).content.decode()
    assert address in client.get(f"/admin/leaderboard/track/{ready.pk}/change/").content.decode()
    Season.objects.update(dataset_hash="")
    page = client.get(address).content.decode()
    assert "The night would fail." in page
    assert "Run manage.py create_season" in page


def test_calendar_names_what_the_night_lacks(ready: Track, client: Client) -> None:
    assert "Missing for a valid night" not in client.get("/calendar/").content.decode()
    Node.objects.update(trusted=False)
    page = " ".join(client.get("/calendar/").content.decode().split())
    assert "Missing for a valid night: trusted scorer." in page
