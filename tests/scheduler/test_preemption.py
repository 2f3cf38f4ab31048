"""A nightly that waits gets the place of a playground run: of one, of the right one, and once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from scheduler import preemption, transitions
from scheduler.models import Checkpoint, Event, Job, Lease, Node
from tests.support.pool import HARDWARE, Agent, Work, make_job, make_node

pytestmark = pytest.mark.django_db


def playing(name: str, **fields: Any) -> Work:
    """A node that works on a playground run."""
    _, token = make_node(name)
    make_job(author=name, preemptible=True, **fields)
    work = Agent(token).work()
    assert work.job.author == name
    return work


def tonight(**fields: Any) -> Job:
    return make_job(**{"author": "", "priority": Job.Priority.NIGHTLY, "expected_seconds": 80_000, **fields})


def asked() -> set[str]:
    return set(Job.objects.filter(stop_requested="finish").values_list("author", flat=True))


def test_preemption_stops_playground_run_for_nightly() -> None:
    work = playing("one")
    nightly = tonight()
    assert preemption.make_room() == 1
    reply = work.heartbeat().json()
    assert (reply["stop"], "Tonight" in reply["reason"]) == ("finish", True)
    work.checkpoint(5)
    work.finish("released", reason=reply["reason"])
    assert work.agent.work().job == nightly
    back = Job.objects.get(author="one")
    assert (back.state, back.failures, back.checkpoints.count()) == (Job.State.QUEUED, 0, 1)


def test_preemption_stops_run_with_least_unsaved_work_once() -> None:
    long, fresh, saved = playing("long"), playing("fresh"), playing("saved")
    tonight()
    now = timezone.now()
    Lease.objects.filter(pk=long.row.pk).update(started_at=now - timedelta(hours=5))
    Lease.objects.filter(pk=fresh.row.pk).update(started_at=now - timedelta(minutes=4))
    Lease.objects.filter(pk=saved.row.pk).update(started_at=now - timedelta(hours=9))
    saved.checkpoint(1)
    Checkpoint.objects.update(created_at=now - timedelta(minutes=1))
    assert [preemption.make_room() for _ in range(3)] == [1, 0, 0]
    assert asked() == {"saved"}
    assert Event.objects.filter(sentence__startswith="Requested the node to hand back").count() == 1
    tonight()
    assert [preemption.make_room() for _ in range(2)] == [1, 0]
    assert asked() == {"saved", "fresh"}


def test_preemption_with_free_node_stops_no_run() -> None:
    playing("one")
    Agent(make_node("free")[1]).ask()
    nightly = tonight()
    assert preemption.make_room() == 0
    Job.objects.filter(pk=nightly.pk).update(state_since=timezone.now() - 2 * preemption.FREE_SLOT_GRACE)
    assert preemption.make_room() == 1, "something keeps it from taking it"


def test_preemption_stops_only_runs_on_fitting_nodes() -> None:
    playing("one")
    Agent(make_node("free")[1]).ask()
    tonight(needs_labels=["1x80gb"])
    assert preemption.make_room() == 0
    Node.objects.filter(name="one").update(
        hardware={
            **HARDWARE.model_dump(mode="json"),
            "gpus": ["H100"],
            "gpu_details": [{"name": "H100", "memory_bytes": 85 * 10**9}],
        }
    )
    assert preemption.make_room() == 1


def test_preemption_keeps_other_runs() -> None:
    _, token = make_node("busy")
    make_job(author="ada")
    Agent(token).work()
    tonight()
    assert preemption.make_room() == 0


def test_preemption_keeps_run_with_lifted_priority() -> None:
    """It would go before the nightly again."""
    playing("patient", queued_at=timezone.now() - timedelta(days=3, hours=1))
    tonight()
    assert preemption.make_room() == 0


def test_preemption_ignores_run_with_hold_request() -> None:
    work = playing("held")
    transitions.hold_job(work.job, "ada", "Later.")
    tonight()
    assert preemption.make_room() == 0
    assert Job.objects.get(author="held").hold_requested


@pytest.mark.parametrize("size", [1, 12])
def test_preemption_takes_constant_queries(size: int, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    for number in range(size):
        playing(f"node-{number}")
    tonight(needs_labels=["h100"])
    with django_assert_num_queries(5):
        preemption.make_room()
    Job.objects.filter(priority=Job.Priority.NIGHTLY).delete()
    with django_assert_num_queries(1):
        preemption.make_room()
