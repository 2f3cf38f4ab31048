"""Every track template against the cards that it asks for."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User

from benchmarks import track_sizes
from leaderboard import runs
from leaderboard.actions import perform_run_action
from leaderboard.models import Entry, Run, Track
from leaderboard.schedule.track_templates import TEMPLATES, compute_template_size, create_track
from leaderboard.submissions import intake
from scheduler.matching import parse_labels
from scheduler.models import Job
from trainer.accounting.training_size import KEPT_ON_NODE, KEPT_ON_SERVER, compute_model_size, estimate_memory
from trainer.scoring.benchmark_suite import SUITE


@pytest.mark.parametrize("name", TEMPLATES)
def test_template_fits_the_memory_of_its_card(name: str) -> None:
    template = TEMPLATES[name]
    memory = estimate_memory(compute_template_size(template), template["config"])
    assert sum(memory.values()) <= parse_labels(tuple(template["needs_labels"])).gpu_memory_bytes, memory


def test_tuning_template_fits_rwkv5_of_1_5_billion() -> None:
    template = TEMPLATES["tune-1b5-2x24gb"]
    size = compute_model_size({"arch": "rwkv5-1b5"}, vocabulary_size=65_536)
    assert size is not None
    assert sum(estimate_memory(size, template["config"]).values()) < 24e9


@pytest.mark.parametrize("name", TEMPLATES)
def test_template_has_devices_suite_seconds_and_ladder(name: str) -> None:
    template = TEMPLATES[name]
    needs = parse_labels(tuple(template["needs_labels"]))
    assert template["config"]["devices"] == needs.gpus, "a larger node uses no more"
    assert set(template["suite"]) <= set(SUITE)
    assert template["expected_seconds"] > 0
    if template.get("trial"):
        assert "ladder" not in template, "smaller models would stand on it"
    elif name != "long-run-8x80gb":
        assert 1 in template["ladder"]["rungs"]
        assert template["ladder"]["seeds"] >= 2, "sigma is estimated from replicates"


@pytest.mark.parametrize(("name", "label"), [("night-h100", "1xh100"), ("night-h200", "1xh200")])
def test_night_names_its_gpu_and_feeds_the_monthly_train(name: str, label: str) -> None:
    assert label in TEMPLATES[name]["needs_labels"]
    assert (TEMPLATES[name]["nightly"], TEMPLATES[name]["monthly"]) == (True, 3)


def test_pull_request_track_takes_one_to_three_h100_hours() -> None:
    template = TEMPLATES["playground-h100"]
    assert template["kind"] == Track.Kind.PLAYGROUND
    assert 3600 <= template["expected_seconds"] * template["config"]["devices"] <= 3 * 3600


def test_written_table_is_the_computed_one() -> None:
    assert track_sizes.FILE.read_text() == track_sizes.render_table()


@pytest.mark.django_db
@pytest.mark.parametrize("name", TEMPLATES)
def test_template_limits_leave_room_for_its_checkpoints(name: str, track: Track) -> None:
    made = create_track(name, track.season)
    size, uploads, limits = made.size, made.upload_limits(), made.training_limits()
    assert size is not None
    assert uploads is not None
    assert uploads.file_bytes >= size.optimizer_bytes
    assert uploads.lease_bytes >= KEPT_ON_SERVER * size.checkpoint_bytes
    assert limits.disk_bytes >= KEPT_ON_NODE * size.checkpoint_bytes
    assert limits.memory_bytes >= 2 * size.checkpoint_bytes


@pytest.mark.django_db
def test_a_night_sends_less_than_60_gb(idea: Entry) -> None:
    made = create_track("night-h100", idea.track.season)
    run = runs.make_run(idea, made)
    seconds = runs.get_upload_seconds(run)
    assert seconds is not None
    assert made.size is not None
    uploads = made.expected_seconds // seconds  # the last one at the end
    assert uploads >= 2
    assert uploads * made.size.checkpoint_bytes < 60e9


@pytest.mark.django_db
def test_upload_interval_spares_small_runs_and_reaches_every_release(idea: Entry) -> None:
    small = create_track("ci-16gb", idea.track.season)
    assert runs.get_upload_seconds(runs.make_run(idea, small)) is None, "all of its checkpoints are sent"
    long = create_track("long-run-8x80gb", idea.track.season)
    assert runs.get_upload_seconds(runs.make_run(idea, long)) == 6 * 3600
    long.releases, long.expected_seconds = 10, 36_000.0
    assert runs.get_upload_seconds(runs.make_run(idea, long)) == 1_800, "half of a tenth"
    unknown = create_track("ci-16gb", idea.track.season, slug="unknown")
    unknown.config = {**unknown.config, "model": {"width": 64}}
    assert runs.get_upload_seconds(runs.make_run(idea, unknown)) is None


def test_job_has_the_limits_of_its_track_and_new_ones_when_it_is_resumed(idea: Entry, maintainer: User) -> None:
    (run,) = intake.approve_entry(idea, idea.sha, maintainer)
    track = run.track
    before = track.upload_limits()
    assert before is not None
    assert run.job is not None
    assert (run.job.max_file_bytes, run.job.max_lease_bytes) == (before.file_bytes, before.lease_bytes)
    perform_run_action(run, "hold", maintainer, is_maintainer=True)
    track.limits = {"file_bytes": 5, "disk_bytes": 7_000_000_000}
    track.full_clean()
    track.save()
    run = Run.objects.get(pk=run.pk)
    perform_run_action(run, "go-on", maintainer, is_maintainer=True)
    job = Job.objects.get(pk=run.job_id)
    assert (job.max_file_bytes, job.max_lease_bytes) == (5, before.lease_bytes)
    assert job.limits["disk_bytes"] == 7_000_000_000
