"""Slots prove themselves before they get jobs, and a node that fails gets none until it has proven itself again."""

from __future__ import annotations

from html import unescape
from typing import Any

import pytest
from django.test import Client

from scheduler import node_health, pool
from scheduler.models import Job, Lease, Node
from scheduler.sponsors import contributions
from tests.support.pool import Agent, ClaimedJob, create_job
from trainer import protocol

pytestmark = [pytest.mark.django_db, pytest.mark.self_test]

RESULT = protocol.SelfTestResult(
    sandbox="bubblewrap", device="cpu", gpus=0, loss=6.0, bits_per_byte=2.5, train_seconds=2.0, score_seconds=1.0
).model_dump()


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


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        ({"outcome": "failed", "reason": "No module named 'packaging'"}, "No module named 'packaging'"),
        ({"outcome": "done", "result": {"loss": "nan"}}, node_health.MALFORMED_REASON),
    ],
)
def test_failed_self_test_makes_node_failing_until_it_is_repeated(
    agent: Agent, admin_client: Client, report: dict[str, Any], reason: str
) -> None:
    create_job()
    claim_test(agent).finish(**report)
    node, reply = read_node(), agent.request_action()
    assert (node.state, node.fault, node.reason) == (Node.State.FAILING, Node.Fault.SELF_TEST, reason)
    assert (reply.action, reason in reply.reason) == ("pause", True)
    for page in ("/admin/", f"/sponsors/nodes/{node.pk}/"):
        assert reason in unescape(admin_client.get(page).content.decode()), page
    assert node.last_seen is not None
    pool.mark_silent_nodes_offline(node.last_seen + 2 * pool.OFFLINE_AFTER)
    assert read_node().state == Node.State.FAILING
    assert Job.objects.get(kind="train").attempts == 0
    pool.pause_node(read_node(), "ada")
    pool.resume_node(read_node(), "ada")
    claim_test(agent).finish(**report)
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


def test_agent_without_self_test_is_told_to_update_and_proves_itself_then(agent: Agent) -> None:
    current = agent.hardware
    agent.hardware = current.model_copy(update={"kinds": ("train", "score")})
    create_job()
    reply = agent.request_action()
    assert (read_node().state, read_node().fault) == (Node.State.FAILING, Node.Fault.OUTDATED)
    assert "Update dailytrain" in reply.reason
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
    reason = "CUDA error: an illegal memory access"
    assert (node.state, node.fault, node.reason) == (Node.State.FAILING, Node.Fault.JOB, reason)
    Lease.objects.update(seconds=3600)
    assert contributions.sum_leases_by_node(Lease.objects.all()) == {}, "neither fault nor self-test contributes"
    pass_test(agent)
    assert read_node().state == Node.State.ONLINE
    agent.claim_job().finish()
    assert read_node().failures == 0, "success forgives"


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
