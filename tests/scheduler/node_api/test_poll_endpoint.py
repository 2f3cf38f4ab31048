"""The poll endpoint: errors, waiting polls and threads."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import OperationalError, connection
from pytest_django import DjangoAssertNumQueries

from scheduler import pool, transitions
from scheduler.models import Job, Lease
from scheduler.node_api import poll_waiters
from scheduler.node_api.poll_endpoint import THREADS
from scheduler.node_api.poll_waiters import PollWaiters
from scheduler.node_api.polls import PollSession
from tests.support.pool import HARDWARE, ROOT, Agent, bearer, make_job, make_node, sentence
from trainer import protocol


@pytest.fixture
def http(site_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=site_url + ROOT, timeout=30) as client:
        yield client


def body(**fields: object) -> bytes:
    return protocol.encode_message(protocol.Poll(hardware=HARDWARE, **fields)).encode()  # type: ignore[arg-type]


# --- errors of requests ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        b"no JSON",
        b"[]",
        json.dumps({"version": 2}).encode(),
        json.dumps({"hardware": {}}).encode(),
        json.dumps({"version": 1, "hardware": HARDWARE.model_dump(mode="json"), "colour": "red"}).encode(),
    ],
)
def test_unreadable_poll_gets_the_error_of_other_calls(http: httpx.Client, sent: bytes) -> None:
    token = make_node()[1]
    answer = http.post("/poll", content=sent, headers=bearer(token))
    usual = Agent(token).call("/poll", sent.decode())
    assert answer.status_code == usual.status_code >= 400
    assert answer.json() == usual.json()


@pytest.mark.parametrize("header", [{}, {"Authorization": "Basic abc"}, bearer("dtn_node_nobody")])
def test_poll_without_a_valid_token_gets_401(http: httpx.Client, header: dict[str, str]) -> None:
    answer = http.post("/poll", content=body(), headers=header)
    assert answer.status_code == 401
    assert "token" in answer.json()["detail"]


def test_poll_that_is_too_large_gets_413(http: httpx.Client) -> None:
    answer = http.post("/poll", content=b" " * (5 * 2**20), headers=bearer(make_node()[1]))
    assert answer.status_code == 413


def test_waiting_node_that_is_banned_gets_403_with_the_reason(http: httpx.Client) -> None:
    node, token = make_node()

    def ban() -> None:
        pool.ban_node(node, "ada", "It sent garbage.")
        connection.close()

    timer = threading.Timer(0.5, ban)
    timer.start()
    answer = http.post("/poll", content=body(wait_seconds=20), headers=bearer(token))
    timer.join()
    assert (answer.status_code, "It sent garbage." in answer.json()["detail"]) == (403, True)


def test_poll_through_django_is_not_held_open(agent: Agent) -> None:
    began = time.monotonic()
    action = agent.ask(wait_seconds=20)
    assert (action.action, action.wait_seconds) == ("idle", 5)
    assert time.monotonic() - began < 15
    assert sentence(Agent("dtn_node_nobody").poll())


def test_waiting_polls_hold_no_threads(http: httpx.Client) -> None:
    tokens = [make_node(f"node-{number}")[1] for number in range(40)]

    async def hold_open() -> tuple[int, list[str]]:
        async with httpx.AsyncClient(base_url=http.base_url, timeout=60, limits=httpx.Limits()) as client:
            asking = [
                asyncio.create_task(client.post("/poll", content=body(wait_seconds=8), headers=bearer(token)))
                for token in tokens
            ]
            await asyncio.sleep(2)
            threads = threading.active_count()
            return threads, [(await answer).json()["action"] for answer in asking]

    before = threading.active_count()
    threads, answers = asyncio.run(hold_open())
    assert answers == ["idle"] * 40
    assert threads <= before + THREADS + 1


# --- waiting polls ---------------------------------------------------------------------------------------------------


async def run_inline(function: Callable[..., Any], *args: Any) -> Any:
    return await sync_to_async(function)(*args)


class WaitingPolls:
    """Polls that have been checked once and wait; a test calls `check_all` itself."""

    def __init__(self, count: int) -> None:
        self.waiters = PollWaiters(run_inline)
        self.sessions = [
            PollSession(make_node(f"node-{number}")[0], protocol.Poll(hardware=HARDWARE)) for number in range(count)
        ]
        assert all(session.check() is None for session in self.sessions)

    def check_all(self, timeout: float = 60, hang_up: bool = False) -> list[protocol.PollReply | None]:
        """Let all polls wait, check them once, then disconnect the nodes, and return the replies."""

        async def run() -> list[protocol.PollReply | None]:
            disconnected = asyncio.get_running_loop().create_future()
            waits = [asyncio.create_task(self.waiters.wait(one, timeout, disconnected)) for one in self.sessions]
            await asyncio.sleep(0)
            assert len(self.waiters) == len(self.sessions)
            if hang_up:
                disconnected.set_result(None)
                await asyncio.gather(*waits)
            await self.waiters.check_all()
            if not hang_up:
                disconnected.set_result(None)
            return list(await asyncio.gather(*waits))

        return async_to_sync(run)()


@pytest.mark.parametrize("count", [1, 12])
def test_check_costs_two_queries_however_many_polls_wait(
    db: None, count: int, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    waiting = WaitingPolls(count)
    with django_assert_num_queries(2):
        assert waiting.check_all() == [None] * count


def test_first_of_many_waiting_polls_gets_the_job(db: None) -> None:
    waiting = WaitingPolls(5)
    make_job()
    first, *others = waiting.check_all()
    assert first is not None
    assert first.lease is not None
    assert others == [None] * 4
    assert Lease.objects.count() == 1


def test_check_only_claims_for_polls_with_a_fitting_job(
    db: None, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    waiting = WaitingPolls(6)
    make_job(needs_gpus=8)
    with django_assert_num_queries(2 + 6 * 2):  # with QUEUE_READ_SECONDS=0 each reads the queue, with two queries
        waiting.check_all()
    assert "8 GPUs" in waiting.sessions[0].build_no_job_reply().reason


def test_disconnected_poll_gets_no_job(db: None) -> None:
    waiting = WaitingPolls(1)
    make_job()
    assert waiting.check_all(hang_up=True) == [None]
    assert Job.objects.get().state == Job.State.QUEUED


def test_poll_whose_timeout_ends_during_a_claim_gets_the_lease(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = WaitingPolls(1)
    make_job()
    check_again = PollSession.check_again

    def check_slowly(session: PollSession) -> protocol.PollReply | None:
        time.sleep(0.3)
        return check_again(session)

    monkeypatch.setattr(PollSession, "check_again", check_slowly)
    (reply,) = waiting.check_all(timeout=0.1)
    assert reply is not None
    assert reply.lease is not None


def test_job_cancelled_at_once_leaves_all_polls_waiting(db: None) -> None:
    waiting = WaitingPolls(2)
    transitions.cancel_job(make_job(), "ada", "A mistake.")
    assert waiting.check_all() == [None, None]


def test_changed_nodes_are_found_in_one_query(db: None, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    nodes = [make_node(f"node-{number}")[0] for number in range(4)]
    pool.pause_node(type(nodes[0]).objects.get(pk=nodes[1].pk), "ada", "Lunch.")
    type(nodes[0]).objects.filter(pk=nodes[3].pk).delete()
    with django_assert_num_queries(1):
        assert poll_waiters.find_changed_nodes(nodes) == {nodes[1].pk, nodes[3].pk}


# --- errors ----------------------------------------------------------------------------------------------------------


def test_database_error_is_answered_as_json(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OperationalError("the database is down")

    monkeypatch.setattr(PollSession, "check", fail)
    reply = http.post("/poll", content=body(), headers=bearer(make_node()[1]))
    assert (reply.status_code, reply.json()["detail"]) == (500, "The site failed to answer this call. Try again later.")
