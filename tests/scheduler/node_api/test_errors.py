"""Error responses of the node API: status, message, and no change in the database."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from scheduler import lease_sweeper, node_tokens, pool, rate_limits
from scheduler.models import Job, Lease
from tests.support.pool import (
    ROOT,
    Agent,
    ClaimedJob,
    build_bearer_header,
    build_file_reference,
    create_node,
    read_error_detail,
)
from trainer import protocol

HEARTBEAT = protocol.Heartbeat(phase="running", seconds=1)


@pytest.mark.parametrize(("status", "message"), [(401, "revoked"), (403, "It sent garbage.")])
def test_revoked_or_banned_node_is_rejected_by_every_call(claimed_job: ClaimedJob, status: int, message: str) -> None:
    node = claimed_job.row.node
    node_tokens.revoke_node_token(node, "admin") if status == 401 else pool.ban_node(node, "admin", message)
    for response in (
        claimed_job.agent.poll(),
        claimed_job.send_heartbeat(),
        claimed_job.send_metrics(1),
        claimed_job.upload_blob(b"x"),
        claimed_job.download_blob("0" * 64),
        claimed_job.finish(),
    ):
        assert response.status_code == status
        assert message in read_error_detail(response)
    assert claimed_job.job.state == Job.State.LEASED  # until the lease expires


@pytest.mark.parametrize("number", [2**31, 2**63, 2**64, "9" * 5000])
def test_lease_number_that_no_database_stores_is_refused(claimed_job: ClaimedJob, number: int | str) -> None:
    response = claimed_job.agent.call(f"/leases/{number}/heartbeat", HEARTBEAT, claimed_job.lease.token)
    assert response.status_code == (404 if number == "9" * 5000 else 403)


def test_only_the_token_of_the_lease_authorizes_its_calls(claimed_job: ClaimedJob, other_agent: Agent) -> None:
    path = f"{ROOT}/leases/{claimed_job.lease.lease}/authorization"
    tokens = (claimed_job.lease.token, claimed_job.agent.token, "dtn_lease_" + "x" * 43)
    statuses = [Client().get(path, headers=build_bearer_header(token)).status_code for token in tokens]
    assert statuses == [204, 403, 401]
    assert Client().get(path).status_code == 401
    response = other_agent.call(f"/leases/{claimed_job.lease.lease}/heartbeat", HEARTBEAT)
    assert response.status_code == 403
    assert "the lease's token" in read_error_detail(response)
    assert Agent(claimed_job.lease.token).poll().status_code == 403


def test_authorization_names_the_owner_of_an_active_lease(claimed_job: ClaimedJob) -> None:
    path = f"{ROOT}/leases/{claimed_job.lease.lease}/authorization"
    header = build_bearer_header(claimed_job.lease.token)
    node = Lease.objects.get().node
    assert Client().get(path, headers=header)["X-Owner"] == f"node {node.pk}"
    node.owner = User.objects.create_user("ada")
    node.save()
    assert Client().get(path, headers=header)["X-Owner"] == f"user {node.owner.pk}"
    claimed_job.finish("released")
    assert Client().get(path, headers=header)["X-Owner"] == "ended"


def test_ended_lease_rejects_every_call(claimed_job: ClaimedJob) -> None:
    assert claimed_job.upload_blob(b"sent in time").status_code == 200
    Lease.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    lease_sweeper.sweep_leases()
    responses = [
        claimed_job.send_heartbeat(),
        claimed_job.send_metrics(1),
        claimed_job.send_log(0, "late"),
        claimed_job.upload_blob(b"late"),
        claimed_job.report_checkpoint(5, build_file_reference(b"sent in time")),
        claimed_job.finish(),
        claimed_job.download_blob(claimed_job.spec.release.sha256),
    ]
    for response in responses:
        assert response.status_code == 409
        assert "has ended" in read_error_detail(response)
    assert claimed_job.job.state == Job.State.QUEUED
    assert not claimed_job.job.checkpoints.exists()


@pytest.mark.usefixtures("rate_limit_clock")
def test_node_over_rate_limit_of_a_slot_gets_429(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node may have 64 slots, each of which polls every ten seconds."""
    monkeypatch.setitem(rate_limits.PER_MINUTE, "poll", 2)
    for slot in range(3):
        assert [agent.poll(lane=slot, lanes=3).status_code for _ in range(3)] == [200, 200, 429]
    assert agent.poll()["Retry-After"] == "20"
    assert Agent(create_node("calm")[1]).poll().status_code == 200
