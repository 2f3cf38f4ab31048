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
from tests.support.pool import HARDWARE, ROOT, Agent, build_bearer_header, create_job, create_node, read_error_detail
from tests.support.waits import WAIT_SECONDS
from trainer import protocol

pytestmark = pytest.mark.processes


@pytest.fixture
def http(site_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=site_url + ROOT, timeout=WAIT_SECONDS) as client:
        yield client


def build_poll_body(**fields: object) -> bytes:
    return protocol.encode_message(protocol.Poll(hardware=HARDWARE, **fields)).encode()  # type: ignore[arg-type]


# --- errors of requests ----------------------------------------------------------------------------------------------


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
def test_unreadable_poll_gets_the_error_of_other_calls(http: httpx.Client, message: bytes) -> None:
    token = create_node()[1]
    response = http.post("/poll", content=message, headers=build_bearer_header(token))
    expected = Agent(token).call("/poll", message.decode())
    assert response.status_code == expected.status_code >= 400
    assert response.json() == expected.json()


@pytest.mark.parametrize("header", [{}, {"Authorization": "Basic abc"}, build_bearer_header("dtn_node_unknown")])
def test_poll_without_a_valid_token_gets_401(http: httpx.Client, header: dict[str, str]) -> None:
    response = http.post("/poll", content=build_poll_body(), headers=header)
    assert response.status_code == 401
    assert "token" in response.json()["detail"]


def test_poll_that_is_too_large_gets_413(http: httpx.Client) -> None:
    response = http.post("/poll", content=b" " * (5 * 2**20), headers=build_bearer_header(create_node()[1]))
    assert response.status_code == 413


def test_waiting_node_that_is_banned_gets_403_with_the_reason(http: httpx.Client) -> None:
    node, token = create_node()

    def ban() -> None:
        pool.ban_node(node, "ada", "It sent garbage.")
        connection.close()

    timer = threading.Timer(0.5, ban)
    timer.start()
    response = http.post("/poll", content=build_poll_body(wait_seconds=60), headers=build_bearer_header(token))
    timer.join()
    assert (response.status_code, "It sent garbage." in response.json()["detail"]) == (403, True)


def test_poll_through_django_is_not_held_open(agent: Agent) -> None:
    started = time.monotonic()
    action = agent.request_action(wait_seconds=60)
    assert (action.action, action.wait_seconds) == ("idle", 5)
    assert time.monotonic() - started < 50
    assert read_error_detail(Agent("dtn_node_unknown").poll())


@pytest.mark.slow
def test_waiting_polls_hold_no_threads(http: httpx.Client) -> None:
    tokens = [create_node(f"node-{number}")[1] for number in range(40)]

    async def hold_open() -> tuple[int, list[str]]:
        async with httpx.AsyncClient(base_url=http.base_url, timeout=WAIT_SECONDS, limits=httpx.Limits()) as client:
            tasks = [
                asyncio.create_task(
                    client.post("/poll", content=build_poll_body(wait_seconds=8), headers=build_bearer_header(token))
                )
                for token in tokens
            ]
            await asyncio.sleep(2)
            threads = threading.active_count()
            return threads, [(await response).json()["action"] for response in tasks]

    thread_count = threading.active_count()
    threads, responses = asyncio.run(hold_open())
    assert responses == ["idle"] * 40
    assert threads <= thread_count + THREADS + 1


# --- waiting polls ---------------------------------------------------------------------------------------------------


async def run_inline(function: Callable[..., Any], *args: Any) -> Any:
    return await sync_to_async(function)(*args)


class WaitingPolls:
    """Polls that have been checked once and wait; a test calls `check_all` itself."""

    def __init__(self, count: int) -> None:
        self.waiters = PollWaiters(run_inline)
        self.sessions = [
            PollSession(create_node(f"node-{number}")[0], protocol.Poll(hardware=HARDWARE)) for number in range(count)
        ]
        assert all(session.check() is None for session in self.sessions)

    def check_all(self, hang_up: bool = False) -> list[protocol.PollReply | None]:
        """Let all polls wait, check them once, then disconnect the nodes, and return the replies."""

        async def run() -> list[protocol.PollReply | None]:
            disconnected = asyncio.get_running_loop().create_future()
            waits = [asyncio.create_task(self.waiters.wait(session, 60, disconnected)) for session in self.sessions]
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
    create_job()
    first, *others = waiting.check_all()
    assert first is not None
    assert first.lease is not None
    assert others == [None] * 4
    assert Lease.objects.count() == 1


def test_check_only_claims_for_polls_with_a_fitting_job(
    db: None, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    waiting = WaitingPolls(6)
    create_job(needs_gpus=8)
    with django_assert_num_queries(2 + 6 * 2):  # with QUEUE_READ_SECONDS=0 each reads the queue, with two queries
        waiting.check_all()
    assert "8 GPUs" in waiting.sessions[0].build_no_job_reply().reason


def test_disconnected_poll_gets_no_job(db: None) -> None:
    waiting = WaitingPolls(1)
    create_job()
    assert waiting.check_all(hang_up=True) == [None]
    assert Job.objects.get().state == Job.State.QUEUED


def test_poll_whose_timeout_ends_during_a_claim_gets_the_lease(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = WaitingPolls(1)
    create_job()
    check_again, has_begun = PollSession.check_again, threading.Event()

    def check_slowly(session: PollSession) -> protocol.PollReply | None:
        has_begun.set()
        time.sleep(0.3)
        return check_again(session)

    async def wait_for_check(*_: object, **options: object) -> None:
        """Time out in the middle of the claim, as `asyncio.wait` may do."""
        while not has_begun.is_set():
            await asyncio.sleep(0.01)

    monkeypatch.setattr(PollSession, "check_again", check_slowly)
    monkeypatch.setattr(asyncio, "wait", wait_for_check)
    (reply,) = waiting.check_all()
    assert reply is not None
    assert reply.lease is not None


def test_job_cancelled_at_once_leaves_all_polls_waiting(db: None) -> None:
    waiting = WaitingPolls(2)
    transitions.cancel_job(create_job(), "ada", "A mistake.")
    assert waiting.check_all() == [None, None]


def test_changed_nodes_are_found_in_one_query(db: None, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    nodes = [create_node(f"node-{number}")[0] for number in range(4)]
    pool.pause_node(type(nodes[0]).objects.get(pk=nodes[1].pk), "ada", "Lunch.")
    type(nodes[0]).objects.filter(pk=nodes[3].pk).delete()
    with django_assert_num_queries(1):
        assert poll_waiters.find_changed_nodes(nodes) == {nodes[1].pk, nodes[3].pk}


# --- errors ----------------------------------------------------------------------------------------------------------


def test_database_error_is_answered_as_json(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OperationalError("the database is down")

    monkeypatch.setattr(PollSession, "check", fail)
    reply = http.post("/poll", content=build_poll_body(), headers=build_bearer_header(create_node()[1]))
    assert (reply.status_code, reply.json()["detail"]) == (503, "The site's database does not answer. Try again later.")
