"""Spot checks: whom they are drawn for, where they run, and what comes of them."""

from __future__ import annotations

from datetime import timedelta
from hashlib import sha256
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from leaderboard.job_handlers import replays
from leaderboard.job_handlers.replays import ReplayError
from leaderboard.models import Replay, Run
from leaderboard.rankings import trust
from scheduler import leases, node_vetting, retention, storage, uploads
from scheduler.job_kinds import get_job_kind
from scheduler.models import Event, Job, Lease, Node
from tests.leaderboard.conftest import VERDICT, lease, upload
from trainer import protocol


@pytest.fixture
def stranger(db: None) -> Node:
    """A node that nobody vouches for."""
    owner = User.objects.create(username="eve")
    return Node.objects.create(name="attic", owner=owner, state=Node.State.ONLINE, hardware={"cpus": 2})


def trained(run: Run, node: Node, *steps: int) -> Run:
    """Take a queued run through training on a node, with these checkpoints."""
    assert run.job
    held = lease(run.job, node)
    for step in steps or (5, 10, 20):
        checkpoint = upload(run.job, step)
        checkpoint.lease = held
        checkpoint.save()
    get_job_kind(run.job).handle_done(run.job, {"step": 20})
    run.refresh_from_db()
    return run


def scored(run: Run, node: Node) -> Run:
    assert run.score_job
    lease(run.score_job, node)
    get_job_kind(run.score_job).handle_done(run.score_job, VERDICT)
    run.refresh_from_db()
    return run


def answer(replay: Replay, node: Node, **fields: Any) -> Replay:
    assert replay.job
    lease(replay.job, node)
    found = {"step": replay.end_step, "exact": True, "deviation": 0.0, **fields}
    get_job_kind(replay.job).handle_done(replay.job, found)
    replay.refresh_from_db()
    return replay


def sentences(about: Any) -> list[str]:
    return [event.sentence for event in Event.objects.about(about)]


def test_a_new_nodes_run_counts_when_a_replay_agreed(run: Run, node: Node, stranger: Node) -> None:
    replay = trained(run, stranger).replays.get()
    scored(run, node)
    assert (run.state, run.trust) == ("finished", "provisional")
    assert sentences(run)[-1] == "Provisional: attic is new, so it counts when a stretch of it was replayed."
    answer(replay, node)
    run.refresh_from_db()
    stranger.refresh_from_db()
    assert (replay.state, run.trust, stranger.valid_in_a_row) == ("agreed", "scored", 1)
    assert sentences(run)[-1].endswith("replayed to the last bit. (on cellar)")


def test_a_replay_may_be_over_before_the_verdict(run: Run, node: Node, stranger: Node) -> None:
    answer(trained(run, stranger).replays.get(), node)
    run.refresh_from_db()
    assert run.trust == "provisional"
    assert scored(run, node).trust == "scored"


@pytest.mark.parametrize("fields", [{"exact": False, "deviation": 1.2}, {"step": 3}])
def test_a_mismatch_disputes_the_run_and_begins_the_probation_anew(
    run: Run, node: Node, stranger: Node, fields: dict[str, Any]
) -> None:
    Node.objects.filter(pk=stranger.pk).update(valid_in_a_row=9)
    replay = trained(run, stranger, 10, 20).replays.get()
    scored(run, node)
    answer(replay, node, **fields)
    run.refresh_from_db()
    stranger.refresh_from_db()
    assert (replay.state, run.trust, stranger.valid_in_a_row) == ("differed", "disputed", 0)
    assert sentences(run)[-1].startswith("Disputed: ")
    assert trust.settle_dispute(run, "mara")
    assert run.trust == "scored"


def test_a_run_that_was_disputed_before_its_verdict_stays_so(run: Run, node: Node, stranger: Node) -> None:
    answer(trained(run, stranger).replays.get(), node, exact=False, deviation=5.0)
    assert scored(run, node).trust == "disputed"


def test_in_between_nobody_is_blamed(run: Run, node: Node, stranger: Node) -> None:
    replay = answer(trained(run, stranger).replays.get(), node, exact=False, deviation=0.2)
    stranger.refresh_from_db()
    assert (replay.state, stranger.result_checks.count()) == ("abandoned", 0)
    assert "A maintainer has to decide" in replay.sentence
    assert scored(run, node).trust == "provisional"


def test_rounding_on_another_machine_is_agreement(run: Run, node: Node, stranger: Node) -> None:
    replay = answer(trained(run, stranger).replays.get(), node, exact=False, deviation=0.01)
    assert replay.state == "agreed"


def test_every_stretch_can_be_drawn_the_first_weights_among_them(run: Run, node: Node, stranger: Node) -> None:
    trained(run, stranger, 5, 10, 20)
    found = [(stretch.start.step if stretch.start else 0, stretch.end.step) for stretch in replays.list_stretches(run)]
    assert found == [(0, 5), (5, 10), (10, 20)]
    replay = run.replays.get()
    assert (replay.start_step, replay.end_step) in found


def test_stretch_without_its_files_is_not_drawn(run: Run, node: Node) -> None:
    trained(run, node, 5, 10, 20, 30)
    assert run.job
    run.job.checkpoints.filter(step=10).update(files_deleted_at=timezone.now())
    found = [(stretch.start.step if stretch.start else 0, stretch.end.step) for stretch in replays.list_stretches(run)]
    assert found == [(0, 5), (20, 30)]


def test_node_whose_checkpoints_are_superseded_is_still_checked(run: Run, node: Node, stranger: Node) -> None:
    """Files of superseded checkpoints are deleted; who trained them, and one stretch of theirs, is kept."""
    assert run.job
    for number, worker in enumerate((stranger, node)):
        Job.objects.filter(pk=run.job.pk).update(state=Job.State.QUEUED)
        held = lease(run.job, worker)
        for step in range(6 * number + 1, 6 * number + 7):
            content = b"weights of step %d" % step
            held.uploads.add(storage.store_bytes(content))
            file = protocol.FileRef(path="model.safetensors", sha256=sha256(content).hexdigest(), size=len(content))
            uploads.record_checkpoint(held, protocol.Checkpoint(step=step, files=(file,)))
        Lease.objects.filter(pk=held.pk).update(state=Lease.State.RELEASED)
    assert run.job.checkpoints.count() == 12
    assert run.job.checkpoints.with_files().count() <= 6
    upload(run.job, 13)
    get_job_kind(run.job).handle_done(run.job, {"step": 12})
    replay = run.replays.get()
    assert (replay.node, replay.end_step <= 6) == (stranger, True)
    for end in (replay.start, replay.claimed):
        assert end is None or end.blobs.exists()
    assert set(trust.find_training_nodes(run.job)) == {stranger, node}


def test_what_several_gpus_computed_together_is_not_compared_with_what_one_computes(run: Run, stranger: Node) -> None:
    trained(run, stranger, 5, 10)
    assert run.job
    run.job.leases.update(gpus=2)
    assert len(replays.list_stretches(run)) == 2, "a run uses one GPU of a larger node"
    run.track.config = {**run.track.config, "devices": 2}
    run.track.save()
    assert replays.list_stretches(Run.objects.get(pk=run.pk)) == []


def test_a_trusted_nodes_run_counts_at_once_and_is_not_checked(run: Run, node: Node) -> None:
    assert scored(trained(run, node), node).trust == "scored"
    assert not run.replays.exists()


def test_a_vetted_nodes_run_counts_at_once_and_is_checked_at_random(run: Run, node: Node, stranger: Node) -> None:
    Node.objects.filter(pk=stranger.pk).update(valid_in_a_row=10**9)
    assert scored(trained(run, stranger), node).trust == "scored"
    assert not run.replays.exists()


def test_neither_the_node_nor_its_owner_replays_it(run: Run, able: Node, stranger: Node) -> None:
    replay = trained(run, stranger).replays.get()
    job = Job.objects.get(replay=replay)
    assert job.needs_trusted
    assert (job.excluded_nodes, job.excluded_owners) == ([stranger.pk], [stranger.owner_id])
    assert run.score_job
    Job.objects.filter(pk=run.score_job.pk).delete()
    able.owner_id = stranger.owner_id
    able.save()
    assert leases.claim_job(able) is None
    able.owner = None
    able.save()
    given = leases.claim_job(able)
    assert given
    order = protocol.JobSpec.model_validate_json(given.spec).order
    assert isinstance(order, protocol.ReplayOrder)
    assert order.claimed.step == replay.end_step
    assert (order.start.step if order.start else 0) == replay.start_step
    assert order.config["seed"] == run.seed


def test_the_ends_of_the_stretch_are_kept_until_it_is_over(run: Run, node: Node, stranger: Node) -> None:
    replay = trained(run, stranger).replays.get()
    Job.objects.filter(pk=run.job_id).update(state=Job.State.DONE, finished_at=timezone.now())
    later = timezone.now() + timedelta(days=30)
    ends = {checkpoint for checkpoint in (replay.start, replay.claimed) if checkpoint}
    retention.delete_expired(later)
    assert run.job
    assert ends <= set(run.job.checkpoints.all())
    answer(replay, node)
    retention.delete_expired(later)
    assert [checkpoint.step for checkpoint in run.job.checkpoints.all()] == [20]


def test_what_an_untrusted_node_replays_says_nothing(run: Run, node: Node, stranger: Node) -> None:
    replay = trained(run, stranger).replays.get()
    node.trusted = False
    node.save()
    assert answer(replay, node, deviation=9.0, exact=False).state == "abandoned"


@pytest.mark.parametrize("word", [{}, {"exact": True}, {"step": 20, "exact": False, "deviation": -1}])
def test_an_answer_that_cannot_be_right_says_nothing(
    run: Run, node: Node, stranger: Node, word: dict[str, Any]
) -> None:
    replay = trained(run, stranger).replays.get()
    assert replay.job
    lease(replay.job, node)
    get_job_kind(replay.job).handle_done(replay.job, word)
    replay.refresh_from_db()
    assert replay.state == "abandoned"


def test_a_replay_that_failed_says_so_and_leaves_the_run_provisional(run: Run, node: Node, stranger: Node) -> None:
    replay = trained(run, stranger).replays.get()
    assert replay.job
    get_job_kind(replay.job).handle_failure(replay.job, "infrastructure", "Five nodes were lost.")
    replay.refresh_from_db()
    assert (replay.state, replay.sentence) == ("abandoned", "could not be replayed: Five nodes were lost.")
    assert scored(run, node).trust == "provisional"


def test_a_maintainer_asks_for_one_of_any_run(run: Run, node: Node) -> None:
    with pytest.raises(ReplayError, match="has not been trained"):
        replays.request_replay(run, actor="mara")
    trained(run, node)
    replay = replays.request_replay(run, actor="mara")
    assert replay.node == node
    assert "on another, trusted node queued" in sentences(run)[-1]


def test_it_counts_once(run: Run, node: Node, stranger: Node) -> None:
    replay = trained(run, stranger).replays.get()
    answer(replay, node)
    answer(replay, node, exact=False, deviation=9.0)
    stranger.refresh_from_db()
    assert (replay.state, stranger.valid_in_a_row) == ("agreed", 1)
    assert node_vetting.describe_standing(1) == "After 9 more in a row its results count before they are compared."
