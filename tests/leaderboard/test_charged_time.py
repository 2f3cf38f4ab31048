"""What checkpoints say is charged, against their steps and the server's clock."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from leaderboard.models import Run
from scheduler import leases, storage, uploads
from scheduler.errors import InvalidMessageError
from scheduler.models import JobFile, Lease, Node
from tests.support.node_jobs import finish_job
from trainer import protocol


@pytest.fixture
def lease(run: Run, capable_node: Node) -> Lease:
    """A lease of the run's training, ten minutes old."""
    claimed = leases.claim_job(capable_node)
    assert claimed
    Lease.objects.filter(pk=claimed.lease).update(started_at=timezone.now() - timedelta(minutes=10))
    return Lease.objects.get(pk=claimed.lease)


def upload_checkpoint(lease: Lease, step: int, state: Any) -> None:
    contents = {"model.safetensors": b"weights of step %d" % step, "state.json": json.dumps(state).encode()}
    files = []
    for path, content in contents.items():
        blob = storage.store_bytes(content)
        lease.uploads.add(blob)
        files.append(storage.build_file_reference(blob, path))
    uploads.record_checkpoint(lease, protocol.Checkpoint(step=step, files=tuple(files)))


def build_state(step: int, seconds: float, **spent: Any) -> dict[str, Any]:
    return {"step": step, "spent": {"steps": step, "seconds": seconds, **spent}}


@pytest.mark.parametrize(
    "state",
    [
        build_state(20, 300.0, steps=0),
        build_state(20, 99.0),
        build_state(20, -1.0),
        build_state(20, float("nan")),
        build_state(20, 10**400),
        build_state(20, 700.0),
    ],
)
def test_checkpoint_that_charges_what_cannot_be_is_refused(lease: Lease, state: dict[str, Any]) -> None:
    upload_checkpoint(lease, 10, build_state(10, 100.0))
    with pytest.raises(InvalidMessageError, match=r"charges"):
        upload_checkpoint(lease, 20, state)
    upload_checkpoint(lease, 20, build_state(20, 590.0))
    assert list(lease.job.checkpoints.values_list("step", "seconds")) == [(10, 100.0), (20, 590.0)]


@pytest.mark.parametrize("state", [[], {}, {"spent": 1}, {"spent": {"steps": "10"}}])
def test_charged_time_of_a_checkpoint_without_a_state_is_unknown(lease: Lease, state: Any) -> None:
    upload_checkpoint(lease, 10, state)
    assert lease.job.checkpoints.get().seconds is None


def test_charged_time_of_earlier_leases_does_not_count(lease: Lease, capable_node: Node) -> None:
    upload_checkpoint(lease, 10, build_state(10, 500.0))
    assert leases.lose_lease(lease, "Its heartbeat stopped.")
    claimed = leases.claim_job(capable_node)
    assert claimed
    upload_checkpoint(Lease.objects.get(pk=claimed.lease), 20, build_state(20, 550.0))
    assert lease.job.checkpoints.get(step=20).seconds == 550


@pytest.mark.parametrize(
    ("budget", "passed", "state"),
    [("1h", 1000, "provisional"), ("1h", 4000, "disputed"), ("20steps", 4000, "provisional")],
)
def test_run_that_charges_far_less_time_than_passed_is_disputed(
    run: Run, lease: Lease, budget: str, passed: int, state: str
) -> None:
    """A node that charges half of each step's time trains twice as many steps in a budget of seconds."""
    upload_checkpoint(lease, 10, build_state(10, 100.0))
    upload_checkpoint(lease, 20, build_state(20, 500.0))
    job = lease.job
    first = job.checkpoints.get(step=10)
    job.checkpoints.filter(step=20).update(created_at=first.created_at + timedelta(seconds=passed))
    JobFile.objects.create(job=job, path="run.json", blob=storage.store_bytes(b"{}"))
    Run.objects.filter(pk=run.pk).update(budget=budget)
    finish_job(job, {"step": 20})
    run.refresh_from_db()
    assert run.trust == state
