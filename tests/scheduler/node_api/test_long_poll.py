"""A question that is held open, over a real socket, as nodes ask it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import httpx
import pytest
from django.db import connection
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from scheduler import node_tokens, pool
from scheduler.models import Job, Lease, Node
from scheduler.node_api.polls import PollSession
from tests.support.pool import HARDWARE, ROOT, Agent, bearer, make_job, make_node, reference
from trainer import protocol


@pytest.fixture
def http(site_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=site_url + ROOT, timeout=30) as client:
        yield client


def ask(http: httpx.Client, token: str, wait_seconds: float) -> tuple[protocol.PollReply, float]:
    """Return the answer and how many seconds it took."""
    started = time.monotonic()
    body = protocol.encode_message(protocol.Poll(hardware=HARDWARE, wait_seconds=wait_seconds))
    answer = http.post("/poll", content=body, headers={**bearer(token), "Content-Type": "application/json"})
    assert answer.status_code == 200, answer.text
    return protocol.PollReply.model_validate_json(answer.content), time.monotonic() - started


def in_a_moment(act: object, seconds: float = 0.5) -> threading.Timer:
    def run() -> None:
        try:
            act()  # type: ignore[operator]
        finally:
            connection.close()

    timer = threading.Timer(seconds, run)
    timer.start()
    return timer


def test_poll_with_empty_queue_waits_then_replies_idle(http: httpx.Client) -> None:
    action, seconds = ask(http, make_node()[1], 1.5)
    assert (action.action, action.wait_seconds, action.reason) == ("idle", 0, "The queue is empty.")
    assert 1.5 <= seconds < 10


def test_waiting_poll_gets_newly_queued_job(http: httpx.Client) -> None:
    token = make_node()[1]
    timer = in_a_moment(make_job)
    action, seconds = ask(http, token, 20)
    timer.join()
    assert action.lease is not None
    assert seconds < 15
    assert Job.objects.get().state == Job.State.LEASED


def test_waiting_poll_of_paused_node_is_answered(http: httpx.Client) -> None:
    node, token = make_node()
    timer = in_a_moment(lambda: pool.pause_node(node, "ada", "I need my GPU."))
    action, _ = ask(http, token, 20)
    timer.join()
    assert (action.action, action.reason) == ("pause", "I need my GPU.")


def test_one_of_many_waiting_polls_gets_job(http: httpx.Client) -> None:
    tokens = [make_node(f"node-{number}")[1] for number in range(6)]
    answers: list[protocol.PollReply] = []
    waiting = [threading.Thread(target=lambda token=token: answers.append(ask(http, token, 4)[0])) for token in tokens]
    for thread in waiting:
        thread.start()
    time.sleep(1)
    make_job()
    for thread in waiting:
        thread.join()
    assert sorted(answer.action for answer in answers) == ["idle"] * 5 + ["job"]


def test_disconnected_node_gets_no_job(http: httpx.Client) -> None:
    token = make_node()[1]
    body = protocol.encode_message(protocol.Poll(hardware=HARDWARE, wait_seconds=20))
    with pytest.raises(httpx.ReadTimeout):
        http.post("/poll", content=body, headers=bearer(token), timeout=0.7)
    make_job()
    time.sleep(2.5)
    assert Job.objects.get().state == Job.State.QUEUED


def test_job_lifecycle_over_http(http: httpx.Client) -> None:
    """Register, poll, read the release, send a large file and a checkpoint, finish."""
    register = protocol.Register(name="socket", hardware=HARDWARE)
    answer = http.post(
        "/register", content=protocol.encode_message(register), headers=bearer(node_tokens.create_join_token())
    )
    registered = protocol.RegisterReply.model_validate_json(answer.content)
    make_job()
    action, _ = ask(http, registered.token, 5)
    assert action.lease is not None
    lease, headers = f"/leases/{action.lease.lease}", bearer(action.lease.token)
    spec = protocol.JobSpec.model_validate_json(action.lease.spec)
    assert http.get(f"{lease}/blobs/{spec.release.sha256}", headers=headers).content == b"a release"

    content = bytes(range(256)) * 20_000  # 5 MB: more than is ever held in one piece
    file = reference(content)
    put = http.put(f"{lease}/blobs/{file.sha256}", content=content, headers=headers)
    assert put.json() == {"received": file.size}
    uploaded = protocol.CheckpointUploaded(checkpoint=protocol.Checkpoint(step=1, files=(file,)))
    assert (
        http.post(f"{lease}/checkpoints", content=protocol.encode_message(uploaded), headers=headers).status_code == 200
    )
    finish = protocol.FinishLease(outcome="released")
    assert http.post(f"{lease}/finish", content=protocol.encode_message(finish), headers=headers).status_code == 200

    action, _ = ask(http, make_node("next")[1], 5)
    assert action.lease is not None
    lease, headers = f"/leases/{action.lease.lease}", bearer(action.lease.token)
    assert http.get(f"{lease}/blobs/{file.sha256}", headers=headers).content == content


# --- what a question costs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 50])
def test_poll_query_count_is_independent_of_queue_length(
    agent: Agent, django_assert_num_queries: DjangoAssertNumQueries, length: int
) -> None:
    """The token, with whether the node has a lease; expired leases; groups and shares; and the claim: BEGIN, the oldest
    job, its UPDATE, the lease, its spec, the Event, the kind's, COMMIT."""
    for number in range(length):
        make_job(author=f"author-{number % 5}")
    agent.ask(hardware=HARDWARE, abandoned=())  # the first of a node's questions also says that it is online
    Lease.objects.update(state=Lease.State.LOST)
    Job.objects.filter(state=Job.State.LEASED).update(state=Job.State.QUEUED)
    Node.objects.update(last_seen=timezone.now())
    with django_assert_num_queries(12):
        assert agent.ask().action == "job"


def test_waiting_poll_check_without_jobs_takes_two_queries(
    db: None, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    node, _ = make_node()
    session = PollSession(node, protocol.Poll(hardware=HARDWARE))
    assert session.check() is None
    with django_assert_num_queries(2):
        assert session.check_again() is None
