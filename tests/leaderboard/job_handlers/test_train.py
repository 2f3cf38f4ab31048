"""Training runs through the queue's functions: claim, checkpoint upload, loss of a node, scoring."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from leaderboard import runs
from leaderboard.models import Run
from scheduler import leases, storage, transitions, uploads
from scheduler.models import Blob, Job, Lease, Node
from scheduler.node_api import job_reports
from tests.leaderboard.conftest import SCORE_RESULT, build_train_row
from trainer import protocol


def claim_job(node: Node) -> tuple[Lease, protocol.JobSpec]:
    claimed = leases.claim_job(node)
    return Lease.objects.get(pk=claimed.lease), protocol.JobSpec.model_validate_json(claimed.spec)


def upload_file(lease: Lease, path: str, content: bytes) -> protocol.FileRef:
    blob: Blob = storage.store_bytes(content)
    lease.uploads.add(blob)
    return storage.build_file_reference(blob, path)


@pytest.mark.parametrize("named_step", [20, 10])
def test_run_with_lost_lease_resumes_and_its_last_step_is_scored(run: Run, capable_node: Node, named_step: int) -> None:
    lease, spec = claim_job(capable_node)
    assert isinstance(spec.order, protocol.TrainOrder)
    assert spec.order.config["seed"] == run.seed
    assert spec.entry.sha256 == run.entry.bundle_id
    job_reports.store_metrics(
        lease, protocol.MetricsBatch(sequence=1, rows=(build_train_row(10, 4.0), build_train_row(12, 3.9)))
    )
    weights = upload_file(lease, "checkpoints/step-00000010/model.safetensors", b"ten")
    state = upload_file(lease, "state.json", json.dumps({"spent": {"steps": 10, "seconds": 0.1}}).encode())
    uploads.record_checkpoint(lease, protocol.Checkpoint(step=10, files=(weights, state)))
    assert leases.lose_lease(lease, "Its heartbeat stopped.")
    run.refresh_from_db()
    assert (run.state, run.points.count()) == ("paused", 2)

    lease, spec = claim_job(capable_node)
    assert isinstance(spec.order, protocol.TrainOrder)
    assert spec.order.resume.step == 10
    assert [point.step for point in run.points.all()] == [10]
    job_reports.store_metrics(lease, protocol.MetricsBatch(sequence=1, rows=(build_train_row(20, 3.0),)))
    weights = upload_file(lease, "checkpoints/step-00000020/model.safetensors", b"twenty")
    state = upload_file(lease, "state.json", json.dumps({"spent": {"steps": 20, "seconds": 0.2}}).encode())
    uploads.record_checkpoint(lease, protocol.Checkpoint(step=20, files=(weights, state)))
    run_json = upload_file(lease, "run.json", json.dumps({"format": 1}).encode())
    result = {"step": named_step}
    leases.finish_lease(lease, protocol.FinishLease(outcome="done", result=result, files=(run_json,)))
    run.refresh_from_db()
    assert run.state == "scoring"

    lease, spec = claim_job(capable_node)
    assert isinstance(spec.order, protocol.ScoreOrder)
    assert (spec.order.checkpoint.step, spec.order.run.sha256) == (20, run_json.sha256)
    leases.finish_lease(lease, protocol.FinishLease(outcome="done", result=SCORE_RESULT))
    run.refresh_from_db()
    assert (run.state, run.bits_per_byte, run.trust) == ("finished", 2.5, "scored")
    assert list(Run.objects.on_board(run.track)) == [run]


def test_retried_run_resumes_from_its_checkpoint(run: Run, capable_node: Node) -> None:
    lease, _ = claim_job(capable_node)
    weights = upload_file(lease, "checkpoints/step-00000010/model.safetensors", b"ten")
    uploads.record_checkpoint(lease, protocol.Checkpoint(step=10, files=(weights,)))
    Job.objects.update(failures=99)
    assert leases.lose_lease(lease, "Its heartbeat stopped.")
    run.refresh_from_db()
    assert (run.state, run.cause) == ("failed", "infrastructure")
    assert not transitions.cancel_job(run.job, "mara", "Too late.")
    runs.retry_run(run, actor="mara")
    _, spec = claim_job(capable_node)
    assert isinstance(spec.order, protocol.TrainOrder)
    assert (spec.order.resume.step, spec.order.config["seed"]) == (10, run.seed)


def test_metrics_and_heartbeat_of_a_lease_take_few_queries(
    run: Run, capable_node: Node, client: Client, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    Node.objects.update(token_hash="x" * 64)
    claimed_lease = leases.claim_job(capable_node)

    def send_message(path: str, message: dict[str, Any]) -> None:
        headers = {"Authorization": f"Bearer {claimed_lease.token}"}
        address = f"/api/node/v1/leases/{claimed_lease.lease}/{path}"
        assert client.post(address, message, content_type="application/json", headers=headers).status_code == 200

    send_message("metrics", {"sequence": 1, "rows": [build_train_row(step) for step in range(50)]})
    send_message("heartbeat", {"phase": "running", "seconds": 1.0, "health": {"temperature_celsius": 61.5}})
    # Two of a savepoint; lease, its time of metrics, batch, run, points, count of points, run.
    with django_assert_num_queries(9):
        send_message("metrics", {"sequence": 2, "rows": [build_train_row(step) for step in range(50, 100)]})
    with django_assert_num_queries(2):  # lease, renewal
        send_message("heartbeat", {"phase": "running", "seconds": 2.0})

    assert list(run.points.values_list("temperature_celsius", flat=True)) == [None] * 50 + [61.5] * 50
