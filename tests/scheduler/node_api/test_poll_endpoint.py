"""The door of questions: what is in order is answered there, all else where the other calls are, in the same words."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future

import httpx
import pytest
from django.db import connection
from pytest_django import DjangoAssertNumQueries

from scheduler import pool, transitions
from scheduler.models import Job, Lease
from scheduler.node_api import poll_waiters
from scheduler.node_api.poll_threads import AT_ONCE, Clerks, settle
from scheduler.node_api.poll_waiters import Lobby
from scheduler.node_api.polls import Question
from tests.support.pool import HARDWARE, ROOT, Agent, bearer, make_job, make_node, sentence
from trainer import protocol


@pytest.fixture
def http(site_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=site_url + ROOT, timeout=30) as client:
        yield client


def body(**fields: object) -> bytes:
    return protocol.encode_message(protocol.Poll(hardware=HARDWARE, **fields)).encode()  # type: ignore[arg-type]


# --- both doors say the same -----------------------------------------------------------------------------------------


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
def test_what_cannot_be_read_is_refused_in_the_same_words(http: httpx.Client, sent: bytes) -> None:
    token = make_node()[1]
    answer = http.post("/poll", content=sent, headers=bearer(token))
    usual = Agent(token).call("/poll", sent.decode())
    assert answer.status_code == usual.status_code >= 400
    assert answer.json() == usual.json()


@pytest.mark.parametrize("header", [{}, {"Authorization": "Basic abc"}, bearer("dtn_node_nobody")])
def test_who_has_no_token_is_told_so(http: httpx.Client, header: dict[str, str]) -> None:
    answer = http.post("/poll", content=body(), headers=header)
    assert answer.status_code == 401
    assert "token" in answer.json()["detail"]


def test_a_question_that_is_too_long_is_refused(http: httpx.Client) -> None:
    answer = http.post("/poll", content=b" " * (5 * 2**20), headers=bearer(make_node()[1]))
    assert answer.status_code == 413


def test_a_node_that_is_banned_while_it_waits_hears_why(http: httpx.Client) -> None:
    node, token = make_node()

    def ban() -> None:
        pool.ban_node(node, "ada", "It sent garbage.")
        connection.close()

    timer = threading.Timer(0.5, ban)
    timer.start()
    answer = http.post("/poll", content=body(wait_seconds=20), headers=bearer(token))
    timer.join()
    assert (answer.status_code, "It sent garbage." in answer.json()["detail"]) == (403, True)


def test_at_the_usual_door_nothing_is_held_open(agent: Agent) -> None:
    began = time.monotonic()
    action = agent.ask(wait_seconds=20)
    assert (action.action, action.wait_seconds) == ("idle", 5)
    assert time.monotonic() - began < 15
    assert sentence(Agent("dtn_node_nobody").poll())


def test_questions_that_are_held_open_take_no_threads(http: httpx.Client) -> None:
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
    assert threads <= before + AT_ONCE + 2, "those that look, the one that looks on"


# --- who waits -------------------------------------------------------------------------------------------------------


def waiting(count: int) -> Lobby:
    """Return a lobby where so many nodes wait that have looked already; nobody looks on but the test."""
    quiet = Lobby()
    quiet._watch = threading.current_thread()
    for number in range(count):
        question = Question(make_node(f"node-{number}")[0], protocol.Poll(hardware=HARDWARE))
        assert question.first() is None
        quiet.hold(question)
    return quiet


@pytest.mark.parametrize("count", [1, 12])
def test_a_round_costs_two_queries_however_many_wait(
    db: None, count: int, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    quiet = waiting(count)
    with django_assert_num_queries(2):
        quiet.look_round()
    assert len(quiet._waiting()) == count


def test_of_many_who_wait_the_first_gets_the_job_and_the_others_go_on_waiting(db: None) -> None:
    quiet = waiting(5)
    first = next(iter(quiet._places))
    make_job()
    quiet.look_round()
    action = first.result(timeout=0)
    assert action is not None
    assert action.lease is not None
    assert len(quiet._waiting()) == 4
    assert Lease.objects.count() == 1


def test_only_those_are_let_in_for_whom_there_is_something(
    db: None, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    quiet = waiting(6)
    make_job(needs_gpus=8)
    with django_assert_num_queries(2 + 6 * 2):  # with QUEUE_READ_SECONDS=0 each has a look of its own, of two queries
        quiet.look_round()
    (question, *_) = quiet._places.values()
    assert "8 GPUs" in question.nothing().reason


def test_who_has_gone_is_given_nothing(db: None) -> None:
    quiet = waiting(1)
    (place,) = quiet._places
    assert place.cancel()
    make_job()
    quiet.look_round()
    assert Job.objects.get().state == Job.State.QUEUED


def test_a_job_that_is_cancelled_at_once_leaves_everybody_waiting(db: None) -> None:
    quiet = waiting(2)
    transitions.cancel_job(make_job(), "ada", "A mistake.")
    quiet.look_round()
    assert len(quiet._waiting()) == 2


def test_rows_that_have_changed_are_found_in_one_query_for_many(
    db: None, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    nodes = [make_node(f"node-{number}")[0] for number in range(4)]
    pool.pause_node(type(nodes[0]).objects.get(pk=nodes[1].pk), "ada", "Lunch.")
    gone = nodes[3].pk
    type(nodes[0]).objects.filter(pk=gone).delete()
    with django_assert_num_queries(1):
        assert [node.name for node in poll_waiters.those_changed(nodes)] == ["node-1", "node-3"]


# --- the threads -----------------------------------------------------------------------------------------------------


def test_no_more_are_looked_at_than_there_are_threads() -> None:
    clerks, at_once, most = Clerks(2), 0, 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.02)
        with lock:
            at_once -= 1

    async def many() -> None:
        await asyncio.gather(*(clerks.do(work) for _ in range(10)))

    asyncio.run(many())
    clerks.rest()
    assert most == 2


def test_what_goes_wrong_is_raised_where_it_is_waited_for_and_the_threads_go_on() -> None:
    clerks = Clerks(1)

    def fail() -> None:
        raise LookupError("no such thing")

    async def both() -> str:
        with pytest.raises(LookupError):
            await clerks.do(fail)
        return await clerks.do(lambda: "well")

    assert asyncio.run(both()) == "well"
    clerks.rest()
    assert asyncio.run(clerks.do(lambda: "again")) == "again"
    clerks.rest()


def test_work_that_nobody_waits_for_is_not_begun() -> None:
    place: Future[None] = Future()
    assert place.cancel()
    settle(place, lambda: pytest.fail("it was begun"))
