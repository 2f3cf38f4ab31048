"""Nodes with several slots: one lease in each; saved labels and health."""

from __future__ import annotations

import pytest

from scheduler.models import Event, Lease, Node
from tests.support.pool import HARDWARE, Agent, create_job, create_node
from trainer import protocol

TWO_GPUS = HARDWARE.model_copy(
    update={
        "gpus": ("NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 3090"),
        "gpu_details": (protocol.Gpu(name="NVIDIA H100 80GB HBM3"), protocol.Gpu(name="NVIDIA GeForce RTX 3090")),
        "found_labels": ("h100", "3090"),
    }
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def agent() -> Agent:
    agent = Agent(create_node(slots=2)[1])
    agent.hardware = TWO_GPUS
    return agent


def test_each_slot_gets_job_for_its_gpus(agent: Agent) -> None:
    for _ in range(3):
        create_job()
    actions = [agent.request_action(lane=lane, lanes=2).action for lane in (0, 1, 0, 1)]
    assert actions == ["job", "job", "idle", "idle"], "each slot gets one job"
    assert list(Lease.objects.order_by("slot").values_list("slot", "gpus", "accelerator")) == [
        (0, 1, "NVIDIA H100 80GB HBM3"),
        (1, 1, "NVIDIA GeForce RTX 3090"),
    ]


def test_slot_poll_keeps_leases_of_other_slots(agent: Agent) -> None:
    create_job()
    lease = agent.request_action(lane=1, lanes=2).lease
    assert lease is not None
    Lease.objects.update(started_at="2020-01-01T00:00Z")  # no heartbeat for long
    assert agent.request_action(lane=0, lanes=2).action == "idle"
    assert Lease.objects.get().state == Lease.State.ACTIVE
    create_job()
    agent.request_action(lane=0, lanes=2, abandoned=(lease.lease,))
    assert Lease.objects.get(pk=lease.lease).state == Lease.State.LOST, "a restarted agent abandons its lease"


def test_node_with_other_slot_count_gets_no_job(agent: Agent) -> None:
    create_job()
    action = agent.request_action(lanes=1)
    assert (action.action, action.lanes, action.reason) == ("idle", 2, "It is to do 2 jobs at a time.")
    assert agent.request_action(lanes=2).action == "job"


def test_new_health_warning_records_one_event_and_trouble_stops_jobs(agent: Agent) -> None:
    create_job()
    healthy = protocol.Health(temperature_celsius=60)
    trouble = "NVIDIA H100 still holds 5.1 GB: no job is taken until that is free."
    action = agent.request_action(lanes=2, health=protocol.Health(trouble=trouble))
    assert (action.action, action.reason) == ("idle", trouble)
    Node.objects.update(last_seen=None)
    lease = agent.request_action(lanes=2, health=healthy).lease
    assert lease is not None
    assert Node.objects.get().health["trouble"] == ""
    for _ in range(3):
        Node.objects.update(last_seen="2020-01-01T00:00Z")  # a row is not saved at each heartbeat
        health = protocol.Health(idle_gpu=True, throttled=True)
        heartbeat = protocol.Heartbeat(phase="running", seconds=1, health=health)
        assert agent.call(f"/leases/{lease.lease}/heartbeat", heartbeat, lease.token).status_code == 200
    assert Node.objects.get().health["idle_gpu"] is True
    messages = [event.sentence for event in Event.objects.about(Node.objects.get())]
    assert [message for message in messages if "online" not in message] == [
        f"loco takes no job: {trouble}",
        "A GPU of loco is slowed down by heat or by its power supply.",
        "A job runs on loco, and its GPU has had nothing to do for minutes.",
    ]
