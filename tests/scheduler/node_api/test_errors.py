"""Whoever may not is refused, with a sentence, and nothing is changed."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.utils import timezone
from pytest_django import Settings

from scheduler import lease_sweeper, node_tokens, pool, rate_limits
from scheduler.models import Job, Lease, Node
from tests.support.pool import HARDWARE, Agent, Work, make_job, make_node, reference, sentence
from trainer import protocol

HEARTBEAT = protocol.Heartbeat(phase="running", seconds=1)


@pytest.fixture
def work(agent: Agent) -> Work:
    make_job()
    return agent.work()


@pytest.fixture
def other() -> Agent:
    return Agent(make_node("other")[1])


@pytest.mark.parametrize("token", ["", "nonsense", "dtn_node_" + "x" * 43])
def test_unknown_token_is_unauthorized(agent: Agent, token: str) -> None:
    make_job()
    stranger = Agent(token or "Bearer")
    assert stranger.poll().status_code == 401
    assert "token" in sentence(stranger.poll())
    assert not Lease.objects.exists()


def test_missing_token_gets_explanation(agent: Agent) -> None:
    answer = agent.client.post("/api/node/v1/poll", "{}", content_type="application/json")
    assert answer.status_code == 401
    assert "Authorization: Bearer" in sentence(answer)


def test_revoked_node_is_rejected_by_every_call(work: Work) -> None:
    node_tokens.revoke_node_token(work.row.node, "admin")
    for answer in (work.agent.poll(), work.heartbeat(), work.metrics(1), work.put(b"x"), work.finish()):
        assert answer.status_code == 401
        assert "revoked" in sentence(answer)
    assert work.job.state == Job.State.LEASED  # until the lease has run out


def test_banned_node_is_rejected_by_every_call_with_reason(work: Work) -> None:
    pool.ban_node(work.row.node, "admin", "It sent garbage.")
    for answer in (work.agent.poll(), work.heartbeat(), work.metrics(1), work.finish(), work.get("0" * 64)):
        assert answer.status_code == 403
        assert "It sent garbage." in sentence(answer)


def test_lease_call_with_token_of_another_node_is_forbidden(work: Work, other: Agent) -> None:
    path = f"/leases/{work.lease.lease}/heartbeat"
    assert other.call(path, HEARTBEAT).status_code == 403
    assert "the lease's token" in sentence(other.call(path, HEARTBEAT))


def test_lease_call_with_own_node_token_is_forbidden(work: Work) -> None:
    assert work.agent.call(f"/leases/{work.lease.lease}/heartbeat", HEARTBEAT).status_code == 403


def test_lease_call_with_token_of_another_lease_is_forbidden(work: Work, other: Agent) -> None:
    make_job()
    theirs = other.work()
    answer = other.call(f"/leases/{work.lease.lease}/heartbeat", HEARTBEAT, theirs.lease.token)
    assert answer.status_code == 403
    assert sentence(answer) == "This token belongs to another lease."


def test_lease_call_with_unknown_token_is_unauthorized(work: Work) -> None:
    answer = work.agent.call(f"/leases/{work.lease.lease}/heartbeat", HEARTBEAT, "dtn_lease_" + "x" * 43)
    assert answer.status_code == 401
    answer = work.agent.call("/leases/999999/heartbeat", HEARTBEAT, "dtn_lease_" + "x" * 43)
    assert answer.status_code == 401


def test_poll_with_lease_token_is_forbidden(work: Work) -> None:
    assert Agent(work.lease.token).poll().status_code == 403


def test_ended_lease_rejects_every_call(work: Work) -> None:
    assert work.put(b"sent in time").status_code == 200
    Lease.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    lease_sweeper.sweep_leases()
    answers = [
        work.heartbeat(),
        work.metrics(1),
        work.log(0, "late"),
        work.put(b"late"),
        work.uploaded(5, reference(b"sent in time")),
        work.finish(),
        work.get(work.spec.release.sha256),
    ]
    for answer in answers:
        assert answer.status_code == 409
        assert "has ended" in sentence(answer)
    assert work.job.state == Job.State.QUEUED
    assert not work.job.checkpoints.exists()


def test_other_protocol_version_is_asked_to_update(agent: Agent) -> None:
    body = {"version": 2, "hardware": {"something": "new"}, "and": "more"}
    answer = agent.call("/poll", json.dumps(body))
    assert answer.status_code == 426
    assert "Update" in sentence(answer)
    token = node_tokens.create_join_token()
    assert agent.call("/register", json.dumps({"version": 0}), token).status_code == 426


def test_invalid_message_names_the_field(agent: Agent) -> None:
    answer = agent.call("/poll", json.dumps({"hardware": {}}))
    assert answer.status_code == 422
    assert "hardware.hostname" in sentence(answer)
    assert agent.call("/poll", "{").status_code == 400
    assert agent.call("/poll", "[]").status_code == 422


def test_too_large_message_gets_413(work: Work, settings: Settings) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    answer = work.metrics(1, [{"text": "x" * 2000}])
    assert answer.status_code == 413
    assert "less at a time" in sentence(answer)


def test_node_over_rate_limit_gets_429(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rate_limits.PER_MINUTE, "poll", 2)
    monkeypatch.setattr(rate_limits.time, "time", lambda: 1e9)  # one and the same minute
    assert [agent.poll().status_code for _ in range(4)] == [200, 200, 429, 429]
    assert agent.poll()["Retry-After"] == "20"
    assert Agent(make_node("calm")[1]).poll().status_code == 200


def test_deleted_node_is_unauthorized(agent: Agent) -> None:
    Node.objects.all().delete()
    assert agent.poll().status_code == 401
    assert agent.poll(hardware=HARDWARE).status_code == 401


def test_unknown_field_of_a_newer_agent_is_rejected_with_its_name(agent: Agent) -> None:
    words = json.loads(protocol.encode_message(protocol.Poll(hardware=HARDWARE))) | {"mood": "good"}
    answer = agent.call("/poll", json.dumps(words))
    assert answer.status_code == 422
    assert sentence(answer) == "Unknown field mood. Is the agent newer than the site?"


def test_job_kind_unknown_to_agent_waits_for_newer_agent(agent: Agent) -> None:
    make_job(kind="train")
    assert agent.ask(hardware=HARDWARE.model_copy(update={"kinds": ("score",)})).lease is None
    assert "up to date" in agent.ask(hardware=HARDWARE.model_copy(update={"kinds": ("score",)})).reason
    assert agent.ask(hardware=HARDWARE.model_copy(update={"kinds": ("score", "train")})).lease is not None
