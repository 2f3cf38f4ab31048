"""Rewound runs: start checkpoint, order for the node, and the lineage on the page and in the API."""

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
from leaderboard.run_states import RunError
from scheduler import leases, retention
from scheduler.job_kinds import get_job_kind
from scheduler.models import Checkpoint, Job, Lease, Node
from tests.leaderboard.conftest import build_train_row, create_checkpoint, finish_run, publish_release
from tests.support.node_jobs import lease_job
from trainer import protocol


@pytest.fixture
def original_run(run: Run, capable_node: Node) -> Run:
    """A run at step 16 of 20 with checkpoints of steps 8 and 16, whose lease has ended."""
    assert run.job
    lease_job(run.job, capable_node)
    get_job_kind(run.job).handle_metrics(run.job, [build_train_row(step, 4 - step / 10) for step in range(1, 17)])
    create_checkpoint(run.job, 8)
    create_checkpoint(run.job, 16)
    capable_node.leases.update(state=Lease.State.FINISHED)
    run.refresh_from_db()
    return run


@pytest.fixture
def rewound_run(original_run: Run) -> Run:
    """The original run rewound to step 8, after 4 steps."""
    run = runs.rewind_run(original_run, 8, actor="mara")
    assert run.job
    train_steps(run, 4)
    return run


def train_steps(run: Run, steps: int) -> None:
    node = Node.objects.get(name="cellar")
    assert run.job
    lease_job(run.job, node)
    get_job_kind(run.job).handle_metrics(
        run.job, [build_train_row(step, 3 - step / 10) for step in range(1, steps + 1)]
    )
    run.refresh_from_db()


def test_rewound_run_has_remaining_budget_and_start_checkpoint(original_run: Run, capable_node: Node) -> None:
    new_run = runs.rewind_run(original_run, 8, actor="mara")
    assert (new_run.entry, new_run.budget, new_run.purpose) == (original_run.entry, "12steps", Run.Purpose.REWIND)
    assert (new_run.start_run, new_run.start_checkpoint) == (
        original_run,
        Checkpoint.objects.get(job=original_run.job, step=8),
    )
    Job.objects.filter(pk=original_run.job_id).update(state=Job.State.CANCELLED)
    claimed = leases.claim_job(capable_node)
    assert claimed is not None
    order = protocol.JobSpec.model_validate_json(claimed.spec).order
    assert isinstance(order, protocol.TrainOrder)
    assert order.base is not None
    assert (order.base.name, order.base.checkpoint.step) == (f"run-{original_run.pk}", 8)


def test_retention_keeps_checkpoints_of_rewound_run(rewound_run: Run, original_run: Run) -> None:
    Job.objects.filter(pk=original_run.job_id).update(
        state=Job.State.CANCELLED, finished_at=timezone.now() - timedelta(days=9)
    )
    retention.delete_expired(timezone.now() + timedelta(days=365))
    assert sorted(initial_weights.list_steps(original_run)) == [8, 16]


def test_rewind_to_release_without_checkpoint_is_possible(original_run: Run) -> None:
    publish_release(original_run, Checkpoint.objects.get(job=original_run.job, step=8), "40-percent")
    Checkpoint.objects.filter(job=original_run.job, step=8).delete()
    new_run = runs.rewind_run(original_run, 8, actor="mara")
    assert new_run.start_checkpoint is not None
    assert new_run.start_checkpoint.blobs.count() == 1


def test_rewind_to_superseded_checkpoint_without_files_is_refused(original_run: Run) -> None:
    Checkpoint.objects.filter(job=original_run.job, step=8).update(files_deleted_at=timezone.now())
    assert initial_weights.list_steps(original_run) == [16]
    with pytest.raises(RunError, match="no checkpoint of step 8"):
        runs.rewind_run(original_run, 8, actor="mara")


def test_rewind_to_release_without_checkpoint_files_restores_them(original_run: Run) -> None:
    checkpoint = Checkpoint.objects.get(job=original_run.job, step=8)
    publish_release(original_run, checkpoint, "40-percent")
    checkpoint.blobs.clear()
    Checkpoint.objects.filter(pk=checkpoint.pk).update(files_deleted_at=timezone.now())
    new_run = runs.rewind_run(original_run, 8, actor="mara")
    assert new_run.start_checkpoint is not None
    assert (new_run.start_checkpoint.step, new_run.start_checkpoint.from_milestone) == (8, True)
    assert original_run.job.checkpoints.uploaded().get(step=8) == checkpoint
    assert new_run.start_checkpoint.files_deleted_at is None
    assert new_run.start_checkpoint.blobs.count() == 1


def test_rewind_to_unknown_step_or_full_budget_is_refused(original_run: Run) -> None:
    with pytest.raises(RunError, match="no checkpoint of step 9"):
        runs.rewind_run(original_run, 9, actor="mara")
    Run.objects.filter(pk=original_run.pk).update(fraction=1.0)
    original_run.refresh_from_db()
    with pytest.raises(RunError, match="nothing is left"):
        runs.rewind_run(original_run, 16, actor="mara")


def test_second_rewind_to_a_step_waits_for_the_first(original_run: Run) -> None:
    first = runs.rewind_run(original_run, 8, actor="mara")
    with pytest.raises(RunError, match=f"Run {first.pk} starts from step 8 too"):
        runs.rewind_run(original_run, 8, actor="mara")
    runs.rewind_run(original_run, 16, actor="mara")
    runs.cancel_run(first, "Cancelled by mara.", "mara")
    runs.rewind_run(original_run, 8, actor="mara")
    assert Run.objects.filter(purpose=Run.Purpose.REWIND).count() == 3


def test_rewind_action_is_for_maintainers_only(original_run: Run, maintainer: User, client: Client) -> None:
    author = User.objects.create_user("ada")
    Entry.objects.filter(pk=original_run.entry_id).update(requested_by=author)
    original_run.refresh_from_db()
    assert "rewind" not in [
        action.name for action in actions.list_run_actions(author, original_run, is_maintainer=False)
    ]
    client.force_login(maintainer)
    page = client.get(original_run.get_absolute_url()).content.decode()
    assert "<option>16</option><option>8</option>" in page
    response = client.post(f"{original_run.get_absolute_url()}ask/rewind/", {"step": "8"}, follow=True)
    assert "A new run resumes from there" in response.content.decode()
    assert Run.objects.get(purpose=Run.Purpose.REWIND).start_run == original_run
    response = client.post(f"{original_run.get_absolute_url()}ask/rewind/", {"step": "x"}, follow=True)
    assert "choose a step" in response.content.decode()


def test_rewound_run_is_not_scored_for_its_entry(rewound_run: Run, capable_node: Node) -> None:
    assert rewound_run.job
    finish_run(rewound_run, capable_node)
    assert rewound_run not in Run.objects.scored(rewound_run.track)
    rewound_run.track.clean()  # the track's runs start from scratch


def test_lineage_chart_has_old_branch_and_new_branch(rewound_run: Run, original_run: Run, client: Client) -> None:
    page = client.get(rewound_run.get_absolute_url()).content.decode()
    chart = page[page.index('id="curve"') : page.index('id="panels"')]
    paths = {color: list_points(path) for color, path in re.findall(r'class="smooth is-(\w+)" d="([^"]+)"', chart)}
    before, left, back, own = (paths[name] for name in ("before", "left", "back", "ink"))
    branch_point = before[-1]
    assert left[0] == branch_point == back[0]
    assert back[-1] == left[-1]
    # The rewound run starts at the branch point, and the axis has room for the rest of its budget.
    end = 8 + 4 / rewound_run.fraction
    assert [branch_point[0], own[0][0], left[-1][0]] == pytest.approx(
        [100 * 8 / end, 100 * 9 / end, 100 * 16 / end], abs=0.1
    )


def list_points(path: str) -> list[tuple[float, float]]:
    """Return the points of an SVG path in percent."""
    steps = np.array(path.removeprefix("m").split(), dtype=float).reshape(-1, 2)
    return [(x, y) for x, y in (steps.cumsum(axis=0) / 100).tolist()]


def test_lineage_is_on_the_page_and_in_the_api(rewound_run: Run, original_run: Run, client: Client) -> None:
    Run.objects.filter(pk=rewound_run.pk).update(config={"from": {"versions": [5.0, 5.1]}})
    page = " ".join(client.get(rewound_run.get_absolute_url()).content.decode().split())
    link = f'<a href="{original_run.get_absolute_url()}">Run {original_run.pk}</a>'
    assert f"{link}, Smeared keys: left at step 8, 8 steps before" in page
    assert "The weights of version 5 were made into those of 5.1." in page
    assert f"--from run-{original_run.pk}" in page
    assert "--step 8" in page
    data = client.get(f"/api/v1/runs/{rewound_run.pk}").json()
    assert (data["start_run"], data["start_step"]) == (original_run.pk, 8)
    assert data["lineage"] == [
        {
            "run": original_run.pk,
            "step": 8,
            "tokens": 8 * 512,
            "went_on_to": 16,
            "versions": ["5", "5.1"],
            "page": original_run.get_absolute_url(),
        }
    ]
    assert client.get(f"/api/v1/runs/{original_run.pk}").json()["lineage"] == []


def test_lineage_json_has_the_branches_of_the_chart(rewound_run: Run, original_run: Run, client: Client) -> None:
    branches = client.get(f"{rewound_run.get_absolute_url()}lineage.json").json()["branches"]
    assert [branch["color"] for branch in branches] == ["before", "left", "back"]
    assert [branch["columns"]["train"]["step"][-1] for branch in branches] == [8, 16, 16]
    assert [branch["columns"]["end"]["step"] for branch in branches] == [8, 16, 16]
    own = client.get(f"{rewound_run.get_absolute_url()}live.json").json()["curve"]
    assert own["train"]["step"] == [9, 10, 11, 12]
    assert own["end"]["step"] == pytest.approx(8 + 4 / rewound_run.fraction)
    assert 'data-lineage="' not in client.get(original_run.get_absolute_url()).content.decode()


def test_release_progress_includes_tokens_of_earlier_runs(rewound_run: Run, client: Client) -> None:
    Track.objects.filter(pk=rewound_run.track_id).update(releases=10)
    page = " ".join(client.get(rewound_run.get_absolute_url()).content.decode().split())
    assert "20.0 % of the way, 2.05 k of 10.2 k tokens, after 4.1 k of the runs before it" in page.replace(
        "\u00a0", " "
    )


def test_lineage_of_second_rewind_has_both_stages(rewound_run: Run, original_run: Run) -> None:
    assert rewound_run.job
    create_checkpoint(rewound_run.job, 4)
    second_rewind = runs.rewind_run(rewound_run, 4, actor="mara")
    stages = lineage.list_stages(second_rewind)
    assert [(stage.run, stage.left.step, stage.since.step) for stage in stages] == [
        (original_run, 8, 0),
        (rewound_run, 4, 8),
    ]
    assert lineage.find_end(stages).tokens == (8 + 4) * 512


@pytest.mark.parametrize("origin", [None, 5, {"versions": "5"}, {"versions": [1]}, {"versions": ["<b>", 5]}])
def test_invalid_versions_of_node_are_ignored(origin: object) -> None:
    assert lineage.parse_versions({"from": origin}) is None


def test_track_can_start_from_checkpoint_of_training_run(original_run: Run) -> None:
    call_command("create_track", "tune-1b5-2x24gb", "--start", str(original_run.pk), "--step", "8", stdout=StringIO())
    track = Track.objects.get(slug="tune-1b5-2x24gb")
    assert track.start_checkpoint is not None
    assert (track.start_run, track.start_checkpoint.step) == (original_run, 8)
    new_run = runs.make_run(original_run.entry, track)
    assert new_run.start_checkpoint == track.start_checkpoint
    track.clean()
    with pytest.raises(CommandError, match="no checkpoint of step 9"):
        call_command("create_track", "ci-16gb", "--start", str(original_run.pk), "--step", "9", stdout=StringIO())
    track.start_run = None
    with pytest.raises(ValidationError, match="belongs to a run"):
        track.clean()


def test_track_admin_lists_checkpoints_of_start_run(original_run: Run, maintainer: User, client: Client) -> None:
    client.force_login(maintainer)
    Track.objects.filter(pk=original_run.track_id).update(start_run=original_run)
    page = client.get(f"/admin/leaderboard/track/{original_run.track_id}/change/").content.decode()
    assert ">step 8<" in page
