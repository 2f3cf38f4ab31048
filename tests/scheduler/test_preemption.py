"""Preemption of playground runs by waiting nightly runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from scheduler import preemption, transitions
from scheduler.models import Checkpoint, Event, Job, Lease, Node
from tests.support.pool import HARDWARE, Agent, ClaimedJob, create_job, create_node

pytestmark = [pytest.mark.sql, pytest.mark.django_db]


def start_playground_run(name: str, **fields: Any) -> ClaimedJob:
    """Create a node that works on a playground run."""
    _, token = create_node(name)
    create_job(author=name, preemptible=True, **fields)
    claimed_job = Agent(token).claim_job()
    assert claimed_job.job.author == name
    return claimed_job


def create_nightly_job(**fields: Any) -> Job:
    return create_job(**{"author": "", "priority": Job.Priority.NIGHTLY, "expected_seconds": 80_000, **fields})


def list_stopped_authors() -> set[str]:
    return set(Job.objects.filter(stop_requested="finish").values_list("author", flat=True))


def test_preemption_stops_playground_run_for_nightly() -> None:
    claimed_job = start_playground_run("one")
    nightly = create_nightly_job()
    assert preemption.make_room() == 1
    reply = claimed_job.send_heartbeat().json()
    assert (reply["stop"], "Tonight" in reply["reason"]) == ("finish", True)
    claimed_job.upload_checkpoint(5)
    claimed_job.finish("released", reason=reply["reason"])
    assert claimed_job.agent.claim_job().job == nightly
    requeued = Job.objects.get(author="one")
    assert (requeued.state, requeued.failures, requeued.checkpoints.count()) == (Job.State.QUEUED, 0, 1)


def test_preemption_stops_run_with_least_unsaved_work_once() -> None:
    long, fresh, saved = start_playground_run("long"), start_playground_run("fresh"), start_playground_run("saved")
    create_nightly_job()
    now = timezone.now()
    Lease.objects.filter(pk=long.row.pk).update(started_at=now - timedelta(hours=5))
    Lease.objects.filter(pk=fresh.row.pk).update(started_at=now - timedelta(minutes=4))
    Lease.objects.filter(pk=saved.row.pk).update(started_at=now - timedelta(hours=9))
    saved.upload_checkpoint(1)
    Checkpoint.objects.update(created_at=now - timedelta(minutes=1))
    assert [preemption.make_room() for _ in range(3)] == [1, 0, 0]
    assert list_stopped_authors() == {"saved"}
    assert Event.objects.filter(sentence__startswith="Requested the node to hand back").count() == 1
    create_nightly_job()
    assert [preemption.make_room() for _ in range(2)] == [1, 0]
    assert list_stopped_authors() == {"saved", "fresh"}


def test_preemption_stops_only_runs_on_fitting_nodes() -> None:
    start_playground_run("one")
    Agent(create_node("free")[1]).request_action()
    create_nightly_job(needs_labels=["1x80gb"])
    assert preemption.make_room() == 0
    Node.objects.filter(name="one").update(
        hardware={
            **HARDWARE.model_dump(mode="json"),
            "gpus": ["H100"],
            "gpu_details": [{"name": "H100", "memory_bytes": 85 * 10**9}],
        }
    )
    assert preemption.make_room() == 1


def test_preemption_keeps_runs_that_are_lifted_above_the_nightly_or_held() -> None:
    """A lifted run would be claimed again first."""
    start_playground_run("patient", queued_at=timezone.now() - timedelta(days=3, hours=1))
    held = start_playground_run("held").job
    transitions.hold_job(held, "ada", "Later.")
    create_nightly_job()
    assert preemption.make_room() == 0
    held.refresh_from_db()
    assert held.hold_requested
