"""Slots prove themselves before they get jobs, and a node that fails gets none until it has proven itself again."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from scheduler import node_health, pool
from scheduler.models import Job, Lease, Node
from scheduler.sponsors import contributions
from tests.support.pool import Agent, ClaimedJob, create_job, create_node
from trainer import protocol

pytestmark = [pytest.mark.django_db, pytest.mark.self_test]

RESULT = protocol.SelfTestResult(
    sandbox="bubblewrap", device="cpu", gpus=0, loss=6.0, bits_per_byte=2.5, train_seconds=2.0, score_seconds=1.0
).model_dump()


@pytest.fixture
def agent() -> Agent:
    """The agent of a node that has joined and not polled yet."""
    return Agent(create_node()[1])


def read_node() -> Node:
    return Node.objects.get()


def claim_test(agent: Agent, **fields: Any) -> ClaimedJob:
    reply = agent.request_action(**fields)
    assert reply.lease is not None, reply.reason
    claimed = ClaimedJob(agent, reply.lease)
    assert claimed.spec.order.kind == "self_test"
    return claimed


def pass_test(agent: Agent, **fields: Any) -> None:
    assert claim_test(agent, **fields).finish(result=RESULT).status_code == 200


def fail_job(agent: Agent, reason: str = "CUDA error: an illegal memory access") -> None:
    claimed = agent.claim_job()
    assert claimed.spec.order.kind == "train"
    claimed.finish("failed", reason=reason)


def test_new_slot_gets_self_test_before_waiting_job(agent: Agent) -> None:
    job = create_job()
    test = claim_test(agent)
    assert read_node().state == Node.State.TESTING
    test.finish(result=RESULT)
    assert read_node().state == Node.State.ONLINE
    assert agent.claim_job().job == job


def test_failed_self_test_makes_node_failing_with_its_reason(agent: Agent) -> None:
    create_job()
    claim_test(agent).finish("failed", reason="Training one step: No module named 'packaging'")
    node, reply = read_node(), agent.request_action()
    assert (node.state, node.fault) == (Node.State.FAILING, Node.Fault.SELF_TEST)
    assert reply.action == "pause"
    assert "No module named 'packaging'" in reply.reason
    assert Job.objects.get(kind="train").attempts == 0


def test_self_test_with_malformed_result_is_failed(agent: Agent) -> None:
    claim_test(agent).finish(result={"loss": "nan"})
    assert read_node().reason == node_health.MALFORMED_REASON


def test_failing_node_is_tested_again_after_its_agent_starts_again(agent: Agent) -> None:
    claim_test(agent).finish("failed", reason="No space left on device")
    assert agent.request_action().lease is None
    agent.hardware = agent.hardware.model_copy(update={"installation": "another start"})
    pass_test(agent)
    assert (read_node().state, read_node().fault, read_node().reason) == (Node.State.ONLINE, "", "")


def test_proven_node_is_tested_again_after_new_release(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    pass_test(agent)
    monkeypatch.setattr(node_health, "hash_release", lambda: "f" * 64)
    claim_test(agent)
    assert read_node().state == Node.State.TESTING


def test_slot_that_passes_does_not_end_failure_of_another(agent: Agent) -> None:
    Node.objects.update(slots=2)
    first = claim_test(agent, lanes=2, lane=0)
    claim_test(agent, lanes=2, lane=1).finish("failed", reason="CUDA error")
    first.finish(result=RESULT)
    assert read_node().state == Node.State.FAILING


def test_agent_without_self_test_is_told_to_update(agent: Agent) -> None:
    agent.hardware = agent.hardware.model_copy(update={"kinds": ("train", "score")})
    create_job()
    reply = agent.request_action()
    assert (read_node().state, read_node().fault) == (Node.State.FAILING, Node.Fault.OUTDATED)
    assert "Update dailytrain" in reply.reason


def test_updated_agent_proves_itself(agent: Agent) -> None:
    current = agent.hardware
    agent.hardware = current.model_copy(update={"kinds": ("train",)})
    agent.request_action()
    agent.hardware = current.model_copy(update={"kinds": ("train", "self_test"), "installation": "updated"})
    pass_test(agent)
    assert read_node().state == Node.State.ONLINE


def test_interrupted_self_test_is_cancelled_and_repeated(agent: Agent) -> None:
    test = claim_test(agent)
    test.finish("released", reason="The sponsor needs the machine.")
    assert test.job.state == Job.State.CANCELLED
    pass_test(agent)


def test_job_failed_by_machine_makes_node_prove_itself(agent: Agent) -> None:
    pass_test(agent)
    create_job()
    fail_job(agent)
    node = read_node()
    assert (node.state, node.fault, node.reason) == (
        Node.State.FAILING,
        Node.Fault.JOB,
        "CUDA error: an illegal memory access",
    )
    pass_test(agent)
    assert read_node().state == Node.State.ONLINE


def test_node_that_fails_repeatedly_waits_for_its_owner(agent: Agent) -> None:
    create_job(max_attempts=9)
    for _ in range(node_health.OWNER_AFTER):
        pass_test(agent)
        fail_job(agent)
    reply = agent.request_action()
    assert (reply.action, reply.lease) == ("pause", None)
    assert "Test again" in reply.reason
    assert node_health.request_self_test(read_node(), "ada")
    pass_test(agent)
    assert agent.claim_job().spec.order.kind == "train"


def test_success_forgives_earlier_faults(agent: Agent) -> None:
    create_job(max_attempts=9)
    pass_test(agent)
    fail_job(agent)
    pass_test(agent)
    agent.claim_job().finish()
    assert read_node().failures == 0


def test_resumed_node_repeats_failed_self_test(agent: Agent) -> None:
    claim_test(agent).finish("failed", reason="No space left on device")
    pool.pause_node(read_node(), "ada")
    pool.resume_node(read_node(), "ada")
    claim_test(agent)


def test_silent_failing_node_stays_failing(agent: Agent) -> None:
    claim_test(agent).finish("failed", reason="No space left on device")
    node = read_node()
    assert node.last_seen is not None
    pool.mark_silent_nodes_offline(node.last_seen + 2 * pool.OFFLINE_AFTER)
    assert read_node().state == Node.State.FAILING


def test_machine_fault_and_self_test_are_no_contribution(agent: Agent) -> None:
    create_job(max_attempts=9)
    pass_test(agent)
    fail_job(agent)
    Lease.objects.update(seconds=3600)
    assert contributions.sum_leases_by_node(Lease.objects.all()) == {}


def test_health_page_lists_failing_node_with_reason(agent: Agent, admin_client: Client) -> None:
    claim_test(agent).finish("failed", reason="No module named 'packaging'")
    page = admin_client.get("/admin/monitoring/").content.decode()
    assert "No module named &#x27;packaging&#x27;" in page
