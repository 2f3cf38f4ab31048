"""A node of several lanes holds a lease in each; what it says of its health and its labels stands on its row."""

from __future__ import annotations

import pytest

from scheduler import node_tokens
from scheduler.models import Event, Job, Lease, Node
from tests.support.pool import HARDWARE, Agent, make_job, make_node
from trainer import protocol

TWO = HARDWARE.model_copy(
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
    made = Agent(make_node(slots=2)[1])
    made.hardware = TWO
    return made


def node() -> Node:
    return Node.objects.get()


def sentences() -> list[str]:
    return [event.sentence for event in Event.objects.about(node())]


# --- lanes -----------------------------------------------------------------------------------------------------------


def test_each_slot_gets_job_for_its_gpus(agent: Agent) -> None:
    for _ in range(3):
        make_job()
    actions = [agent.ask(lane=lane, lanes=2).action for lane in (0, 1, 0, 1)]
    assert actions == ["job", "job", "idle", "idle"], "one each"
    assert list(Lease.objects.order_by("slot").values_list("slot", "gpus", "accelerator")) == [
        (0, 1, "NVIDIA H100 80GB HBM3"),
        (1, 1, "NVIDIA GeForce RTX 3090"),
    ]


def test_slot_poll_keeps_leases_of_other_slots(agent: Agent) -> None:
    make_job()
    held = agent.ask(lane=1, lanes=2).lease
    assert held is not None
    Lease.objects.update(started_at="2020-01-01T00:00Z")  # never heard of, for long
    assert agent.ask(lane=0, lanes=2).action == "idle"
    assert Lease.objects.get().state == Lease.State.ACTIVE
    make_job()
    agent.ask(lane=0, lanes=2, abandoned=(held.lease,))
    assert Lease.objects.get(pk=held.lease).state == Lease.State.LOST, "its agent was restarted"


def test_node_with_other_slot_count_gets_no_job(agent: Agent) -> None:
    make_job()
    action = agent.ask(lanes=1)
    assert (action.action, action.lanes, action.reason) == ("idle", 2, "It is to do 2 jobs at a time.")
    assert agent.ask(lanes=2).action == "job"


def test_slots_from_command_line_are_saved(agent: Agent) -> None:
    assert agent.ask(lanes=3, lanes_wished=3).lanes is None
    assert node().slots == 3


def test_agent_without_slots_gets_no_slot_fields(agent: Agent) -> None:
    answer = agent.poll()
    assert "lanes" not in answer.json()
    assert "lease" not in answer.json()


# --- labels ----------------------------------------------------------------------------------------------------------


def test_labels_combine_owner_and_detected() -> None:
    token = node_tokens.create_join_token(labels=["cellar"])
    joined, _ = node_tokens.register_node(token, protocol.Register(name="loco", labels=("warm",), hardware=TWO))
    assert joined.labels == ["3090", "cellar", "h100", "warm"]
    assert joined.owner_labels == ["cellar", "warm"]


def test_removed_gpu_removes_its_labels(agent: Agent) -> None:
    Node.objects.update(labels=["mine"])
    agent.ask(lanes=2)
    assert node().labels == ["3090", "h100", "mine"]
    agent.hardware = TWO.model_copy(update={"found_labels": ("h100",)})
    agent.ask(lanes=2)
    assert node().labels == ["h100", "mine"]


def test_owner_label_survives_detection(agent: Agent) -> None:
    Node.objects.update(labels=["h100"], owner_labels=["h100"])
    agent.ask(lanes=2)
    agent.hardware = HARDWARE
    agent.ask(lanes=2)
    assert node().labels == ["h100"]


def test_job_is_matched_by_detected_labels(agent: Agent) -> None:
    make_job(needs_labels=["h100"])
    assert agent.ask(lanes=2).action == "job"
    assert Job.objects.get().state == Job.State.LEASED


# --- health ----------------------------------------------------------------------------------------------------------


def test_poll_saves_health(agent: Agent) -> None:
    make_job()
    agent.ask(lanes=2, health=HEALTHY)
    assert node().health["temperature_celsius"] == 60
    assert sentences() == ["loco is online."]


def test_new_health_warning_records_one_event(agent: Agent) -> None:
    make_job()
    lease = agent.ask(lanes=2, health=HEALTHY).lease
    assert lease is not None
    for _ in range(3):
        Node.objects.update(last_seen="2020-01-01T00:00Z")  # a row is not written at every word
        beat = protocol.Heartbeat(phase="running", seconds=1, health=protocol.Health(idle_gpu=True, throttled=True))
        assert agent.call(f"/leases/{lease.lease}/heartbeat", beat, lease.token).status_code == 200
    assert node().health["idle_gpu"] is True
    assert sentences()[1:] == [
        "A GPU of loco is slowed down by heat or by its power supply.",
        "A job runs on loco, and its GPU has had nothing to do for minutes.",
    ]


def test_node_with_trouble_gets_no_job_with_reason(agent: Agent) -> None:
    make_job()
    trouble = "NVIDIA H100 still holds 5.1 GB: no job is taken until that is free."
    action = agent.ask(lanes=2, health=protocol.Health(trouble=trouble))
    assert (action.action, action.reason) == ("idle", trouble)
    assert sentences()[0] == f"loco takes no job: {trouble}"
    Node.objects.update(last_seen=None)
    assert agent.ask(lanes=2, health=HEALTHY).action == "job"
    assert node().health["trouble"] == ""


def test_poll_without_health_keeps_saved_health(agent: Agent) -> None:
    Node.objects.update(health={"temperature_celsius": 60})
    agent.ask(lanes=2)
    assert node().health == {"temperature_celsius": 60}
