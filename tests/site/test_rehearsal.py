"""Parts of `manage.py rehearse_night`; tests/acceptance/test_rehearsal.py runs it."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.utils import timezone

from dailytrain.rehearsal import full_tracks, isolation, node, scaled_tracks
from dailytrain.rehearsal.scaled_tracks import BATCH, MIN_STEPS, SEQUENCE_LENGTH
from dailytrain.rehearsal.steps import describe_hardware
from leaderboard.models import Season, Track
from leaderboard.schedule.planned_night import PlannedNight
from leaderboard.schedule.track_templates import TEMPLATES, create_track
from scheduler import matching
from scheduler.models import Node
from scheduler.node_slots import build_node_slot
from tests.support.pool import HARDWARE
from trainer import protocol
from trainer.accounting.budget import Budget
from trainer.node.hardware import derive_labels

pytestmark = pytest.mark.processes


@pytest.fixture
def season(db: None) -> Season:
    return Season.objects.create(
        name="Rehearsal", corpus="python-docs", tokenizer="bpe:512", dataset_hash="d" * 64, vocabulary_size=512
    )


def build_scaled(slug: str, season: Season, scale: float) -> Track:
    return scaled_tracks.build_track(full_tracks.FullTrack(slug, TEMPLATES[slug]), season, scale, has_ladder=True)


# --- tracks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slug", TEMPLATES)
def test_scaled_track_of_template_keeps_rules_and_has_steps_on_its_smallest_rung(slug: str, season: Season) -> None:
    template = TEMPLATES[slug]
    track = build_scaled(slug, season, 1e-9)
    track.full_clean()
    assert (track.needs_labels, track.kind) == (template["needs_labels"], template.get("kind", "competition"))
    assert track.ladder == template.get("ladder", {})
    assert track.config["train"].get("strategy") == template["config"]["train"].get("strategy")
    assert track.size, "limits follow from the computed size"
    assert Budget.parse(track.config["checkpoint_every"])
    assert track.training_limits().wall_seconds == 2 * track.expected_seconds + 600
    shortest = Budget.parse(min([*track.rungs(), track.trial_budget or track.budget], key=track.part))
    steps = shortest.steps(BATCH * SEQUENCE_LENGTH, 6 * track.size.parameters * BATCH * SEQUENCE_LENGTH)
    assert steps in (MIN_STEPS, MIN_STEPS + 1)


def test_track_of_the_site_is_rehearsed_as_edited(season: Season, tmp_path: Path) -> None:
    own = create_track("night-h100", season)
    own.config["recipe"] = {"schedule": {"warmdown": 0.7}}
    own.ladder, own.needs_labels = {"rungs": [0.5, 1], "seeds": 2}, ["1xh100", "rack-4"]
    computed = own.training_limits()
    own.limits = {"memory_bytes": computed.memory_bytes // 2, "lease_bytes": 10**9}
    own.save()
    full_tracks.write_tracks(tmp_path, full_tracks.find_tracks(["night-h100", "desktop-3090"]))
    edited, template = full_tracks.read_tracks(tmp_path)
    assert template == full_tracks.FullTrack("desktop-3090", TEMPLATES["desktop-3090"])
    Track.objects.all().delete()
    track = scaled_tracks.build_track(edited, season, 1e-5, has_ladder=True)
    track.full_clean()
    track.save()
    assert (track.slug, track.ladder, track.config["recipe"]) == ("night-h100", own.ladder, own.config["recipe"])
    assert track.expected_seconds < own.expected_seconds
    limits = {**track.training_limits().model_dump(), **vars(track.upload_limits())}
    track.limits = {}
    plain = scaled_tracks.compute_limits(track)
    assert limits["memory_bytes"] == pytest.approx(plain["memory_bytes"] / 2, rel=1e-6)
    assert limits["lease_bytes"] < plain["lease_bytes"]
    assert limits["disk_bytes"] == plain["disk_bytes"]
    assert describe_hardware([track]).labels == ("rack-4",)


# --- hardware --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slug", TEMPLATES)
def test_reported_hardware_fits_the_jobs_of_the_track(slug: str, season: Season) -> None:
    track = build_scaled(slug, season, 1e-5)
    track.save()
    reported = describe_hardware([track])
    details = [gpu.model_dump() for gpu in reported.gpus]
    hardware = {"sandboxes": ["bubblewrap"], "gpu_details": details, "disk_free_bytes": 10**12}
    hardware["memory_bytes"] = max(reported.memory_bytes, 8 * 2**30)
    labels = list(derive_labels(reported.gpus, 10**12))
    slot = build_node_slot(Node(labels=labels, hardware=hardware, trusted=True, packets="never"), timezone.now())
    planned = PlannedNight(track, timezone.now(), None, ())
    assert matching.find_obstacle(planned.training, slot) is None
    assert matching.find_obstacle(planned.scoring, slot) is None


def test_rehearsal_on_a_gpu_keeps_the_precision_and_compilation_of_the_track(season: Season) -> None:
    full = full_tracks.FullTrack("night-h100", TEMPLATES["night-h100"])
    track = scaled_tracks.build_track(full, season, 1e-4, has_ladder=False, is_on_gpu=True)
    track.full_clean()
    assert not {"precision", "compile"} & track.config["train"].keys()
    assert track.ladder == {}


def test_rehearsal_node_on_a_gpu_reports_its_own_with_the_labels_of_the_track(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = protocol.Gpu(name="NVIDIA H200", memory_bytes=141 * 10**9, uuid="GPU-own")
    found = HARDWARE.model_copy(update={"gpus": (own.name,), "gpu_details": (own,)})
    monkeypatch.setattr(node.Agent, "detect_hardware", lambda agent: found)
    agent = object.__new__(node.RehearsalAgent)
    agent.reported = node.ReportedHardware(gpus=None, memory_bytes=0, disk_free_bytes=0, labels=("1xh100",))
    reported = agent.detect_hardware()
    assert reported.gpu_details == (own,)
    assert {"1xh100", "1xh200", "1x141gb"} <= {*reported.found_labels}


def test_rehearsal_node_joins_no_other_machine(capsys: pytest.CaptureFixture[str]) -> None:
    hardware = '{"gpus": [], "memory_bytes": 0, "disk_free_bytes": 0}'
    assert node.main(["--server", "https://train.example.org", "--hardware", hardware]) == 2
    assert "this machine only" in capsys.readouterr().err


# --- isolation -------------------------------------------------------------------------------------------------------


def test_rehearsal_environment_names_no_account_of_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accounts = ("DATABASE_URL", "REDIS_URL", "S3_BUCKET", "HF_TOKEN", "GITHUB_TOKEN", "MAIL_URL", "SECRET_KEY")
    for name in (*accounts, "DAILYTRAIN_CACHE", "DAILYTRAIN_DATA"):
        monkeypatch.setenv(name, "of production")
    environment = isolation.build_environment(tmp_path, 8123)
    assert "of production" not in environment.values()
    assert (environment["DAILYTRAIN_HOME"], environment["SITE_URL"]) == (str(tmp_path), "http://127.0.0.1:8123")
    assert environment["DAILYTRAIN_CACHE"] == str(tmp_path / "cache")
