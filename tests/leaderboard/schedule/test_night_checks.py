"""Checks of the next night: each one missing and ok; the command, the admin page and the calendar."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from datetime import time, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.app.control import Control
from django.contrib.auth.models import User
from django.core.files.storage import default_storage
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone
from django_celery_beat.models import PeriodicTask
from pytest_django import Settings

from dailytrain import schedule
from dailytrain.celery import app
from leaderboard.models import Entry, Night, Run, Season, SeasonFile, Track
from leaderboard.schedule import evaluation_data, night_checks
from leaderboard.schedule.night_checks import check_next_night
from leaderboard.schedule.track_templates import TEMPLATES
from scheduler import signing, storage
from scheduler.models import Blob, Node
from tests.leaderboard.conftest import SCORE_RESULT, finish_run
from tests.support import scene
from tests.support.paths import REPOSITORY
from tests.support.waits import WAIT_SECONDS, wait_until
from trainer.data.preparation import FORMAT_WITH_PROMPTS

pytestmark = [pytest.mark.processes, pytest.mark.django_db]
OWN_SIZES = {"model": {"width": 64}, "train": {}}
"""A model configuration whose size cannot be computed by a formula."""
Usage = namedtuple("Usage", "total used free")


def find_check(track: Track, name: str) -> tuple[str, str]:
    """Return state and advice of a check."""
    reloaded_track = Track.objects.select_related("season__baseline").get(pk=track.pk)
    (check,) = (check for check in check_next_night(reloaded_track, timezone.now()) if check.name == name)
    return check.state, check.advice


def train_night(track: Track, node: Node, **score_fields: Any) -> Run:
    """Train and score a run of main as the season's baseline."""
    entry = Entry.objects.first() or scene.create_entry(track, "main", kind=Entry.Kind.MAIN)
    run = finish_run(scene.create_run(entry, state=Run.State.QUEUED), node, {**SCORE_RESULT, **score_fields})
    Season.objects.update(baseline=entry)
    return run


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
def worker(redis_url: str, broker: Celery) -> Iterator[None]:
    """A running worker process that answers pings."""
    command = [sys.executable, "-m", "celery", "-A", "dailytrain", "worker", "--pool", "solo"]
    process = subprocess.Popen(command, cwd=REPOSITORY, env={**os.environ, "REDIS_URL": redis_url})
    try:
        with broker.connection_for_write() as connection:
            while not broker.control.ping(timeout=0.5, connection=connection):
                assert process.poll() is None, "the worker ended"
        yield
    finally:
        process.terminate()
        process.wait(WAIT_SECONDS)


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


def test_beat_check_without_recent_task_is_missing(track: Track) -> None:
    schedule.install()
    assert find_check(track, "Background work")[0] == "missing"
    PeriodicTask.objects.update(last_run_at=timezone.now() - timedelta(hours=1))
    assert "No periodic task has started since" in find_check(track, "Background work")[1]
    PeriodicTask.objects.update(last_run_at=timezone.now())
    assert find_check(track, "Background work")[0] == "ok"


def test_worker_check_without_worker_is_missing(broker: Celery, track: Track) -> None:
    assert find_check(track, "Worker") == ("missing", "No worker answers. Start `celery -A dailytrain worker`.")


def test_worker_check_with_worker_is_ok(worker: None, track: Track) -> None:
    # A busy worker may answer later than the check waits.
    wait_until(lambda: find_check(track, "Worker") == ("ok", "1 worker answered."))


@pytest.mark.slow
def test_worker_check_without_redis_is_missing(broker: Celery, track: Track, tmp_path: Path) -> None:
    broker.conf.broker_url = f"redis+socket://{tmp_path}/no.sock"
    assert "Redis does not answer" in find_check(track, "Worker")[1]


def test_earlier_night_check_names_unfinished_run(track: Track) -> None:
    entry = scene.create_entry(track, "main", kind=Entry.Kind.MAIN)
    run = scene.create_run(entry, state=Run.State.QUEUED, purpose=Run.Purpose.NIGHTLY)
    Night.objects.create(track=track, date=timezone.now().date(), run=run)
    state, advice = find_check(track, "Earlier night")
    assert (state, f"Run {run.pk} " in advice) == ("missing", True)
    Run.objects.update(state=Run.State.FINISHED)
    assert find_check(track, "Earlier night")[0] == "ok"


def test_main_check_shows_last_problem(track: Track) -> None:
    assert find_check(track, "Main")[0] == "cannot tell"
    night = Night.objects.create(track=track, date=timezone.now().date(), sha="a" * 40, problem="It is not Python.")
    assert "It is not Python." in find_check(track, "Main")[1]
    Night.objects.filter(pk=night.pk).update(problem="")
    assert find_check(track, "Main")[0] == "ok"


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


def test_text_check_counts_stored_tokens(track: Track) -> None:
    Track.objects.update(budget="5B-tokens")
    shard = storage.store_bytes(b"shard")
    SeasonFile.objects.create(season=track.season, kind="dataset", path="train/00000.bin", blob=shard)
    Blob.objects.filter(pk=shard.pk).update(size=2 * 10**9)
    assert find_check(track, "Amount of text")[0] == "missing"
    Blob.objects.filter(pk=shard.pk).update(size=4 * 10**9)
    assert find_check(track, "Amount of text") == ("ok", "About 2.0e+09 tokens, for a night that reads 5.0e+09.")


def test_text_check_with_prompts_or_large_vocabulary_uses_four_bytes(track: Track) -> None:
    Track.objects.update(budget="5B-tokens")
    shard, manifest = storage.store_bytes(b"shard"), storage.store_bytes(json.dumps({"format": 1}).encode())
    SeasonFile.objects.create(season=track.season, kind="dataset", path="train/00000.bin", blob=shard)
    file = SeasonFile.objects.create(season=track.season, kind="dataset", path="manifest.json", blob=manifest)
    Blob.objects.filter(pk=shard.pk).update(size=4 * 10**9)
    assert find_check(track, "Amount of text")[0] == "ok"
    Season.objects.update(vocabulary_size=65_537)
    assert find_check(track, "Amount of text")[0] == "missing"
    Season.objects.update(vocabulary_size=65_536)
    assert find_check(track, "Amount of text")[0] == "ok"
    file.blob = storage.store_bytes(json.dumps({"format": FORMAT_WITH_PROMPTS}).encode())
    file.save()
    assert find_check(track, "Amount of text")[0] == "missing"


@pytest.mark.parametrize("budget", ["83700s", "1e19flops", "5B-tokens"])
def test_text_check_of_small_season_for_large_night_is_missing(track: Track, budget: str) -> None:
    Track.objects.update(budget=budget, needs_labels=["1x80gb"], config=TEMPLATES["night-h100"]["config"])
    Season.objects.update(limit_bytes=16 * 2**20)
    assert find_check(track, "Amount of text")[0] == "missing"
    Season.objects.update(limit_bytes=40 * 10**9)
    assert find_check(track, "Amount of text")[0] == "ok"
    Season.objects.update(limit_bytes=None)
    assert find_check(track, "Amount of text")[0] == "cannot tell"


@pytest.mark.parametrize(
    ("labels", "config", "peak"),
    [
        (["1xh100", "1x80gb"], {}, 756e12),  # the slower PCIe card has the same label
        (["1xh200"], {}, 835e12),
        (["4x3090", "500gb"], {"devices": 4}, 4 * 71e12),
        (["8xh100"], {"devices": 2}, 2 * 756e12),
        (["2x80gb"], {"devices": 2}, 2 * 26e12),
    ],
)
def test_estimated_flops_of_time_budget_use_slowest_gpu_of_labels(
    track: Track, labels: list[str], config: dict[str, int], peak: float
) -> None:
    Track.objects.update(budget="83700s", needs_labels=labels, config=config)
    track.refresh_from_db()
    assert night_checks.estimate_flops(track) == pytest.approx(83_700 * 0.4 * peak)


def test_ladder_check_follows_its_runs(track: Track, node: Node) -> None:
    assert "has no ladder" in find_check(track, "Ladder")[1]
    Track.objects.update(ladder={"rungs": [1], "seeds": 1}, expected_seconds=7200)
    assert "has no baseline" in find_check(track, "Ladder")[1]
    Season.objects.update(baseline=scene.create_entry(track, "main"))
    state, advice = find_check(track, "Ladder")
    assert state == "missing"
    assert advice.startswith("0 of 1 runs are scored.")
    assert advice.endswith("all of them take 2 hours of such a node, beside its nights.")
    train_night(track, node)
    assert find_check(track, "Ladder")[0] == "ok"


def test_node_check_names_what_online_nodes_lack(track: Track, capable_node: Node) -> None:
    Track.objects.update(limits={"disk_bytes": 2**41})
    assert find_check(track, "Node")[1].endswith("Missing is one with 2199 GB of free disk.")
    Track.objects.update(limits={})
    assert find_check(track, "Node")[0] == "ok"
    Node.objects.update(state=Node.State.OFFLINE)
    assert "No node is online" in find_check(track, "Node")[1]


def test_hours_check_compares_lending_hours_with_the_night(
    beat_schedule: None, track: Track, capable_node: Node
) -> None:
    Track.objects.update(expected_seconds=6 * 3600)
    Node.objects.update(max_hours=2)
    assert "is lent for 2.0 h at most, and the night takes 6.0 h" in find_check(track, "Hours of the node")[1]
    Node.objects.update(max_hours=None, available=Node.Available.WINDOWS)
    for weekday in range(7):
        capable_node.windows.create(weekday=weekday, start=time(18), end=time(22))
    assert "is lent for 2.0 h" in find_check(track, "Hours of the node")[1], "the night is due at 20:00"
    capable_node.windows.update(end=time(6))
    assert find_check(track, "Hours of the node")[0] == "ok"
    Node.objects.update(state=Node.State.OFFLINE)
    assert find_check(track, "Hours of the node")[0] == "cannot tell"


def test_sandbox_check_reads_node(track: Track, capable_node: Node) -> None:
    capable_node.hardware["sandboxes"] = ["none"]
    capable_node.save()
    assert find_check(track, "Sandbox")[0] == "missing"
    capable_node.hardware["sandboxes"] = ["bubblewrap"]
    capable_node.save()
    assert find_check(track, "Sandbox")[0] == "ok"


def test_scorer_check_needs_trusted_node_that_fits(track: Track, capable_node: Node) -> None:
    Node.objects.update(trusted=False)
    assert "join_token --trusted" in find_check(track, "Trusted scorer")[1]
    Node.objects.update(trusted=True)
    Track.objects.update(needs_labels=["1xh100", "1x80gb"])
    Node.objects.update(hardware={"memory_bytes": 2**36, "disk_free_bytes": 2**40})
    assert find_check(track, "Trusted scorer")[1].startswith(
        "No trusted node fits; runs need one with a GPU of 2 GB and "
    )
    Track.objects.update(needs_labels=[])
    assert find_check(track, "Trusted scorer")[0] == "ok"


def use_scorer(*gpus: str) -> None:
    details = [{"name": gpu, "memory_bytes": 80 * 10**9} for gpu in gpus]
    hardware = {"memory_bytes": 2**36, "disk_free_bytes": 2**40, "gpus": gpus, "gpu_details": details}
    Node.objects.update(trusted=True, hardware=hardware)


def test_scoring_time_check_names_scorers_that_are_too_slow(track: Track, capable_node: Node) -> None:
    assert find_check(track, "Scoring time")[0] == "ok"
    template = {name: TEMPLATES["night-h100"][name] for name in ("needs_labels", "config", "suite", "suite_limit")}
    Track.objects.update(**template)
    for gpus, state, advice in (
        (["NVIDIA H100 80GB HBM3"], "ok", "Scoring takes about 0.9 h, computed. The limit is 12.4 h."),
        (["Tesla T4"], "missing", f"Too slow to score the night: {capable_node.name} (Tesla T4) 16."),
        (["Unheard-of"], "cannot tell", f"The speed of {capable_node.name} (Unheard-of) is not known."),
        ([], "missing", f"Too slow to score the night: {capable_node.name} (CPU) 131"),
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


@pytest.mark.parametrize(
    ("setting", "name"),
    [("BLOB_MAX_BYTES", "The limit of an uploaded file"), ("LEASE_MAX_BYTES", "The limit of a lease's files")],
)
def test_limits_check_compares_newest_checkpoint(
    track: Track, node: Node, settings: Settings, setting: str, name: str
) -> None:
    Track.objects.update(config=OWN_SIZES)
    assert find_check(track, "Limits of uploads")[0] == "cannot tell"
    train_night(track, node)
    assert find_check(track, "Limits of uploads")[0] == "ok"
    setattr(settings, setting, 10)
    assert find_check(track, "Limits of uploads")[1].startswith(name)


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
    state, advice = find_check(track, "Limits of uploads")
    assert (state, "A GPU needs" in advice) == ("ok", True)
    Track.objects.update(limits=limits)
    assert find_check(track, "Limits of uploads")[1].startswith(name)
    Track.objects.update(limits={}, needs_labels=["1x24gb"])
    assert find_check(track, "Limits of uploads")[1].startswith("The GPU memory in the track's labels is 24 GB")


def test_storage_check_compares_free_space(
    track: Track, node: Node, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    Track.objects.update(config=OWN_SIZES)
    assert find_check(track, "Storage for 30 nights")[0] == "cannot tell"
    train_night(track, node)
    state, advice = find_check(track, "Storage for 30 nights")
    assert (state, "; entries and ladders need more." in advice) == ("ok", True)
    monkeypatch.setattr(night_checks.shutil, "disk_usage", lambda path: Usage(100, 50, 50))
    assert find_check(track, "Storage for 30 nights")[0] == "missing"
    settings.S3_BUCKET = "nights"
    assert find_check(track, "Storage for 30 nights")[0] == "cannot tell"


def test_key_check_creates_no_key(track: Track, site: Settings) -> None:
    assert find_check(track, "Signing key")[0] == "cannot tell"
    scene.create_node()
    assert find_check(track, "Signing key")[0] == "missing"
    assert not Path(site.SIGNING_KEY).exists()
    signing.get_public_key()
    assert find_check(track, "Signing key")[0] == "ok"


def test_package_check_without_wheel_is_missing(track: Track, settings: Settings, tmp_path: Path) -> None:
    settings.WHEELS = tmp_path
    assert find_check(track, "Package for nodes") == ("missing", "The site has no wheel. Run manage.py build_wheel.")
    settings.PACKAGE_NAME = "our-train"
    assert find_check(track, "Package for nodes")[0] == "cannot tell"


@pytest.mark.django_db(transaction=True)
def test_package_check_requests_the_wheel(track: Track, settings: Settings, tmp_path: Path, site_url: str) -> None:
    settings.SITE_URL, settings.WHEELS = f"{site_url}/elsewhere", tmp_path
    (tmp_path / "dailytrain-1.2.3-py3-none-any.whl").write_bytes(b"a wheel")
    assert "answers 404" in find_check(track, "Package for nodes")[1]
    settings.SITE_URL = site_url
    assert find_check(track, "Package for nodes")[0] == "ok"
    settings.SITE_URL = "http://127.0.0.1:1"
    assert find_check(track, "Package for nodes")[0] == "cannot tell"


# --- command, page, calendar -----------------------------------------------------------------------------------------


@pytest.fixture
def output() -> Iterator[StringIO]:
    with StringIO() as stream:
        yield stream


def test_check_night_command_for_ready_track_succeeds(ready_track: Track, output: StringIO) -> None:
    call_command("check_night", "small", stdout=output)
    lines = output.getvalue().splitlines()
    assert lines[:1] == ["Small"]
    assert lines[1].startswith("ok                  Schedule")
    assert len(lines) == len(night_checks.CHECKS) + 2
    assert lines[-1] == "Nothing that the night needs is missing."


def test_check_night_command_without_scorer_fails(ready_track: Track, output: StringIO) -> None:
    Node.objects.update(trusted=False)
    with pytest.raises(CommandError, match=r"^The night would fail\. small: Trusted scorer\.$") as failure:
        call_command("check_night", "small", stdout=output)
    assert failure.value.returncode == 1
    assert "missing             Trusted scorer" in output.getvalue()


def test_check_night_command_for_unknown_track_lists_tracks(track: Track) -> None:
    with pytest.raises(CommandError, match=r"There is no track night\. Tracks: small\."):
        call_command("check_night", "night")


def test_check_night_command_without_track_checks_nightly_tracks(ready_track: Track, output: StringIO) -> None:
    call_command("check_night", stdout=output)
    assert output.getvalue().startswith("Small\n")
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


def test_calendar_page_names_missing_checks(ready_track: Track, client: Client) -> None:
    assert "Missing for a valid night" not in client.get("/calendar/").content.decode()
    Node.objects.update(trusted=False)
    page = " ".join(client.get("/calendar/").content.decode().split())
    assert "Missing for a valid night: trusted scorer." in page
