"""Polls of the node API: replies at once, what they write, and their number of queries."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from scheduler import pool, transitions
from scheduler.models import Job, Node, Sweep
from scheduler.node_api import polls
from tests.support.pool import HARDWARE, Agent, create_job, create_node, read_error_detail
from trainer import protocol

pytestmark = [pytest.mark.sql, pytest.mark.django_db]

CHANGED_HARDWARE = HARDWARE.model_copy(update={"disk_free_bytes": HARDWARE.disk_free_bytes - 1})


@pytest.fixture(autouse=True)
def sweep(db: None) -> None:
    """A sweep that has just been, so that no poll sweeps."""
    Sweep.objects.create(pk=1, at=timezone.now())


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
    agent.request_action(hardware=HARDWARE.model_copy(update={"installation": "a restarted agent"}))
    installation = Node.objects.get().hardware["installation"]
    assert installation == "a restarted agent", "at once: the result of its self-test is kept for it"


def test_claim_skips_group_emptied_by_others(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    first = create_job(author="ada", priority=Job.Priority.NIGHTLY)
    create_job(author="bob")
    load_queue = polls.job_groups.load_queue

    def load_and_cancel(now: object) -> object:
        queue = load_queue(now)  # type: ignore[arg-type]
        assert transitions.cancel_job(first, "ada", "Not wanted.")
        return queue

    monkeypatch.setattr(polls.job_groups, "load_queue", load_and_cancel)
    assert agent.claim_job().job.author == "bob"


@pytest.mark.parametrize(
    ("message", "status", "text"),
    [
        ("no JSON", 400, ""),
        ("[]", 422, ""),
        ('{"hardware": {}}', 422, ""),
        ('{"version": 2, "hardware": {"something": "new"}, "and": "more"}', 426, "Update"),
        (
            protocol.encode_message(protocol.Poll(hardware=HARDWARE))[:-1] + ', "mood": "good"}',
            422,
            "field mood. Is the agent newer",
        ),
    ],
)
def test_unreadable_poll_gets_an_error_with_a_detail(agent: Agent, message: str, status: int, text: str) -> None:
    response = agent.call("/poll", message)
    assert response.status_code == status
    assert text in read_error_detail(response)
