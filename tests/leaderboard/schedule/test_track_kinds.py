"""Tracks by machine class and kind: job requirements, priorities, trial runs and templates."""

from __future__ import annotations

import math
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError

from leaderboard import run_jobs, runs, scoring_work
from leaderboard.actions import perform_run_action
from leaderboard.models import Entry, Run, SeasonFile, Track
from leaderboard.schedule.track_templates import TEMPLATES, compute_template_size, create_track
from leaderboard.submissions import intake
from leaderboard.submissions.intake import IntakeError
from scheduler import storage
from scheduler.matching import parse_labels
from scheduler.models import Blob, Job, Node
from tests.leaderboard.conftest import Repository, finish_run
from trainer.accounting.budget import Budget
from trainer.accounting.training_size import KEPT_ON_NODE, KEPT_ON_SERVER, compute_model_size, estimate_memory
from trainer.scoring.benchmark_tasks import NAMES

GB = 10**9


def get_job(run: Run) -> Job:
    return Job.objects.get(run=run)


# --- the playground --------------------------------------------------------------------------------------------------


@pytest.fixture
def playground(track: Track) -> Track:
    track.kind = Track.Kind.PLAYGROUND
    track.trial = {"part": 0.25, "config": {"model": {"depth": 1}}}
    track.full_clean()
    track.save()
    return track


def test_playground_entry_without_hypothesis_is_refused(main_repository: Repository, playground: Track) -> None:
    with pytest.raises(IntakeError, match="what do you expect to see"):
        intake.submit_entry(str(main_repository.path), "main", "An idea", "smear", playground, hypothesis=" ")


def test_playground_trial_run_is_followed_by_full_run(
    main_repository: Repository, playground: Track, node: Node
) -> None:
    entry = intake.submit_entry(
        str(main_repository.path), "main", "An idea", "smear", playground, hypothesis="Fewer steps."
    )
    (trial_run,) = intake.approve_entry(entry, entry.sha, None)
    assert (trial_run.budget, trial_run.is_trial, get_job(trial_run).preemptible) == ("5steps", True, True)
    assert run_jobs.get_configuration(trial_run)["model"]["depth"] == 1
    finish_run(trial_run, node)
    full_run = entry.runs.exclude(pk=trial_run.pk).get()
    assert (full_run.state, full_run.budget, full_run.is_trial) == ("queued", "20steps", False)
    assert run_jobs.get_configuration(full_run)["model"]["depth"] == 2
    finish_run(full_run, node)
    assert entry.runs.count() == 2
    assert list(Run.objects.on_board(playground)) == [full_run]


SWARM: dict[str, Any] = {
    "kind": Track.Kind.SWARM, "swarm": {"stages": 2, "workers": 2}, "probe_seconds": 0, "nightly": False,
}  # fmt: skip
LADDER = {"rungs": [0.5, 1], "seeds": 1}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ladder": {"rungs": [0.5, 1]}}, "it is"),
        ({"ladder": []}, "it is"),
        ({"ladder": {"rungs": [0.5, 2], "seeds": 3}}, "1 .the whole budget. is one of them"),
        ({"ladder": {"rungs": [1, 1], "seeds": 3}}, "each rung comes once"),
        ({"ladder": {"rungs": [1, "2"], "seeds": 3}}, "rungs are parts of the budget"),
        ({"ladder": {"rungs": [1, 0.001], "seeds": 3}}, "from 1/64 to 64"),
        ({"ladder": {"rungs": [1], "seeds": 0}}, "seeds is a whole number"),
        ({"ladder": {"rungs": [1], "seeds": True}}, "seeds is a whole number"),
        ({"ladder": {"rungs": [0.51, 0.52, 1], "seeds": 1}}, "too small for rungs so near"),
        ({"trial": {"config": {}}}, "trial: it is"),
        ({"trial": {"part": 1}}, "less than 1"),
        ({"trial": {"part": 0.5, "config": []}}, "a table"),
        ({"kind": Track.Kind.PLAYGROUND, "trial": {"part": 0.5, "config": {}}, "ladder": LADDER}, "one or the other"),
        ({"milestones": 10, "releases": 7}, "one must be a multiple of the other"),
        ({**SWARM, "swarm": {}}, "it is"),
        ({**SWARM, "swarm": {"stages": 0, "workers": 1}}, "whole number"),
        ({**SWARM, "swarm": {"stages": 2, "workers": 2, "patience": 0}}, "patience"),
        ({**SWARM, "budget": "60s"}, "number of steps"),
        ({**SWARM, "releases": 10}, "no releases"),
        ({"swarm": SWARM["swarm"]}, "only a track of kind swarm"),
    ],
)
def test_track_with_invalid_settings_is_refused(track: Track, fields: dict[str, Any], message: str) -> None:
    for name, value in fields.items():
        setattr(track, name, value)
    with pytest.raises(ValidationError, match=message):
        track.full_clean()


@pytest.mark.parametrize("name", TEMPLATES)
def test_template_fits_its_card_and_has_suite_and_ladder(name: str) -> None:
    template = TEMPLATES[name]
    needs = parse_labels(tuple(template["needs_labels"]))
    size = compute_template_size(template)
    if name == "tune-1b5-2x24gb":
        size = compute_model_size({"arch": "rwkv5-1b5"}, vocabulary_size=65_536)
    assert size is not None
    assert sum(estimate_memory(size, template["config"]).values()) <= needs.gpu_memory_bytes
    assert template["config"]["devices"] == needs.gpus, "a larger node would use only these"
    assert set(template["suite"]) <= set(NAMES)
    assert template["suite_limit"] == 500, "the same limit as nanochat's CORE"
    assert template["expected_seconds"] > 0
    if "ladder" not in template:
        assert name in ("long-run-8x80gb", "playground-16gb")
        assert "No ladder, since" in template["description"], "the description gives the reason"
    else:
        assert "trial" not in template, "the ladder would have runs of smaller models"
        assert 1 in template["ladder"]["rungs"]
        assert template["ladder"]["seeds"] >= 2, "sigma is estimated from replicates"


def build_run(track: Track) -> Run:
    """Build an unsaved run of the track's baseline."""
    entry = Entry(kind=Entry.Kind.MAIN, track=track)
    return Run(entry=entry, track=track, season=track.season, budget=track.budget, job=Job(release=Blob()))


@pytest.mark.django_db
@pytest.mark.parametrize("name", TEMPLATES)
def test_template_jobs_need_what_training_and_inference_take_and_keep(name: str, track: Track) -> None:
    template_track = create_track(name, track.season)
    run = build_run(template_track)
    job = run_jobs.build_score_job(run, template_track.suite)
    memory = template_track.get_scoring_memory()
    assert (job["needs_gpus"], job["needs_labels"], job["needs_gpu_memory_bytes"]) == (1, [], memory)
    assert 8 * template_track.size.parameters < memory < 8 * template_track.size.parameters + 7e9
    assert memory <= 0.9 * parse_labels(tuple(template_track.needs_labels)).gpu_memory_bytes
    training = template_track.training_limits()
    assert job["limits"]["memory_bytes"] <= training.memory_bytes
    assert job["needs_disk_bytes"] == job["limits"]["disk_bytes"] <= training.disk_bytes
    assert job["needs_memory_bytes"] <= template_track.needs_memory_bytes
    train_job = run_jobs.build_train_job(run, Blob())
    assert train_job["needs_gpus"] >= 1
    assert 0 < train_job["checkpoint_seconds"] <= 900
    names = [label for label in template_track.needs_labels if not label.endswith("gb")]
    assert train_job["needs_labels"] == names, "only labels of GPU names remain"
    size, uploads = template_track.size, template_track.upload_limits()
    assert uploads.file_bytes >= size.optimizer_bytes
    kept_bytes = template_track.get_checkpoint_sizes().kept
    assert uploads.lease_bytes >= KEPT_ON_SERVER * size.checkpoint_bytes + kept_bytes
    assert training.disk_bytes >= KEPT_ON_NODE * size.checkpoint_bytes + kept_bytes - size.weights_bytes
    assert training.memory_bytes >= 2 * size.checkpoint_bytes


@pytest.mark.django_db
def test_night_template_fits_24_hours_from_departure_to_departure(proposed_entry: Entry) -> None:
    """A night and its score on one card, with an interruption of two hours and the work that it loses: 25 hours."""
    template_track = create_track("night-h100", proposed_entry.track.season)
    run = runs.make_run(proposed_entry, template_track)
    assert Budget.parse(run.budget).amount == template_track.expected_seconds
    seconds = run_jobs.get_upload_seconds(run)
    assert seconds is not None
    sizes = template_track.get_checkpoint_sizes()
    assert (sizes.milestones, sizes.milestone) == (9, 2 * template_track.size.parameters)
    assert (sizes.checkpoint, sizes.final) == (template_track.size.checkpoint_bytes, 4 * template_track.size.parameters)
    lost = math.ceil(seconds / 900) * 900  # a checkpoint every 15 minutes
    work = scoring_work.compute_scoring_work(run, template_track.suite, 0)
    score, _ = scoring_work.estimate_scoring_times(template_track, work)
    uploaded = (sizes.final + 2 * sizes.checkpoint) / 1e8  # at a gigabit: a ladder run's, its own, a download
    starts = 2 * 300 + 0.01 * template_track.expected_seconds  # with evaluations
    taken = template_track.expected_seconds + score + uploaded + starts
    assert taken < 23 * 3600
    assert taken + 2 * 3600 + lost < 25 * 3600


def test_job_needs_the_disk_of_its_dataset(proposed_entry: Entry) -> None:
    run = runs.make_run(proposed_entry, proposed_entry.track)
    limits = run.track.training_limits()
    assert run_jobs.get_needs(run, limits)["needs_disk_bytes"] == limits.disk_bytes
    for path, size in (("train/00000.bin", 500), ("dev/00000.bin", 70), ("test/00000.bin", 9), ("manifest.json", 2)):
        blob = storage.store_bytes(bytes(size))
        SeasonFile.objects.create(season=run.season, kind="dataset", path=path, blob=blob)
    assert run_jobs.get_needs(run, limits)["needs_disk_bytes"] == limits.disk_bytes + 572
    needs = run_jobs.get_scoring_needs(run, limits, run.season.get_dataset_bytes("test"))
    assert needs["needs_disk_bytes"] == limits.disk_bytes + 11


def test_resumed_job_gets_new_limits_of_its_track(proposed_entry: Entry, maintainer: User) -> None:
    (run,) = intake.approve_entry(proposed_entry, proposed_entry.sha, maintainer)
    track = run.track
    old_limits = track.upload_limits()
    assert (run.job.max_file_bytes, run.job.max_lease_bytes) == (old_limits.file_bytes, old_limits.lease_bytes)
    perform_run_action(run, "hold", maintainer, is_maintainer=True)
    track.limits = {"file_bytes": 5, "disk_bytes": 7_000_000_000}
    track.full_clean()
    track.save()
    run = Run.objects.get(pk=run.pk)
    perform_run_action(run, "resume", maintainer, is_maintainer=True)
    job = Job.objects.get(pk=run.job_id)
    assert (job.max_file_bytes, job.max_lease_bytes) == (5, old_limits.lease_bytes)
    assert job.limits["disk_bytes"] == 7_000_000_000
