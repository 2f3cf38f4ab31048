"""Replays of training stretches: selection, node requirements and outcomes."""

from __future__ import annotations

from datetime import timedelta
from hashlib import sha256
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from leaderboard.job_handlers import replays
from leaderboard.models import Replay, Run
from leaderboard.rankings import trust
from scheduler import checkpoints, leases, retention, storage, transitions, uploads
from scheduler.job_kinds import get_job_kind
from scheduler.models import Event, Job, Node
from tests.leaderboard.conftest import SCORE_RESULT, create_checkpoint
from tests.support.node_jobs import end_lease, finish_job, lease_job, requeue_job
from trainer import protocol


@pytest.fixture
def untrusted_node(db: None) -> Node:
    """An untrusted node of another owner."""
    owner = User.objects.create(username="eve")
    return Node.objects.create(name="attic", owner=owner, state=Node.State.ONLINE, hardware={"cpus": 2})


def finish_training(run: Run, node: Node, *steps: int) -> Run:
    """Train a queued run on a node, with checkpoints at these steps."""
    lease = lease_job(run.job, node)
    for step in steps or (5, 10, 20):
        checkpoint = create_checkpoint(run.job, step)
        checkpoint.lease = lease
        checkpoint.save()
    finish_job(run.job, {"step": max(steps, default=20)})
    run.refresh_from_db()
    return run


def finish_scoring(run: Run, node: Node) -> Run:
    lease_job(run.score_job, node)
    finish_job(run.score_job, SCORE_RESULT)
    run.refresh_from_db()
    return run


def list_steps(replay: Replay) -> list[int]:
    """Return the steps whose checkpoints the replay compares."""
    return [row.step for row in (replay.first, replay.middle, replay.claimed) if row is not None]


def finish_replay(
    replay: Replay, node: Node, *, at: int | None = None, step: int | None = None, **fields: Any
) -> Replay:
    """End a replay. `fields`: of the check of step `at`, or of all; the others are exact. `step`: that it reached."""
    lease_job(replay.job, node)
    exact = {"exact": True, "deviation": 0.0, "state_deviation": 0.0}
    steps = [each for each in list_steps(replay) if step is None or each <= step]
    checks = [{"step": each, **exact, **(fields if at in (None, each) else {})} for each in steps]
    worst = {"exact": not fields, "deviation": fields.get("deviation", 0.0)}
    result = {"step": step or replay.end_step, **worst, "checks": checks}
    finish_job(replay.job, result)
    replay.refresh_from_db()
    return replay


def list_messages(target: Any) -> list[str]:
    return [event.sentence for event in Event.objects.about(target)]


def test_run_of_untrusted_node_is_provisional_until_replay_agrees(run: Run, node: Node, untrusted_node: Node) -> None:
    replay = finish_training(run, untrusted_node).replays.get()
    finish_scoring(run, node)
    assert (run.state, run.trust) == ("finished", "provisional")
    assert list_messages(run)[-1] == "Provisional: attic is new, so it counts when a stretch of it was replayed."
    finish_replay(replay, node)
    run.refresh_from_db()
    untrusted_node.refresh_from_db()
    assert (replay.state, run.trust, untrusted_node.valid_in_a_row) == ("agreed", "scored", 1)
    assert list_messages(run)[-1].endswith("replayed to the last bit. (on cellar)")
    end_lease(replay.job.leases.get(), "done", result={"exact": False, "deviation": 9.0, "step": replay.end_step})
    assert Run.objects.get(pk=run.pk).trust == "scored", "a second report changes nothing"


@pytest.mark.parametrize("fields", [{"exact": False, "deviation": 1.2}, {"step": 3}])
@pytest.mark.parametrize("is_scored_first", [True, False])
def test_replay_mismatch_disputes_run_and_resets_node_trust(
    run: Run, node: Node, untrusted_node: Node, fields: dict[str, Any], is_scored_first: bool
) -> None:
    Node.objects.filter(pk=untrusted_node.pk).update(valid_in_a_row=9)
    replay = finish_training(run, untrusted_node, 10, 20).replays.get()
    if is_scored_first:
        finish_scoring(run, node)
    finish_replay(replay, node, **fields)
    if not is_scored_first:
        finish_scoring(run, node)
    run.refresh_from_db()
    untrusted_node.refresh_from_db()
    assert (replay.state, run.trust, untrusted_node.valid_in_a_row) == ("differed", "disputed", 0)
    assert any(message.startswith("Disputed: ") for message in list_messages(run))
    trust.settle_dispute(run, "mara")
    assert run.trust == "scored"


def list_ends(run: Run) -> list[tuple[int, ...]]:
    """Return the steps of the ends of the stretches that can be replayed; 0 for the initial weights."""
    return [
        (each.start.step if each.start else 0, *([each.middle.step] if each.middle else []), each.end.step)
        for each in replays.list_stretches(run)
    ]


def test_replay_stretches_are_neighbors_with_files_from_the_start_of_training_on(
    run: Run, node: Node, untrusted_node: Node
) -> None:
    finish_training(run, untrusted_node, 0, 5, 10, 20, 30, 40)
    assert list_ends(run) == [(0, 5), (0, 5, 10), (5, 10, 20), (10, 20, 30), (20, 30, 40)]
    assert replays.list_stretches(run)[0].start is None, "claimed initial weights start no replay"
    run.job.checkpoints.filter(step=10).update(files_deleted_at=timezone.now())
    assert list_ends(run) == [(0, 5), (20, 30, 40)]


def test_replay_of_later_stretches_includes_the_first_one(
    run: Run, node: Node, untrusted_node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "draw_rank", lambda checkpoint: b"0" if checkpoint.step == 30 else b"1")
    replay = finish_training(run, untrusted_node, 5, 10, 20, 30).replays.get()
    assert (replay.start_step, list_steps(replay)) == (10, [5, 20, 30])
    order = get_job_kind(replay.job).build_order(replay.job, None)
    assert isinstance(order, protocol.ReplayOrder)
    steps = [end.step for end in (order.start, order.first, order.middle, order.claimed) if end]
    assert steps == [10, 5, 20, 30]


@pytest.mark.parametrize(("figures", "state"), [
    ({"state_deviation": 0.01}, "agreed"),
    ({"state_deviation": 0.3}, "abandoned"),
    ({"state_deviation": 0.8}, "differed"),
    ({"deviation": 0.2}, "abandoned"),
])  # fmt: skip
def test_replay_judges_the_state_of_each_checkpoint(
    run: Run, node: Node, untrusted_node: Node, figures: dict[str, Any], state: str
) -> None:
    replay = finish_training(run, untrusted_node, 5, 10).replays.get()
    finish_replay(replay, node, at=list_steps(replay)[0], exact=False, **figures)
    assert replay.state == state
    assert ("A maintainer has to decide" in replay.sentence) == (state == "abandoned")
    assert untrusted_node.result_checks.exists() == (state != "abandoned")


@pytest.mark.parametrize(("step", "blamed"), [(5, "first"), (10, "second"), (20, "nobody")])
def test_mismatch_counts_against_the_node_that_sent_the_checkpoint(
    run: Run, node: Node, untrusted_node: Node, step: int, blamed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a handover, a false end may come from a state that the comparison cannot tell from rounding."""
    monkeypatch.setattr(checkpoints, "draw_rank", lambda checkpoint: b"0" if checkpoint.step == 20 else b"1")
    workers = [
        Node.objects.create(name=name, owner=User.objects.create(username=name), hardware={"cpus": 2})
        for name in ("first", "second")
    ]
    for end, worker in zip((5, 10), workers, strict=True):
        lease = lease_job(run.job, worker)
        checkpoint = create_checkpoint(run.job, end)
        checkpoint.lease = lease
        checkpoint.save()
        requeue_job(lease)
    replay = finish_training(run, untrusted_node, 20).replays.get()
    assert (replay.start_step, list_steps(replay)) == (5, [5, 10, 20])
    finish_replay(replay, node, at=step, exact=False, deviation=2.0)
    checks = {each.name: list(each.result_checks.values_list("valid", flat=True)) for each in Node.objects.all()}
    assert {name: valid for name, valid in checks.items() if valid} == ({} if blamed == "nobody" else {blamed: [False]})
    run.refresh_from_db()
    assert run.trust == "disputed"


def test_replay_of_node_with_superseded_checkpoints_is_still_possible(
    run: Run, node: Node, untrusted_node: Node
) -> None:
    """Deleting files of superseded checkpoints keeps their nodes and one stretch of each node."""
    for number, worker in enumerate((untrusted_node, node)):
        lease = lease_job(run.job, worker)
        for step in range(6 * number + 1, 6 * number + 7):
            content = b"weights of step %d" % step
            lease.uploads.add(storage.store_bytes(content))
            file = protocol.FileRef(path="model.safetensors", sha256=sha256(content).hexdigest(), size=len(content))
            uploads.record_checkpoint(lease, protocol.Checkpoint(step=step, files=(file,)))
        if worker == untrusted_node:
            requeue_job(lease)
    assert run.job.checkpoints.count() == 12
    # The first, the newest two, the newest of the other node, and the ends of two stretches of each node.
    assert run.job.checkpoints.with_files().count() <= 10
    create_checkpoint(run.job, 13)
    finish_job(run.job, {"step": 12})
    replay = run.replays.get()
    assert (replay.node, replay.end_step <= 6) == (untrusted_node, True)
    for end in (replay.start, replay.first, replay.middle, replay.claimed):
        assert end is None or end.blobs.exists()
    assert set(trust.find_training_nodes(run.job)) == {untrusted_node, node}


def test_replay_excludes_the_node_and_its_owner(run: Run, capable_node: Node, untrusted_node: Node) -> None:
    replay = finish_training(run, untrusted_node).replays.get()
    job = Job.objects.get(replay=replay)
    assert job.needs_trusted
    assert (job.excluded_nodes, job.excluded_owners) == ([untrusted_node.pk], [untrusted_node.owner_id])
    Job.objects.filter(pk=run.score_job.pk).delete()
    capable_node.owner_id = untrusted_node.owner_id
    capable_node.save()
    assert leases.claim_job(capable_node) is None
    capable_node.owner = None
    capable_node.save()
    lease = leases.claim_job(capable_node)
    order = protocol.JobSpec.model_validate_json(lease.spec).order
    assert isinstance(order, protocol.ReplayOrder)
    assert order.claimed.step == replay.end_step
    assert (order.start.step if order.start else 0) == replay.start_step
    assert order.config["seed"] == run.seed


def test_replay_keeps_checkpoints_of_its_stretch_until_finished(run: Run, node: Node, untrusted_node: Node) -> None:
    replay = finish_training(run, untrusted_node).replays.get()
    expiry_time = timezone.now() + timedelta(days=30)
    ends = (replay.start, replay.first, replay.middle, replay.claimed)
    stretch_checkpoints = {checkpoint for checkpoint in ends if checkpoint}
    retention.delete_expired(expiry_time)
    assert stretch_checkpoints <= set(run.job.checkpoints.all())
    finish_replay(replay, node)
    retention.delete_expired(expiry_time)
    assert [checkpoint.step for checkpoint in run.job.checkpoints.all()] == [20]


WEIGHTS_ONLY = "the node did not compare whole checkpoints;"
RESULTS: tuple[tuple[dict[str, Any], str], ...] = (
    ({}, ""),
    ({"exact": True}, ""),
    ({"step": 20, "exact": False, "deviation": -1}, ""),
    ({"step": 20, "exact": True, "deviation": 0.0}, WEIGHTS_ONLY),
)


@pytest.mark.parametrize(("result", "sentence"), RESULTS)
def test_replay_with_invalid_result_is_abandoned_and_leaves_run_provisional(
    run: Run, node: Node, untrusted_node: Node, result: dict[str, Any], sentence: str
) -> None:
    replay = finish_training(run, untrusted_node).replays.get()
    lease_job(replay.job, node)
    finish_job(replay.job, {**result, **({"step": replay.end_step} if sentence else {})})
    replay.refresh_from_db()
    assert replay.state == "abandoned"
    assert replay.sentence.startswith(sentence)
    assert finish_scoring(run, node).trust == "provisional"


def test_replay_that_fails_or_ran_on_an_untrusted_node_is_abandoned(run: Run, node: Node, untrusted_node: Node) -> None:
    replay = finish_training(run, untrusted_node).replays.get()
    transitions.fail_job(replay.job, "site", "infrastructure", "Five nodes were lost.")
    replay.refresh_from_db()
    assert (replay.state, replay.sentence) == ("abandoned", "could not be replayed: Five nodes were lost.")
    again = replays.request_replay(run, actor="mara")
    Node.objects.filter(pk=node.pk).update(trusted=False)
    node.refresh_from_db()
    assert finish_replay(again, node, deviation=9.0, exact=False).state == "abandoned"
