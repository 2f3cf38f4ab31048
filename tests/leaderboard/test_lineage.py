"""A run that goes on from another's checkpoint: what its node is given, what its page draws and says; going back."""

from __future__ import annotations

import re
from datetime import timedelta
from io import StringIO

import numpy as np
import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from leaderboard import actions, initial_weights, lineage, runs
from leaderboard.models import Entry, Run, Track
from leaderboard.publishing import publications
from leaderboard.runs import RunError
from scheduler import leases, retention
from scheduler.job_kinds import get_job_kind
from scheduler.models import Checkpoint, Job, Lease, Node
from tests.leaderboard.conftest import finish, lease, train_row, upload
from trainer import protocol


@pytest.fixture
def first(run: Run, able: Node) -> Run:
    """A run at step 16 of 20, with checkpoints of steps 8 and 16; its node has it no more."""
    assert run.job
    lease(run.job, able)
    get_job_kind(run.job).handle_metrics(run.job, [train_row(step, 4 - step / 10) for step in range(1, 17)])
    upload(run.job, 8)
    upload(run.job, 16)
    able.leases.update(state=Lease.State.FINISHED)
    run.refresh_from_db()
    return run


@pytest.fixture
def second(first: Run) -> Run:
    """The first one rewound to step 8, which has run 4 steps."""
    made = runs.rewind_run(first, 8, actor="mara")
    assert made.job
    learn(made, 4)
    return made


def learn(run: Run, steps: int) -> None:
    node = Node.objects.get(name="cellar")
    assert run.job
    lease(run.job, node)
    get_job_kind(run.job).handle_metrics(run.job, [train_row(step, 3 - step / 10) for step in range(1, steps + 1)])
    run.refresh_from_db()


def test_a_rewind_is_a_run_of_what_was_left_and_starts_from_that_checkpoint(first: Run, able: Node) -> None:
    made = runs.rewind_run(first, 8, actor="mara")
    assert (made.entry, made.budget, made.purpose) == (first.entry, "12steps", Run.Purpose.REWIND)
    assert (made.start_run, made.start_checkpoint) == (first, Checkpoint.objects.get(job=first.job, step=8))
    Job.objects.filter(pk=first.job_id).update(state=Job.State.CANCELLED)
    given = leases.claim_job(able)
    assert given is not None
    order = protocol.JobSpec.model_validate_json(given.spec).order
    assert isinstance(order, protocol.TrainOrder)
    assert order.base is not None
    assert (order.base.name, order.base.checkpoint.step) == (f"run-{first.pk}", 8)


def test_what_a_rewind_starts_from_stays(second: Run, first: Run) -> None:
    Job.objects.filter(pk=first.job_id).update(
        state=Job.State.CANCELLED, finished_at=timezone.now() - timedelta(days=9)
    )
    retention.delete_expired(timezone.now() + timedelta(days=365))
    assert sorted(initial_weights.list_steps(first)) == [8, 16]


def test_a_release_can_be_gone_back_to_when_its_checkpoint_is_forgotten(first: Run) -> None:
    publications.publish_release(first, Checkpoint.objects.get(job=first.job, step=8), "40-percent")
    Checkpoint.objects.filter(job=first.job, step=8).delete()
    made = runs.rewind_run(first, 8, actor="mara")
    assert made.start_checkpoint is not None
    assert made.start_checkpoint.blobs.count() == 1


def test_rewind_to_superseded_checkpoint_without_files_is_refused(first: Run) -> None:
    Checkpoint.objects.filter(job=first.job, step=8).update(files_deleted_at=timezone.now())
    assert initial_weights.list_steps(first) == [16]
    with pytest.raises(RunError, match="no checkpoint of step 8"):
        runs.rewind_run(first, 8, actor="mara")


def test_rewind_to_release_without_checkpoint_files_restores_them(first: Run) -> None:
    checkpoint = Checkpoint.objects.get(job=first.job, step=8)
    publications.publish_release(first, checkpoint, "40-percent")
    checkpoint.blobs.clear()
    Checkpoint.objects.filter(pk=checkpoint.pk).update(files_deleted_at=timezone.now())
    made = runs.rewind_run(first, 8, actor="mara")
    assert made.start_checkpoint == checkpoint
    assert made.start_checkpoint.files_deleted_at is None
    assert made.start_checkpoint.blobs.count() == 1


def test_nobody_goes_back_to_what_is_not_there_or_used_up(first: Run) -> None:
    with pytest.raises(RunError, match="no checkpoint of step 9"):
        runs.rewind_run(first, 9, actor="mara")
    Run.objects.filter(pk=first.pk).update(fraction=1.0)
    first.refresh_from_db()
    with pytest.raises(RunError, match="nothing is left"):
        runs.rewind_run(first, 16, actor="mara")


def test_maintainers_rewind_on_the_page_and_authors_do_not(first: Run, maintainer: User, client: Client) -> None:
    author = User.objects.create_user("ada")
    Entry.objects.filter(pk=first.entry_id).update(requested_by=author)
    first.refresh_from_db()
    assert "rewind" not in [action.name for action in actions.list_run_actions(author, first, is_maintainer=False)]
    client.force_login(maintainer)
    page = client.get(first.get_absolute_url()).content.decode()
    assert "<option>16</option><option>8</option>" in page
    answer = client.post(f"{first.get_absolute_url()}ask/rewind/", {"step": "8"}, follow=True)
    assert "A new run resumes from there" in answer.content.decode()
    assert Run.objects.get(purpose=Run.Purpose.REWIND).start_run == first
    answer = client.post(f"{first.get_absolute_url()}ask/rewind/", {"step": "x"}, follow=True)
    assert "choose a step" in answer.content.decode()


def test_a_rewind_is_no_result_of_its_entry(second: Run, able: Node) -> None:
    assert second.job
    finish(second, able)
    assert second not in Run.objects.scored(second.track)
    second.track.clean()  # its runs start from scratch, as it says


def test_one_picture_has_the_old_branch_the_step_back_and_the_new_one(second: Run, first: Run, client: Client) -> None:
    page = client.get(second.get_absolute_url()).content.decode()
    large = page[page.index('id="curve"') : page.index('id="panels"')]
    paths = {colour: points(d) for colour, d in re.findall(r'class="smooth is-(\w+)" d="([^"]+)"', large)}
    before, left, back, own = (paths[name] for name in ("before", "left", "back", "ink"))
    at = before[-1]
    assert left[0] == at == back[0]
    assert back[-1] == left[-1]
    # The second begins where the first was left, and there is room for the rest of its budget.
    end = 8 + 4 / second.fraction
    assert [at[0], own[0][0], left[-1][0]] == pytest.approx([100 * 8 / end, 100 * 9 / end, 100 * 16 / end], abs=0.1)


def points(path: str) -> list[tuple[float, float]]:
    """Return where a path goes, in per cent."""
    steps = np.array(path.removeprefix("m").split(), dtype=float).reshape(-1, 2)
    return [(x, y) for x, y in (steps.cumsum(axis=0) / 100).tolist()]


def test_the_page_says_it_in_words_and_the_api_in_rows(second: Run, first: Run, client: Client) -> None:
    Run.objects.filter(pk=second.pk).update(config={"from": {"versions": [5.0, 5.1]}})
    page = " ".join(client.get(second.get_absolute_url()).content.decode().split())
    assert (
        f'<a href="{first.get_absolute_url()}">Run {first.pk}</a>, Smeared keys: left at step 8, 8 steps before' in page
    )
    assert "The weights of version 5 were made into those of 5.1." in page
    assert f"--from run-{first.pk}" in page
    assert "--step 8" in page
    told = client.get(f"/api/v1/runs/{second.pk}").json()
    assert (told["start_run"], told["start_step"]) == (first.pk, 8)
    assert told["lineage"] == [
        {
            "run": first.pk,
            "step": 8,
            "tokens": 8 * 512,
            "went_on_to": 16,
            "versions": ["5", "5.1"],
            "page": first.get_absolute_url(),
        }
    ]
    assert client.get(f"/api/v1/runs/{first.pk}").json()["lineage"] == []


def test_the_script_gets_the_same_branches(second: Run, first: Run, client: Client) -> None:
    branches = client.get(f"{second.get_absolute_url()}lineage.json").json()["branches"]
    assert [branch["colour"] for branch in branches] == ["before", "left", "back"]
    assert [branch["columns"]["train"]["step"][-1] for branch in branches] == [8, 16, 16]
    assert [branch["columns"]["end"]["step"] for branch in branches] == [8, 16, 16]
    own = client.get(f"{second.get_absolute_url()}live.json").json()["curve"]
    assert own["train"]["step"] == [9, 10, 11, 12]
    assert own["end"]["step"] == pytest.approx(8 + 4 / second.fraction)
    assert 'data-lineage="' not in client.get(first.get_absolute_url()).content.decode()


def test_milestones_say_what_the_runs_before_have_seen(second: Run, client: Client) -> None:
    Track.objects.filter(pk=second.track_id).update(releases=10)
    page = " ".join(client.get(second.get_absolute_url()).content.decode().split())
    assert "20.0 % of the way, 2.05 k of 10.2 k tokens, after 4.1 k of the runs before it" in page.replace(
        "\u00a0", " "
    )


def test_a_grandchild_counts_from_the_oldest(second: Run, first: Run) -> None:
    assert second.job
    upload(second.job, 4)
    third = runs.rewind_run(second, 4, actor="mara")
    stages = lineage.list_stages(third)
    assert [(stage.run, stage.left.step, stage.since.step) for stage in stages] == [(first, 8, 0), (second, 4, 8)]
    assert lineage.find_end(stages).tokens == (8 + 4) * 512


@pytest.mark.parametrize("told", [None, 5, {"versions": "5"}, {"versions": [1]}, {"versions": ["<b>", 5]}])
def test_what_a_node_says_of_versions_is_checked(told: object) -> None:
    assert lineage.parse_versions({"from": told}) is None


def test_a_track_can_start_from_a_checkpoint_of_a_run_that_goes_on(first: Run) -> None:
    call_command("create_track", "tune-1b5-2x24gb", "--start", str(first.pk), "--step", "8", stdout=StringIO())
    track = Track.objects.get(slug="tune-1b5-2x24gb")
    assert track.start_checkpoint is not None
    assert (track.start_run, track.start_checkpoint.step) == (first, 8)
    made = runs.make_run(first.entry, track)
    assert made.start_checkpoint == track.start_checkpoint
    track.clean()
    with pytest.raises(CommandError, match="no checkpoint of step 9"):
        call_command("create_track", "ci-16gb", "--start", str(first.pk), "--step", "9", stdout=StringIO())
    track.start_run = None
    with pytest.raises(ValidationError, match="belongs to a run"):
        track.clean()


def test_the_admin_offers_the_checkpoints_of_the_run_that_a_track_starts_from(
    first: Run, maintainer: User, client: Client
) -> None:
    client.force_login(maintainer)
    Track.objects.filter(pk=first.track_id).update(start_run=first)
    page = client.get(f"/admin/leaderboard/track/{first.track_id}/change/").content.decode()
    assert f"job {first.job_id}, step 8" in page
