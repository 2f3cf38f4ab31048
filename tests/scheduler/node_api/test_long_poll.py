"""Long polls over a real socket."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
from django.db import connection
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from dailytrain.asgi import poll_endpoint
from scheduler import node_tokens, pool
from scheduler.models import Job, Lease, Node
from scheduler.node_api.polls import PollSession
from tests.support.pool import HARDWARE, ROOT, Agent, build_bearer_header, build_file_reference, create_job, create_node
from tests.support.waits import WAIT_SECONDS, wait_until
from trainer import protocol

pytestmark = pytest.mark.processes


@pytest.fixture
def http(site_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=site_url + ROOT, timeout=WAIT_SECONDS) as client:
        yield client


def post_poll(http: httpx.Client, token: str, wait_seconds: float) -> tuple[protocol.PollReply, float]:
    """Return the reply and how many seconds it took."""
    started = time.monotonic()
    body = protocol.encode_message(protocol.Poll(hardware=HARDWARE, wait_seconds=wait_seconds))
    response = http.post(
        "/poll", content=body, headers={**build_bearer_header(token), "Content-Type": "application/json"}
    )
    assert response.status_code == 200, response.text
    return protocol.PollReply.model_validate_json(response.content), time.monotonic() - started


def run_later(function: object, seconds: float = 0.5) -> threading.Timer:
    def run() -> None:
        try:
            function()  # type: ignore[operator]
        finally:
            connection.close()

    timer = threading.Timer(seconds, run)
    timer.start()
    return timer


def test_poll_with_empty_queue_waits_then_replies_idle(http: httpx.Client) -> None:
    action, seconds = post_poll(http, create_node()[1], 1.5)
    assert (action.action, action.wait_seconds, action.reason) == ("idle", 0, "The queue is empty.")
    assert seconds >= 1.5


def test_waiting_poll_gets_newly_queued_job(http: httpx.Client) -> None:
    token = create_node()[1]
    timer = run_later(create_job)
    action, seconds = post_poll(http, token, 60)
    timer.join()
    assert action.lease is not None
    assert seconds < 50
    assert Job.objects.get().state == Job.State.LEASED


def test_waiting_poll_of_paused_node_is_answered(http: httpx.Client) -> None:
    node, token = create_node()
    timer = run_later(lambda: pool.pause_node(node, "ada", "I need my GPU."))
    action, _ = post_poll(http, token, 60)
    timer.join()
    assert (action.action, action.reason) == ("pause", "I need my GPU.")


@pytest.mark.slow
def test_one_of_many_waiting_polls_gets_job(http: httpx.Client) -> None:
    tokens = [create_node(f"node-{number}")[1] for number in range(6)]
    responses: list[protocol.PollReply] = []
    threads = [
        threading.Thread(target=lambda token=token: responses.append(post_poll(http, token, 10)[0])) for token in tokens
    ]
    for thread in threads:
        thread.start()
    time.sleep(1)
    create_job()
    for thread in threads:
        thread.join()
    assert sorted(response.action for response in responses) == ["idle"] * 5 + ["job"]


def test_disconnected_node_gets_no_job(http: httpx.Client) -> None:
    token, waiting, started = create_node()[1], poll_endpoint._waiters, time.monotonic()
    others = len(waiting)
    body = protocol.encode_message(protocol.Poll(hardware=HARDWARE, wait_seconds=60))
    lines = [f"POST {ROOT}/poll HTTP/1.1", "Host: localhost", f"Authorization: Bearer {token}"]
    lines += [f"Content-Length: {len(body)}", "", body]
    with socket.create_connection((http.base_url.host, http.base_url.port or 80)) as connected:
        connected.sendall("\r\n".join(lines).encode())
        wait_until(lambda: len(waiting) > others)
    wait_until(lambda: len(waiting) == others)
    assert time.monotonic() - started < 50, "the poll waited to its end"
    create_job()
    time.sleep(2.5)
    assert Job.objects.get().state == Job.State.QUEUED


def test_job_lifecycle_over_http(http: httpx.Client) -> None:
    """Register, poll, read the release, send a large file and a checkpoint, finish."""
    register = protocol.Register(name="socket", hardware=HARDWARE)
    response = http.post(
        "/register",
        content=protocol.encode_message(register),
        headers=build_bearer_header(node_tokens.create_join_token()),
    )
    registered = protocol.RegisterReply.model_validate_json(response.content)
    create_job()
    action, _ = post_poll(http, registered.token, 5)
    assert action.lease is not None
    lease, headers = f"/leases/{action.lease.lease}", build_bearer_header(action.lease.token)
    spec = protocol.JobSpec.model_validate_json(action.lease.spec)
    assert http.get(f"{lease}/blobs/{spec.release.sha256}", headers=headers).content == b"a release"

    content = bytes(range(256)) * 20_000  # 5 MB: more than one piece
    file = build_file_reference(content)
    upload = http.put(f"{lease}/blobs/{file.sha256}", content=content, headers=headers)
    assert upload.json() == {"received": file.size}
    checkpoint = protocol.CheckpointUploaded(checkpoint=protocol.Checkpoint(step=1, files=(file,)))
    assert (
        http.post(f"{lease}/checkpoints", content=protocol.encode_message(checkpoint), headers=headers).status_code
        == 200
    )
    finish = protocol.FinishLease(outcome="released")
    assert http.post(f"{lease}/finish", content=protocol.encode_message(finish), headers=headers).status_code == 200

    action, _ = post_poll(http, create_node("next")[1], 5)
    assert action.lease is not None
    lease, headers = f"/leases/{action.lease.lease}", build_bearer_header(action.lease.token)
    assert http.get(f"{lease}/blobs/{file.sha256}", headers=headers).content == content


# --- queries of a poll -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 50])
def test_poll_query_count_is_independent_of_queue_length(
    agent: Agent, django_assert_num_queries: DjangoAssertNumQueries, length: int
) -> None:
    """The token, with whether the node has a lease; expired leases; groups and shares; and the claim: BEGIN, the oldest
    job, its UPDATE, the lease, its spec, the Event, the kind's, COMMIT."""
    for number in range(length):
        create_job(author=f"author-{number % 5}")
    agent.request_action(hardware=HARDWARE, abandoned=())  # the first poll of a node also saves that it is online
    Lease.objects.update(state=Lease.State.LOST)
    Job.objects.filter(state=Job.State.LEASED).update(state=Job.State.QUEUED)
    Node.objects.update(last_seen=timezone.now())
    with django_assert_num_queries(12):
        assert agent.request_action().action == "job"


def test_waiting_poll_check_without_jobs_takes_two_queries(
    db: None, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    node, _ = create_node()
    session = PollSession(node, protocol.Poll(hardware=HARDWARE))
    assert session.check() is None
    with django_assert_num_queries(2):
        assert session.check_again() is None
