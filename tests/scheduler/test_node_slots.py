"""Nodes with several slots: one lease in each; saved labels and health."""

from __future__ import annotations

import pytest

from scheduler import node_tokens
from scheduler.models import Event, Job, Lease, Node
from tests.support.pool import HARDWARE, Agent, create_job, create_node
from trainer import protocol

TWO_GPUS = HARDWARE.model_copy(
    update={
        "gpus": ("NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 3090"),
        "gpu_details": (protocol.Gpu(name="NVIDIA H100 80GB HBM3"), protocol.Gpu(name="NVIDIA GeForce RTX 3090")),
        "found_labels": ("h100", "3090"),
    }
)
HEALTHY = protocol.Health(temperature_celsius=60)

pytestmark = pytest.mark.django_db


@pytest.fixture
def agent() -> Agent:
    agent = Agent(create_node(slots=2)[1])
    agent.hardware = TWO_GPUS
    return agent


def get_node() -> Node:
    return Node.objects.get()


def list_messages() -> list[str]:
    return [event.sentence for event in Event.objects.about(get_node())]


# --- slots -----------------------------------------------------------------------------------------------------------


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


def test_slots_from_command_line_are_saved(agent: Agent) -> None:
    assert agent.request_action(lanes=3, lanes_wished=3).lanes is None
    assert get_node().slots == 3


def test_agent_without_slots_gets_no_slot_fields(agent: Agent) -> None:
    response = agent.poll()
    assert "lanes" not in response.json()
    assert "lease" not in response.json()


# --- labels ----------------------------------------------------------------------------------------------------------


def test_labels_combine_owner_and_detected() -> None:
    token = node_tokens.create_join_token(labels=["cellar"])
    node, _ = node_tokens.register_node(token, protocol.Register(name="loco", labels=("warm",), hardware=TWO_GPUS))
    assert node.labels == ["3090", "cellar", "h100", "warm"]
    assert node.owner_labels == ["cellar", "warm"]


def test_removed_gpu_removes_its_labels(agent: Agent) -> None:
    Node.objects.update(labels=["mine"])
    agent.request_action(lanes=2)
    assert get_node().labels == ["3090", "h100", "mine"]
    agent.hardware = TWO_GPUS.model_copy(update={"found_labels": ("h100",)})
    agent.request_action(lanes=2)
    assert get_node().labels == ["h100", "mine"]


def test_owner_label_survives_detection(agent: Agent) -> None:
    Node.objects.update(labels=["h100"], owner_labels=["h100"])
    agent.request_action(lanes=2)
    agent.hardware = HARDWARE
    agent.request_action(lanes=2)
    assert get_node().labels == ["h100"]


def test_job_is_matched_by_detected_labels(agent: Agent) -> None:
    create_job(needs_labels=["h100"])
    assert agent.request_action(lanes=2).action == "job"
    assert Job.objects.get().state == Job.State.LEASED


# --- health ----------------------------------------------------------------------------------------------------------


def test_poll_saves_health(agent: Agent) -> None:
    create_job()
    agent.request_action(lanes=2, health=HEALTHY)
    assert get_node().health["temperature_celsius"] == 60
    assert list_messages() == ["loco is online."]


def test_new_health_warning_records_one_event(agent: Agent) -> None:
    create_job()
    lease = agent.request_action(lanes=2, health=HEALTHY).lease
    assert lease is not None
    for _ in range(3):
        Node.objects.update(last_seen="2020-01-01T00:00Z")  # a row is not saved at each heartbeat
        heartbeat = protocol.Heartbeat(
            phase="running", seconds=1, health=protocol.Health(idle_gpu=True, throttled=True)
        )
        assert agent.call(f"/leases/{lease.lease}/heartbeat", heartbeat, lease.token).status_code == 200
    assert get_node().health["idle_gpu"] is True
    assert list_messages()[1:] == [
        "A GPU of loco is slowed down by heat or by its power supply.",
        "A job runs on loco, and its GPU has had nothing to do for minutes.",
    ]


def test_node_with_trouble_gets_no_job_with_reason(agent: Agent) -> None:
    create_job()
    trouble = "NVIDIA H100 still holds 5.1 GB: no job is taken until that is free."
    action = agent.request_action(lanes=2, health=protocol.Health(trouble=trouble))
    assert (action.action, action.reason) == ("idle", trouble)
    assert list_messages()[0] == f"loco takes no job: {trouble}"
    Node.objects.update(last_seen=None)
    assert agent.request_action(lanes=2, health=HEALTHY).action == "job"
    assert get_node().health["trouble"] == ""


def test_poll_without_health_keeps_saved_health(agent: Agent) -> None:
    Node.objects.update(health={"temperature_celsius": 60})
    agent.request_action(lanes=2)
    assert get_node().health == {"temperature_celsius": 60}
