"""Start estimates: position, reason and time of queued jobs."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from scheduler import leases, transitions
from scheduler.estimates import QueueEstimates, StartEstimate, estimate_start
from scheduler.models import Job, Lease, Node
from tests.support.pool import HARDWARE, Agent, create_job, create_node
from trainer import protocol

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def create_online_node(name: str, *memory_gb: int, **owner_settings: Any) -> Agent:
    details = tuple(protocol.Gpu(name="GPU", memory_bytes=size * 10**9) for size in memory_gb)
    hardware = HARDWARE.model_copy(update={"gpus": tuple(gpu.name for gpu in details), "gpu_details": details})
    _, token = create_node(name, hardware=dict(hardware), state=Node.State.ONLINE, **owner_settings)
    return Agent(token)


def record_lease(name: str, hours: float, outcome: str) -> None:
    """Let the node work on the next job for these hours of its lease, and then end it."""
    granted = leases.claim_job(Node.objects.get(name=name))
    assert granted
    lease = Lease.objects.select_related("job", "node").get(pk=granted.lease)
    Lease.objects.filter(pk=lease.pk).update(seconds=hours * 3600)
    if outcome:
        leases.finish_lease(lease, protocol.FinishLease(outcome=outcome))  # type: ignore[arg-type]


def create_done_job(*parts: tuple[str, float, str], **fields: Any) -> None:
    """Create a job that was done in these leases: of a node, with hours and an outcome."""
    create_job(**fields)
    for name, hours, outcome in parts:
        record_lease(name, hours, outcome)


def is_near(time: datetime | None, hours: float, now: datetime) -> bool:
    return time is not None and abs(time - now - hours * HOUR) < timedelta(seconds=5)


def test_estimate_duration_follows_recent_jobs() -> None:
    create_online_node("one")
    for _ in range(3):
        create_done_job(
            ("one", 500 / 3600, "released"), ("one", 1500 / 3600, "done"), track="small", expected_seconds=1000
        )
    slow, other = create_job(track="small", expected_seconds=3600), create_job(track="other", expected_seconds=3600)
    queue_estimates = QueueEstimates(timezone.now())
    for job, hours in ((slow, 2), (other, 1)):
        estimate = queue_estimates.get_estimate(job)
        assert estimate.ends_at - estimate.begins_at == hours * HOUR  # type: ignore[operator]


def test_estimate_duration_follows_the_node_that_runs_it() -> None:
    """A job of an hour took a quarter of it on one node, and four hours on the other."""
    create_online_node("fast", 25)
    create_online_node("slow", 80)
    for name, hours in (("fast", 0.25), ("slow", 4)):
        create_done_job((name, hours, "done"), track="small", expected_seconds=3600)
    small, large = (create_job(track="small", expected_seconds=3600, needs_labels=[f"1x{gb}gb"]) for gb in (24, 80))
    now = timezone.now()
    queue_estimates = QueueEstimates(now)
    assert is_near(queue_estimates.get_estimate(small).ends_at, 0.25, now)
    assert is_near(queue_estimates.get_estimate(large).ends_at, 4, now)


def test_estimates_follow_the_job_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three jobs of 14 seconds wait behind one that has taken ten times as long as expected: one after the other."""
    create_online_node("slow")
    create_job(track="small", expected_seconds=110)
    record_lease("slow", 680 / 3600, "")
    monkeypatch.setattr("scheduler.job_kinds.estimate_seconds_left", lambda jobs: {job.pk: 420.0 for job in jobs})
    now = timezone.now()
    waiting = [create_job(track="small", expected_seconds=14) for _ in range(3)]
    queue_estimates = QueueEstimates(now)
    for number, job in enumerate(waiting):
        estimate = queue_estimates.get_estimate(job)
        assert is_near(estimate.begins_at, (420 + 140 * number) / 3600, now)
        assert is_near(estimate.ends_at, (560 + 140 * number) / 3600, now)


def test_job_without_an_estimate_has_a_reason() -> None:
    create_online_node("weekend")
    create_job(expected_seconds=3 * 3600)
    record_lease("weekend", 0, "")
    Node.objects.update(available="until", available_until=timezone.now() + HOUR)
    job = create_job()
    expected = "Waits for a node that fits: it is unknown when one is lent again."
    assert estimate_start(job, timezone.now()).reason == expected
    transitions.hold_job(job, "ada", "ada holds it back.")
    assert estimate_start(job, timezone.now()) == StartEstimate(None, "ada holds it back.")


def test_estimate_order_has_fair_shares_between_authors() -> None:
    create_online_node("one")
    ada_jobs = [create_job(author="ada", expected_seconds=3600) for _ in range(3)]
    bob_job = create_job(author="bob", expected_seconds=3600)
    nightly_job = create_job(author="", priority=Job.Priority.NIGHTLY)
    queue_estimates = QueueEstimates(timezone.now())
    order = (nightly_job, ada_jobs[0], bob_job, *ada_jobs[1:])
    assert [queue_estimates.get_estimate(job).position for job in order] == [1, 2, 3, 4, 5]


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
        create_online_node("free", *[24] * gpus)
        for fields in queue:
            create_job(queued_at=now - fields["age"] * HOUR, **{name: fields[name] for name in fields if name != "age"})
        queue_estimates = QueueEstimates(now)
        predicted = [
            pk for pk, estimate in queue_estimates.estimates.items() if estimate.begins_at and estimate.begins_at <= now
        ]
        granted = leases.claim_job(Node.objects.get(name="free"))
        claimed = [Lease.objects.get(pk=granted.lease).job_id] if granted else []
        assert predicted == claimed
        transaction.set_rollback(True)
