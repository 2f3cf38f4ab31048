"""Position, reason and time: what somebody who waits is told."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pytest_django import DjangoAssertNumQueries

from scheduler import leases
from scheduler.estimates import QueueEstimates, StartEstimate, estimate_start
from scheduler.models import Job, Lease, Node
from tests.support.pool import HARDWARE, Agent, make_job, make_node
from trainer import protocol

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def online(name: str, *memory_gb: int, **wishes: Any) -> Agent:
    details = tuple(protocol.Gpu(name="GPU", memory_bytes=size * 10**9) for size in memory_gb)
    hardware = HARDWARE.model_copy(update={"gpus": tuple(gpu.name for gpu in details), "gpu_details": details})
    _, token = make_node(name, hardware=dict(hardware), state=Node.State.ONLINE, **wishes)
    return Agent(token)


def works(name: str, hours: float, done: float = 0, **needs: Any) -> None:
    """A node is at work on a job of so many hours, so many of them done."""
    job = make_job(state=Job.State.LEASED, expected_seconds=hours * 3600, **needs)
    Lease.objects.create(
        job=job,
        node=Node.objects.get(name=name),
        attempt=1,
        token_hash=f"{job.pk}",
        expires_at=timezone.now() + HOUR,
        seconds=done * 3600,
    )


def about(at: datetime | None, hours: float, now: datetime) -> bool:
    return at is not None and abs(at - now - hours * HOUR) < timedelta(seconds=5)


def test_estimate_second_job_starts_after_first() -> None:
    online("one")
    first, second = make_job(expected_seconds=7200), make_job(expected_seconds=7200)
    now = timezone.now()
    queue_estimates = QueueEstimates(now)
    assert queue_estimates.get_estimate(first) == StartEstimate(1, "The next free node gets it.", now, now + 2 * HOUR)
    assert queue_estimates.get_estimate(second) == StartEstimate(
        2, "Waits for a node that fits; other jobs go first.", now + 2 * HOUR, now + 4 * HOUR
    )


def test_estimate_reason_names_needs_and_next_free_time() -> None:
    online("small")
    online("first", 25)
    online("second", 25)
    works("first", 3, done=1)
    works("second", 8)
    job = make_job(needs_labels=["1x24gb"], expected_seconds=3600)
    now = timezone.now().replace(hour=1, minute=40, second=0, microsecond=0)
    prospect = estimate_start(job, now)
    assert (
        prospect.format_reason(now) == "Waits for a node with a GPU of 24 GB; 2 are in use, next free about 03:40 UTC."
    )
    assert about(prospect.begins_at, 2, now)
    assert about(prospect.ends_at, 3, now)


def test_estimate_duration_follows_recent_jobs() -> None:
    online("one")
    for _ in range(3):
        done = make_job(state=Job.State.DONE, track="small", expected_seconds=1000, finished_at=timezone.now())
        for part in (500, 1500):
            Lease.objects.create(
                job=done, node=Node.objects.get(), attempt=1, state=Lease.State.FINISHED, seconds=part,
                token_hash=f"{done.pk}-{part}", expires_at=timezone.now(),
            )  # fmt: skip
    now = timezone.now()
    slow, other = make_job(track="small", expected_seconds=3600), make_job(track="other", expected_seconds=3600)
    queue_estimates = QueueEstimates(now)
    lengths = [
        queue_estimates.get_estimate(job).ends_at - queue_estimates.get_estimate(job).begins_at for job in (slow, other)
    ]  # type: ignore[operator]
    assert lengths == [2 * HOUR, HOUR]


def test_estimate_without_fitting_node_says_so() -> None:
    online("small")
    job = make_job(needs_labels=["8x80gb"])
    assert estimate_start(job, timezone.now()) == StartEstimate(
        1, "Waits for a node with 8 GPUs of 80 GB: none is online. It starts as soon as one is."
    )


def test_estimate_respects_owner_settings() -> None:
    online("core", serves="core")
    now = timezone.now()
    assert estimate_start(make_job(), now).begins_at is None
    assert estimate_start(make_job(from_core=True), now).begins_at == now


def test_estimate_ignores_node_whose_lending_ends() -> None:
    online("weekend", available="until", available_until=timezone.now() + HOUR)
    works("weekend", 3)
    assert (
        estimate_start(make_job(), timezone.now()).reason
        == "Waits for a node that fits: it is unknown when one is lent again."
    )


def test_estimate_order_has_fair_shares_between_authors() -> None:
    online("one")
    mine = [make_job(author="ada", expected_seconds=3600) for _ in range(3)]
    hers = make_job(author="bob", expected_seconds=3600)
    tonight = make_job(author="", priority=Job.Priority.NIGHTLY)
    queue_estimates = QueueEstimates(timezone.now())
    assert [queue_estimates.get_estimate(job).position for job in (tonight, mine[0], hers, mine[1], mine[2])] == [
        1,
        2,
        3,
        4,
        5,
    ]


def test_estimate_of_unqueued_job_has_its_reason() -> None:
    held = make_job(state=Job.State.HELD, reason="ada holds it back.")
    assert estimate_start(held, timezone.now()) == StartEstimate(None, "ada holds it back.")


needs = st.fixed_dictionaries(
    {
        "author": st.sampled_from(["ada", "bob", "cem"]),
        "needs_gpus": st.integers(0, 3),
        "priority": st.sampled_from([30, 40]),
        "impact": st.integers(0, 1),
        "expected_seconds": st.sampled_from([600.0, 3600.0, 40000.0]),
        "age": st.integers(0, 50),
    }
)


@example(
    gpus=0,
    queue=[
        {"author": "ada", "needs_gpus": 0, "priority": 30, "impact": 0, "expected_seconds": 600.0, "age": 0},
        {"author": "ada", "needs_gpus": 0, "priority": 30, "impact": 0, "expected_seconds": 600.0, "age": 0},
        {"author": "bob", "needs_gpus": 0, "priority": 30, "impact": 1, "expected_seconds": 3600.0, "age": 0},
        {"author": "ada", "needs_gpus": 0, "priority": 30, "impact": 1, "expected_seconds": 3600.0, "age": 0},
    ],
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(gpus=st.integers(0, 4), queue=st.lists(needs, max_size=8))
def test_estimate_first_job_is_claimed_first(db: None, gpus: int, queue: list[dict[str, Any]]) -> None:
    with transaction.atomic():
        now = timezone.now()
        online("free", *[24] * gpus)
        for fields in queue:
            make_job(queued_at=now - fields["age"] * HOUR, **{name: fields[name] for name in fields if name != "age"})
        queue_estimates = QueueEstimates(now)
        foretold = [pk for pk, found in queue_estimates.estimates.items() if found.begins_at and found.begins_at <= now]
        granted = leases.claim_job(Node.objects.get(name="free"))
        taken = [Lease.objects.get(pk=granted.lease).job_id] if granted else []
        assert foretold == taken
        transaction.set_rollback(True)


def test_estimate_assigns_large_node_to_large_job() -> None:
    online("large", *[24] * 4)
    single, whole = make_job(needs_gpus=1, expected_seconds=3600), make_job(needs_gpus=4, expected_seconds=7200)
    now = timezone.now()
    queue_estimates = QueueEstimates(now)
    assert queue_estimates.get_estimate(whole).begins_at == now
    assert queue_estimates.get_estimate(single).begins_at == now + 2 * HOUR


@pytest.mark.parametrize("size", [1, 30])
def test_queue_estimates_take_six_queries(size: int, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    for number in range(size):
        online(f"node-{number}", 24)
        make_job(author=f"author-{number}", track=f"track-{number}", needs_labels=["1x24gb"])
    rows = list(Job.objects.all())
    with django_assert_num_queries(6):
        queue_estimates = QueueEstimates(timezone.now())
        assert all(queue_estimates.get_estimate(job).position for job in rows)
