"""Failures that nodes report: an untrusted node ends no run, and nights run on nodes whose results count."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone

from leaderboard import actions, night_nodes
from leaderboard.models import Night, Run
from scheduler import failure_reports, leases, uploads
from scheduler.estimates import estimate_start
from scheduler.models import Job, Lease, Node
from scheduler.node_api import job_reports
from scheduler.node_vetting import PROBATION
from tests.leaderboard.conftest import build_train_row
from tests.leaderboard.job_handlers.test_train import claim_job, upload_file
from trainer import protocol

NAN = "The loss became NaN at step 12."


def copy_node(node: Node, name: str, **fields: Any) -> Node:
    """Return another node with the same hardware and an owner of its own."""
    owner = User.objects.create_user(f"owner of {name}")
    hardware = {**node.hardware, "hostname": name}
    return Node.objects.create(name=name, state=Node.State.ONLINE, owner=owner, hardware=hardware, **fields)


def claim_model_failure(node: Node) -> Lease:
    lease, _ = claim_job(node)
    leases.finish_lease(lease, protocol.FinishLease(outcome="failed", cause="model", reason=NAN))
    return lease


def test_run_without_another_node_waits_until_maintainer_readmits(run: Run, capable_node: Node) -> None:
    only_node = copy_node(capable_node, "only")
    capable_node.delete()
    claim_model_failure(only_node)
    run.refresh_from_db()
    assert leases.claim_job(only_node) is None
    assert run.job is not None
    reason = estimate_start(run.job, timezone.now()).reason
    assert reason == (
        "Waits for a node that has not failed at it or had a part in it: none is online. It starts as soon as one is."
    )
    maintainer = User.objects.create_user("mara")
    assert "readmit" not in [a.name for a in actions.list_run_actions(maintainer, run, is_maintainer=False)]
    actions.perform_run_action(run, "readmit", maintainer, is_maintainer=True)
    assert claim_job(only_node)[1].attempt == 2


def test_done_without_weights_is_a_machine_fault_and_run_goes_on(run: Run, capable_node: Node) -> None:
    sloppy = copy_node(capable_node, "sloppy")
    lease, _ = claim_job(sloppy)
    leases.finish_lease(lease, protocol.FinishLease(outcome="done", result={"step": 20}))
    run.refresh_from_db()
    sloppy.refresh_from_db()
    assert (run.state, sloppy.failures) == ("paused", 1)
    assert "did not send the checkpoint of its last step" in run.reason
    assert leases.claim_job(sloppy) is None
    assert claim_job(capable_node)[1].attempt == 2


def test_claim_is_refuted_by_steps_that_metrics_had_reported(run: Run, capable_node: Node) -> None:
    liar = copy_node(capable_node, "liar")
    lease, _ = claim_job(liar)
    job_reports.store_metrics(lease, protocol.MetricsBatch(sequence=1, rows=(build_train_row(12, 3.9),)))
    leases.finish_lease(lease, protocol.FinishLease(outcome="failed", cause="model", reason=NAN))
    lease, _ = claim_job(capable_node)
    for step, failures in ((11, 0), (13, 1)):
        weights = upload_file(lease, "model.safetensors", b"weights %d" % step)
        uploads.record_checkpoint(lease, protocol.Checkpoint(step=step, files=(weights,)))
        liar.refresh_from_db()
        assert liar.failures == failures, step


def test_run_whose_last_checkpoint_cannot_be_scored_trains_again_from_the_one_before(
    run: Run, capable_node: Node
) -> None:
    poisoner = copy_node(capable_node, "poisoner")
    lease, _ = claim_job(poisoner)
    files = [upload_file(lease, "model.safetensors", b"weights %d" % step) for step in (10, 20)]
    for step, file in zip((10, 20), files, strict=True):
        uploads.record_checkpoint(lease, protocol.Checkpoint(step=step, files=(file,)))
    run_json = upload_file(lease, "run.json", b"{}")
    leases.finish_lease(lease, protocol.FinishLease(outcome="done", result={"step": 20}, files=(run_json,)))
    for _ in range(2):
        lease, spec = claim_job(capable_node)
        assert isinstance(spec.order, protocol.ScoreOrder)
        leases.finish_lease(lease, protocol.FinishLease(outcome="failed", fault="checkpoint", reason="It is corrupt."))
    run.refresh_from_db()
    poisoner.refresh_from_db()
    capable_node.refresh_from_db()
    assert (run.state, run.checkpoint, run.score_job) == ("paused", None, None)
    assert (poisoner.failures, capable_node.failures) == (1, 0)
    assert leases.claim_job(poisoner) is None
    _, spec = claim_job(capable_node)
    assert isinstance(spec.order, protocol.TrainOrder)
    assert spec.order.resume.step == 10


# --- nights -----------------------------------------------------------------------------------------------------------


def test_night_waits_for_a_node_whose_results_count(monday_night: Night, capable_node: Node) -> None:
    stranger = copy_node(capable_node, "stranger")
    night_nodes.update_night_needs(timezone.now())
    assert leases.claim_job(stranger) is None
    job = monday_night.run.job
    other_job = Job.objects.create(kind="train", state=Job.State.LEASED, release=job.release)
    expires_at = timezone.now() + timedelta(hours=1)
    Lease.objects.create(job=other_job, node=capable_node, attempt=1, token_hash="other", expires_at=expires_at)
    assert estimate_start(job, timezone.now()).reason == "Waits for a node whose results count; 1 is in use"
    Node.objects.filter(pk=capable_node.pk).update(trusted=False)
    Node.objects.filter(pk=stranger.pk).update(valid_in_a_row=PROBATION)
    stranger.refresh_from_db()
    assert claim_job(stranger)[1].attempt == 1


def test_night_with_a_fault_of_its_only_vetted_node_runs_anywhere(monday_night: Night, capable_node: Node) -> None:
    stranger = copy_node(capable_node, "stranger")
    night_nodes.update_night_needs(timezone.now())
    lease, _ = claim_job(capable_node)
    leases.finish_lease(lease, protocol.FinishLease(outcome="failed", reason="CUDA error"))
    assert leases.claim_job(stranger) is None
    night_nodes.update_night_needs(timezone.now())
    assert claim_job(stranger)[1].attempt == 2
    assert failure_reports.has_exclusions(lease.job)
