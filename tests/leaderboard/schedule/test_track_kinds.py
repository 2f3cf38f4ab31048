"""Tracks by machine class and kind: job requirements, priorities, trial runs and templates."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from django.contrib.auth.models import Group, User
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command

from leaderboard import run_jobs, runs
from leaderboard.models import Entry, Run, Track
from leaderboard.schedule import track_templates
from leaderboard.submissions import intake
from leaderboard.submissions.intake import IntakeError
from scheduler import storage
from scheduler.models import Job, Node
from tests.leaderboard.conftest import Repository, finish_run
from trainer.config.parsing import parse_config
from trainer.config.train_config import resolve_config

GB = 10**9


def get_job(run: Run) -> Job:
    return Job.objects.get(run=run)


def test_job_needs_are_computed_from_track_labels(proposed_entry: Entry, track: Track) -> None:
    Track.objects.update(
        needs_labels=["2x24gb", "500gb", "rack-4"], needs_memory_bytes=7, config={"checkpoint_every": "5m"}
    )
    proposed_entry.track.refresh_from_db()
    (run,) = intake.approve_entry(proposed_entry, proposed_entry.sha, None)
    job = get_job(run)
    assert (job.needs_gpus, job.needs_gpu_memory_bytes, job.needs_labels) == (2, 24 * GB, ["rack-4"])
    assert (job.needs_disk_bytes, job.needs_memory_bytes) == (500 * GB, 7)
    assert (job.track, job.checkpoint_seconds, job.preemptible) == ("small", 300, False)


@pytest.mark.parametrize(
    ("every", "seconds"), [("30s", 30), ("5steps", 2.5), ("40steps", 20), ("soon", 0)]
)  # of a budget of 20 steps in 10 seconds
def test_checkpoint_seconds_are_computed_from_config(run: Run, every: str, seconds: float) -> None:
    run.track.config = {"checkpoint_every": every}
    assert run_jobs.get_checkpoint_seconds(run) == seconds


def test_score_job_needs_one_gpu_and_less_memory(run: Run, node: Node) -> None:
    Track.objects.update(needs_labels=["4x80gb", "rack-4"])
    run = finish_run(run, node)
    assert run.score_job
    assert run.score_job.needs_gpus == 1
    assert 0 < run.score_job.needs_gpu_memory_bytes < 80 * GB, "inference needs less than training"
    assert (run.score_job.needs_labels, run.score_job.track) == ([], "small")


def test_run_is_from_core_for_members_maintainers_and_nightlies(run: Run, maintainer: User) -> None:
    assert not run_jobs.is_from_core(run)
    member = User.objects.create_user("cora")
    run.entry.requested_by = member
    assert not run_jobs.is_from_core(run)
    member.groups.add(Group.objects.create(name="core"))
    run.entry.requested_by = User.objects.get(pk=member.pk)
    assert run_jobs.is_from_core(run)
    run.entry.requested_by = maintainer
    assert run_jobs.is_from_core(run)
    run.entry.requested_by, run.purpose = None, Run.Purpose.NIGHTLY
    assert run_jobs.is_from_core(run)


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


def test_playground_run_of_maintainer_has_community_priority(
    main_repository: Repository, playground: Track, maintainer: User
) -> None:
    entry = intake.submit_entry(
        str(main_repository.path),
        "main",
        "An idea",
        "smear",
        playground,
        hypothesis="Fewer steps.",
        requested_by=maintainer,
    )
    (run,) = intake.approve_entry(entry, entry.sha, maintainer)
    assert get_job(run).priority == Job.Priority.COMMUNITY


@pytest.mark.parametrize(
    ("trial", "message"),
    [
        ({"config": {}}, "trial: it is"),
        ({"part": 1}, "less than 1"),
        ({"part": 0.5, "config": []}, "a table"),
        ({"part": 0.5, "size": 3}, "trial: it is"),
    ],
)
def test_track_with_invalid_trial_is_refused(track: Track, trial: object, message: str) -> None:
    track.trial = trial  # type: ignore[assignment]
    with pytest.raises(ValidationError, match=message):
        track.clean()


def test_track_with_trial_and_ladder_is_refused(playground: Track) -> None:
    playground.ladder = {"rungs": [0.5, 1], "seeds": 1}
    with pytest.raises(ValidationError, match="one or the other"):
        playground.clean()


# --- templates -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", track_templates.TEMPLATES)
def test_template_track_builds_a_valid_train_job(name: str, proposed_entry: Entry) -> None:
    template_track = track_templates.create_track(name, proposed_entry.track.season)
    run = runs.make_run(proposed_entry, template_track)
    job = run_jobs.build_train_job(run, storage.store_release())
    assert job["needs_gpus"] >= 1
    assert 0 < job["checkpoint_seconds"] <= 900
    names = [label for label in template_track.needs_labels if not label.endswith("gb")]
    assert job["needs_labels"] == names, "only labels of GPU names remain"


@pytest.mark.parametrize("name", track_templates.TEMPLATES)
def test_template_trains_in_bf16_unless_for_16_gb_gpus(name: str) -> None:
    template = track_templates.TEMPLATES[name]
    expected = None if template["needs_labels"] in (["1x16gb"], ["1x8gb"]) else "bf16"
    assert template["config"]["train"].get("precision") == expected


@pytest.mark.parametrize("name", track_templates.TEMPLATES)
def test_template_resolves_on_cuda(name: str, tmp_path: Path) -> None:
    template = track_templates.TEMPLATES[name]
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"budget": template["budget"], **template["config"]}))
    resolved = resolve_config(parse_config(["--config", str(file), "--out", str(tmp_path)]), "cuda")
    assert (resolved.precision, resolved.muon_precision, resolved.compile) == ("bf16", "bf16", True)
    assert resolved.micro_batch == template["config"]["train"]["micro_batch"]


def test_create_track_command_prints_track_and_refuses_duplicate(track: Track) -> None:
    output = StringIO()
    call_command("create_track", "tune-1b5-2x24gb", stdout=output)
    assert output.getvalue() == "1.5 billion on two cards of 24 GB: /tracks/tune-1b5-2x24gb/, needs 2x24gb\n"
    with pytest.raises(CommandError, match="Choose another --slug"):
        call_command("create_track", "tune-1b5-2x24gb")
    call_command("create_track", "tune-1b5-2x24gb", "--slug", "second", "--name", "Again", stdout=output)
    assert Track.objects.get(slug="second").name == "Again"
