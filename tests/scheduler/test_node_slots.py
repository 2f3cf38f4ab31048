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


def test_each_lane_has_a_job_with_its_own_gpus(agent: Agent) -> None:
    for _ in range(3):
        make_job()
    actions = [agent.ask(lane=lane, lanes=2).action for lane in (0, 1, 0, 1)]
    assert actions == ["job", "job", "idle", "idle"], "one each"
    assert list(Lease.objects.order_by("slot").values_list("slot", "gpus", "accelerator")) == [
        (0, 1, "NVIDIA H100 80GB HBM3"),
        (1, 1, "NVIDIA GeForce RTX 3090"),
    ]


def test_a_lane_that_asks_again_leaves_the_other_lanes_lease_alone(agent: Agent) -> None:
    make_job()
    held = agent.ask(lane=1, lanes=2).lease
    assert held is not None
    Lease.objects.update(started_at="2020-01-01T00:00Z")  # never heard of, for long
    assert agent.ask(lane=0, lanes=2).action == "idle"
    assert Lease.objects.get().state == Lease.State.ACTIVE
    make_job()
    agent.ask(lane=0, lanes=2, abandoned=(held.lease,))
    assert Lease.objects.get(pk=held.lease).state == Lease.State.LOST, "its agent was restarted"


def test_a_node_that_runs_another_number_is_told_and_gets_no_job_before(agent: Agent) -> None:
    make_job()
    action = agent.ask(lanes=1)
    assert (action.action, action.lanes, action.reason) == ("idle", 2, "It is to do 2 jobs at a time.")
    assert agent.ask(lanes=2).action == "job"


def test_the_sponsors_command_line_is_the_owners_wish(agent: Agent) -> None:
    assert agent.ask(lanes=3, lanes_wished=3).lanes is None
    assert node().slots == 3


def test_an_agent_that_knows_no_lanes_gets_no_word_of_them(agent: Agent) -> None:
    answer = agent.poll()
    assert "lanes" not in answer.json()
    assert "lease" not in answer.json()


# --- labels ----------------------------------------------------------------------------------------------------------


def test_labels_are_the_owners_and_what_the_node_found() -> None:
    token = node_tokens.create_join_token(labels=["cellar"])
    joined, _ = node_tokens.register_node(token, protocol.Register(name="loco", labels=("warm",), hardware=TWO))
    assert joined.labels == ["3090", "cellar", "h100", "warm"]
    assert joined.owner_labels == ["cellar", "warm"]


def test_a_card_that_was_taken_out_takes_its_labels_along(agent: Agent) -> None:
    Node.objects.update(labels=["mine"])
    agent.ask(lanes=2)
    assert node().labels == ["3090", "h100", "mine"]
    agent.hardware = TWO.model_copy(update={"found_labels": ("h100",)})
    agent.ask(lanes=2)
    assert node().labels == ["h100", "mine"]


def test_a_label_that_its_owner_wished_stays_whatever_the_node_finds(agent: Agent) -> None:
    Node.objects.update(labels=["h100"], owner_labels=["h100"])
    agent.ask(lanes=2)
    agent.hardware = HARDWARE
    agent.ask(lanes=2)
    assert node().labels == ["h100"]


def test_a_job_goes_by_what_the_node_found(agent: Agent) -> None:
    make_job(needs_labels=["h100"])
    assert agent.ask(lanes=2).action == "job"
    assert Job.objects.get().state == Job.State.LEASED


# --- health ----------------------------------------------------------------------------------------------------------


def test_health_stands_on_the_row(agent: Agent) -> None:
    make_job()
    agent.ask(lanes=2, health=HEALTHY)
    assert node().health["temperature_celsius"] == 60
    assert sentences() == ["loco is online."]


def test_what_begins_to_go_wrong_is_told_once(agent: Agent) -> None:
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


def test_a_node_in_trouble_gets_no_job_and_its_owner_reads_why(agent: Agent) -> None:
    make_job()
    trouble = "NVIDIA H100 still holds 5.1 GB: no job is taken until that is free."
    action = agent.ask(lanes=2, health=protocol.Health(trouble=trouble))
    assert (action.action, action.reason) == ("idle", trouble)
    assert sentences()[0] == f"loco takes no job: {trouble}"
    Node.objects.update(last_seen=None)
    assert agent.ask(lanes=2, health=HEALTHY).action == "job"
    assert node().health["trouble"] == ""


def test_an_agent_that_says_nothing_of_its_health_changes_nothing(agent: Agent) -> None:
    Node.objects.update(health={"temperature_celsius": 60})
    agent.ask(lanes=2)
    assert node().health == {"temperature_celsius": 60}
