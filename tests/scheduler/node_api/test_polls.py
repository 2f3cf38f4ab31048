"""Polls of the node API: replies at once, what they write, and their number of queries."""

from __future__ import annotations

import json
import time
from datetime import timedelta

import httpx
import pytest
from django.conf import settings
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from scheduler import node_tokens, pool
from scheduler.models import Job, Lease, Node, Sweep
from scheduler.node_api import polls
from tests.support.pool import HARDWARE, ROOT, Agent, build_bearer_header, build_file_reference, create_job, create_node
from tests.support.waits import WAIT_SECONDS
from trainer import protocol

pytestmark = [pytest.mark.sql, pytest.mark.django_db]

CHANGED_HARDWARE = HARDWARE.model_copy(update={"disk_free_bytes": HARDWARE.disk_free_bytes - 1})


@pytest.fixture(autouse=True)
def sweep(db: None) -> None:
    """A sweep that has just been, so that no poll sweeps."""
    Sweep.objects.create(pk=1, at=timezone.now())


def test_poll_that_may_wait_a_minute_is_answered_at_once(agent: Agent) -> None:
    started = time.monotonic()
    reply = agent.request_action(wait_seconds=60)
    assert (reply.action, reply.reason) == ("idle", "The queue is empty.")
    assert reply.wait_seconds == settings.POLL_SECONDS
    assert time.monotonic() - started < 50


def test_next_poll_of_paused_node_gets_the_reason(agent: Agent) -> None:
    agent.request_action()
    pool.pause_node(Node.objects.get(), "ada", "I need my GPU.")
    reply = agent.request_action()
    assert (reply.action, reply.reason) == ("pause", "I need my GPU.")


@pytest.mark.parametrize("has_match", [True, False])
def test_poll_of_long_queue_takes_constant_queries(has_match: bool) -> None:
    agents = [Agent(create_node(f"node-{number}", trusted=has_match)[1]) for number in range(2)]
    counts = []
    for agent, jobs in zip(agents, (3, 200), strict=True):
        for number in range(jobs):
            create_job(author=f"author-{number % 40}", impact=number % 3, needs_trusted=True)
        with CaptureQueriesContext(connection) as captured:
            assert agent.request_action().action == ("job" if has_match else "idle")
        counts.append(len(captured))
    assert counts[0] == counts[1]


def test_poll_within_the_interval_writes_nothing(
    agent: Agent, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    """The queries: the token, the sweep, leases of the node, groups and shares."""
    agent.request_action()
    with django_assert_num_queries(5):
        agent.request_action(hardware=CHANGED_HARDWARE)
    assert Node.objects.get().hardware == HARDWARE.model_dump(mode="json")


def test_poll_after_the_interval_updates_hardware_health_and_time(agent: Agent) -> None:
    before = timezone.now()
    Node.objects.update(state=Node.State.ONLINE, last_seen=before - 2 * pool.LAST_SEEN_INTERVAL)
    agent.request_action(hardware=CHANGED_HARDWARE, health=protocol.Health(temperature_celsius=61))
    node = Node.objects.get()
    assert node.last_seen is not None
    assert node.last_seen >= before
    assert node.hardware["disk_free_bytes"] == CHANGED_HARDWARE.disk_free_bytes
    assert node.health["temperature_celsius"] == 61


def test_poll_of_offline_node_makes_it_online(agent: Agent) -> None:
    Node.objects.update(state=Node.State.OFFLINE, last_seen=timezone.now() - timedelta(hours=1))
    agent.request_action()
    assert Node.objects.get().state == Node.State.ONLINE


def test_poll_is_matched_by_hardware_not_yet_saved(agent: Agent) -> None:
    create_job(needs_disk_bytes=HARDWARE.disk_free_bytes)
    agent.request_action(hardware=CHANGED_HARDWARE)
    Job.objects.update(needs_disk_bytes=CHANGED_HARDWARE.disk_free_bytes + 1, state=Job.State.QUEUED)
    Lease.objects.all().delete()
    assert agent.request_action(hardware=CHANGED_HARDWARE).action == "idle"
    assert agent.request_action().action == "job"


def test_claim_skips_group_emptied_by_others(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    create_job(author="ada", priority=Job.Priority.NIGHTLY)
    create_job(author="bob")
    load_queue = polls.job_groups.load_queue

    def load_and_cancel(now: object) -> object:
        queue = load_queue(now)  # type: ignore[arg-type]
        Job.objects.filter(author="ada").update(state=Job.State.CANCELLED)
        return queue

    monkeypatch.setattr(polls.job_groups, "load_queue", load_and_cancel)
    assert agent.claim_job().job.author == "bob"


@pytest.mark.parametrize(
    "message",
    [
        b"no JSON",
        b"[]",
        json.dumps({"version": 2}).encode(),
        json.dumps({"hardware": {}}).encode(),
        json.dumps({"version": 1, "hardware": HARDWARE.model_dump(mode="json"), "colour": "red"}).encode(),
    ],
)
def test_unreadable_poll_gets_an_error_with_a_detail(agent: Agent, message: bytes) -> None:
    reply = agent.call("/poll", message.decode())
    assert reply.status_code in (400, 422, 426)
    assert json.loads(reply.content)["detail"]


@pytest.mark.parametrize("header", [{}, {"Authorization": "Basic abc"}, build_bearer_header("dtn_node_unknown")])
def test_poll_without_a_valid_token_gets_401(agent: Agent, header: dict[str, str]) -> None:
    body = protocol.encode_message(protocol.Poll(hardware=HARDWARE))
    reply = agent.client.post(f"{ROOT}/poll", body, content_type="application/json", headers=header)
    assert reply.status_code == 401
    assert "token" in json.loads(reply.content)["detail"]


def test_poll_of_banned_node_gets_403_with_the_reason(agent: Agent) -> None:
    pool.ban_node(Node.objects.get(), "ada", "It sent garbage.")
    reply = agent.poll()
    assert reply.status_code == 403
    assert "It sent garbage." in json.loads(reply.content)["detail"]


def test_poll_without_a_database_gets_503(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OperationalError("the database is down")

    monkeypatch.setattr(polls, "answer_poll", fail)
    reply = agent.poll()
    assert reply.status_code == 503
    assert json.loads(reply.content)["detail"] == "The site's database does not answer. Try again later."


@pytest.mark.processes
def test_job_lifecycle_over_http(site_url: str) -> None:
    """Register, poll, read the release, send a large file and a checkpoint, finish."""
    with httpx.Client(base_url=site_url + ROOT, timeout=WAIT_SECONDS) as http:

        def post(path: str, message: protocol.Message, token: str) -> httpx.Response:
            content = protocol.encode_message(message)
            response = http.post(path, content=content, headers=build_bearer_header(token))
            assert response.status_code == 200, response.text
            return response

        def claim_job(token: str) -> tuple[str, protocol.Lease]:
            reply = post("/poll", protocol.Poll(hardware=HARDWARE), token)
            lease = protocol.PollReply.model_validate_json(reply.content).lease
            assert lease is not None
            return f"/leases/{lease.lease}", lease

        create_job()
        register = protocol.Register(name="socket", hardware=HARDWARE)
        registered = post("/register", register, node_tokens.create_join_token())
        path, lease = claim_job(protocol.RegisterReply.model_validate_json(registered.content).token)
        headers = build_bearer_header(lease.token)
        spec = protocol.JobSpec.model_validate_json(lease.spec)
        assert http.get(f"{path}/blobs/{spec.release.sha256}", headers=headers).content == b"a release"

        content = bytes(range(256)) * 20_000  # 5 MB: more than one piece
        file = build_file_reference(content)
        upload = http.put(f"{path}/blobs/{file.sha256}", content=content, headers=headers)
        assert upload.json() == {"received": file.size}
        checkpoint = protocol.CheckpointUploaded(checkpoint=protocol.Checkpoint(step=1, files=(file,)))
        post(f"{path}/checkpoints", checkpoint, lease.token)
        post(f"{path}/finish", protocol.FinishLease(outcome="released"), lease.token)

        path, lease = claim_job(create_node("next")[1])
        headers = build_bearer_header(lease.token)
        assert http.get(f"{path}/blobs/{file.sha256}", headers=headers).content == content
