"""Tracks for classes of machines and ways of working: what their jobs need, who goes first, who begins small."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from django.contrib.auth.models import Group, User
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command

from leaderboard import runs
from leaderboard.models import Entry, Run, Track
from leaderboard.schedule import track_templates
from leaderboard.submissions import intake
from leaderboard.submissions.intake import IntakeError
from scheduler import storage
from scheduler.models import Job, Node
from tests.leaderboard.conftest import Repository, finish
from trainer.config.parsing import parse_config
from trainer.config.resolve import resolve_config

GB = 10**9


def job_of(run: Run) -> Job:
    return Job.objects.get(run=run)


def test_numbers_in_labels_become_what_the_job_needs(idea: Entry, track: Track) -> None:
    Track.objects.update(
        needs_labels=["2x24gb", "500gb", "rack-4"], needs_memory_bytes=7, config={"checkpoint_every": "5m"}
    )
    idea.track.refresh_from_db()
    (run,) = intake.approve_entry(idea, idea.sha, None)
    job = job_of(run)
    assert (job.needs_gpus, job.needs_gpu_memory_bytes, job.needs_labels) == (2, 24 * GB, ["rack-4"])
    assert (job.needs_disk_bytes, job.needs_memory_bytes) == (500 * GB, 7)
    assert (job.track, job.checkpoint_seconds, job.preemptible) == ("small", 300, False)


@pytest.mark.parametrize(
    ("every", "seconds"), [("30s", 30), ("5steps", 2.5), ("40steps", 20), ("soon", 0)]
)  # of a budget of 20 steps in 10 seconds
def test_how_often_it_saves_is_told_to_the_queue(run: Run, every: str, seconds: float) -> None:
    run.track.config = {"checkpoint_every": every}
    assert runs.get_checkpoint_seconds(run) == seconds


def test_scoring_needs_one_gpu_of_the_kind_that_trained_it(run: Run, node: Node) -> None:
    Track.objects.update(needs_labels=["4x80gb", "rack-4"])
    run = finish(run, node)
    assert run.score_job
    assert (run.score_job.needs_gpus, run.score_job.needs_gpu_memory_bytes) == (1, 80 * GB)
    assert (run.score_job.needs_labels, run.score_job.track) == ([], "small")


def test_who_belongs_to_the_core(run: Run, maintainer: User) -> None:
    assert not runs.is_from_core(run)
    member = User.objects.create_user("cora")
    run.entry.requested_by = member
    assert not runs.is_from_core(run)
    member.groups.add(Group.objects.create(name="core"))
    run.entry.requested_by = User.objects.get(pk=member.pk)
    assert runs.is_from_core(run)
    run.entry.requested_by = maintainer
    assert runs.is_from_core(run)
    run.entry.requested_by, run.purpose = None, Run.Purpose.NIGHTLY
    assert runs.is_from_core(run)


# --- the playground --------------------------------------------------------------------------------------------------


@pytest.fixture
def playground(track: Track) -> Track:
    track.kind = Track.Kind.PLAYGROUND
    track.trial = {"part": 0.25, "config": {"model": {"depth": 1}}}
    track.full_clean()
    track.save()
    return track


def test_the_playground_asks_for_a_hypothesis(main: Repository, playground: Track) -> None:
    with pytest.raises(IntakeError, match="what do you expect to see"):
        intake.submit_entry(str(main.path), "main", "An idea", "smear", playground, hypothesis=" ")


def test_a_small_model_goes_first_and_the_whole_one_follows_when_it_has_arrived(
    main: Repository, playground: Track, node: Node
) -> None:
    entry = intake.submit_entry(str(main.path), "main", "An idea", "smear", playground, hypothesis="Fewer steps.")
    (small,) = intake.approve_entry(entry, entry.sha, None)
    assert (small.budget, small.is_trial, job_of(small).preemptible) == ("5steps", True, True)
    assert runs.get_configuration(small)["model"]["depth"] == 1
    finish(small, node)
    whole = entry.runs.exclude(pk=small.pk).get()
    assert (whole.state, whole.budget, whole.is_trial) == ("queued", "20steps", False)
    assert runs.get_configuration(whole)["model"]["depth"] == 2
    finish(whole, node)
    assert entry.runs.count() == 2
    assert list(Run.objects.on_board(playground)) == [whole]


def test_whoever_plays_goes_with_the_community(main: Repository, playground: Track, maintainer: User) -> None:
    entry = intake.submit_entry(
        str(main.path), "main", "An idea", "smear", playground, hypothesis="Fewer steps.", requested_by=maintainer
    )
    (run,) = intake.approve_entry(entry, entry.sha, maintainer)
    assert job_of(run).priority == Job.Priority.COMMUNITY


@pytest.mark.parametrize(
    ("trial", "complaint"),
    [
        ({"config": {}}, "trial: it is"),
        ({"part": 1}, "less than 1"),
        ({"part": 0.5, "config": []}, "a table"),
        ({"part": 0.5, "size": 3}, "trial: it is"),
    ],
)
def test_an_impossible_trial_is_refused(track: Track, trial: object, complaint: str) -> None:
    track.trial = trial  # type: ignore[assignment]
    with pytest.raises(ValidationError, match=complaint):
        track.clean()


def test_a_trial_and_a_ladder_do_not_go_together(playground: Track) -> None:
    playground.ladder = {"rungs": [0.5, 1], "seeds": 1}
    with pytest.raises(ValidationError, match="one or the other"):
        playground.clean()


# --- templates -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", track_templates.TEMPLATES)
def test_each_template_makes_a_track_whose_jobs_can_be_ordered(name: str, idea: Entry) -> None:
    made = track_templates.create_track(name, idea.track.season)
    run = runs.make_run(idea, made)
    job = runs.build_train_job(run, storage.store_release())
    assert job["needs_gpus"] >= 1
    assert 0 < job["checkpoint_seconds"] <= 900
    names = [label for label in made.needs_labels if not label.endswith("gb")]
    assert job["needs_labels"] == names, "GPUs by name"


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
    assert resolved.micro_batch == template["config"]["train"]["micro_batch"], "fits the card, so it is not searched"


def test_create_track_says_what_it_made_and_refuses_a_second(track: Track) -> None:
    told = StringIO()
    call_command("create_track", "tune-1b5-2x24gb", stdout=told)
    assert told.getvalue() == "1.5 billion on two cards of 24 GB: /tracks/tune-1b5-2x24gb/, needs 2x24gb\n"
    with pytest.raises(CommandError, match="Choose another --slug"):
        call_command("create_track", "tune-1b5-2x24gb")
    call_command("create_track", "tune-1b5-2x24gb", "--slug", "second", "--name", "Again", stdout=told)
    assert Track.objects.get(slug="second").name == "Again"
