"""The board's side of a run, driven by the queue's own functions: claim, upload, last word."""

from __future__ import annotations

import json
from datetime import timedelta

from django.utils import timezone

from leaderboard import runs
from leaderboard.models import Run
from scheduler import leases, storage, transitions, uploads
from scheduler.estimates import estimate_start
from scheduler.models import Blob, Job, Lease, Node
from scheduler.node_api import job_reports
from tests.leaderboard.conftest import VERDICT, train_row
from trainer import protocol


def take(node: Node) -> tuple[Lease, protocol.JobSpec]:
    given = leases.claim_job(node)
    assert given
    return Lease.objects.get(pk=given.lease), protocol.JobSpec.model_validate_json(given.spec)


def sent(lease: Lease, path: str, content: bytes) -> protocol.FileRef:
    blob: Blob = storage.store_bytes(content)
    lease.uploads.add(blob)
    return storage.build_file_reference(blob, path)


def test_a_run_is_lost_resumed_scored_and_on_the_board(run: Run, able: Node) -> None:
    lease, spec = take(able)
    assert isinstance(spec.order, protocol.TrainOrder)
    assert spec.order.config["seed"] == run.seed
    assert spec.entry
    assert spec.entry.sha256 == run.entry.bundle_id
    job_reports.store_metrics(lease, protocol.MetricsBatch(sequence=1, rows=(train_row(10, 4.0), train_row(12, 3.9))))
    weights = sent(lease, "checkpoints/step-00000010/model.safetensors", b"ten")
    uploads.record_checkpoint(lease, protocol.Checkpoint(step=10, files=(weights,)))
    assert leases.lose_lease(lease, "Its heartbeat stopped.")
    run.refresh_from_db()
    assert (run.state, run.points.count()) == ("paused", 2)

    lease, spec = take(able)
    assert isinstance(spec.order, protocol.TrainOrder)
    assert spec.order.resume
    assert spec.order.resume.step == 10
    assert [point.step for point in run.points.all()] == [10]
    job_reports.store_metrics(lease, protocol.MetricsBatch(sequence=1, rows=(train_row(20, 3.0),)))
    weights = sent(lease, "checkpoints/step-00000020/model.safetensors", b"twenty")
    uploads.record_checkpoint(lease, protocol.Checkpoint(step=20, files=(weights,)))
    about = sent(lease, "run.json", json.dumps({"format": 1}).encode())
    leases.finish_lease(lease, protocol.FinishLease(outcome="done", result={"step": 20}, files=(about,)))
    run.refresh_from_db()
    assert run.state == "scoring"

    lease, spec = take(able)
    assert isinstance(spec.order, protocol.ScoreOrder)
    assert (spec.order.checkpoint.step, spec.order.run.sha256) == (20, about.sha256)
    leases.finish_lease(lease, protocol.FinishLease(outcome="done", result=VERDICT))
    run.refresh_from_db()
    assert (run.state, run.bits_per_byte, run.trust) == ("finished", 2.5, "scored")
    assert list(Run.objects.on_board(run.track)) == [run]


def test_a_running_run_is_cancelled_when_its_node_has_heard_of_it(run: Run, able: Node) -> None:
    lease, _ = take(able)
    run.refresh_from_db()
    runs.cancel_run(run, "Not wanted any more.", "mara")
    run.refresh_from_db()
    assert run.state == "training"
    lease.job.refresh_from_db()
    heard = leases.renew_lease(lease, protocol.Heartbeat(phase="running", seconds=1))
    assert heard.stop == "cancel"
    leases.finish_lease(lease, protocol.FinishLease(outcome="released"))
    run.refresh_from_db()
    assert (run.state, run.reason) == ("cancelled", "Not wanted any more.")


def test_a_run_that_gave_up_goes_on_from_its_checkpoint(run: Run, able: Node) -> None:
    lease, _ = take(able)
    weights = sent(lease, "checkpoints/step-00000010/model.safetensors", b"ten")
    uploads.record_checkpoint(lease, protocol.Checkpoint(step=10, files=(weights,)))
    Job.objects.update(failures=99)
    assert leases.lose_lease(lease, "Its heartbeat stopped.")
    run.refresh_from_db()
    assert (run.state, run.cause) == ("failed", "infrastructure")
    assert run.job
    assert not transitions.cancel_job(run.job, "mara", "Too late.")
    runs.retry_run(run, actor="mara")
    _, spec = take(able)
    assert isinstance(spec.order, protocol.TrainOrder)
    assert spec.order.resume
    assert (spec.order.resume.step, spec.order.config["seed"]) == (10, run.seed)


def test_queue_estimate_uses_the_progress_of_the_running_job(run: Run, able: Node) -> None:
    take(able)
    assert run.job
    Job.objects.filter(pk=run.job_id).update(expected_seconds=3600)
    Run.objects.filter(pk=run.pk).update(fraction=0.9, seconds=9 * 420)  # 420 s left at this pace
    waiting = Job.objects.create(kind="train", author="ada", release=run.job.release, expected_seconds=60)
    now = timezone.now()
    estimate = estimate_start(waiting, now)
    assert estimate.next_free == now + timedelta(seconds=420)
    assert estimate.begins_at == estimate.next_free
