"""Concurrent claims on separate database connections: no job is leased twice."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
from django.db import connection

from scheduler import lease_sweeper, leases
from scheduler.errors import LeaseEndedError
from scheduler.models import Event, Job, Lease, Node
from tests.support.pool import create_job, create_node
from tests.support.waits import WAIT_SECONDS
from trainer import protocol

Result = TypeVar("Result")
pytestmark = [pytest.mark.sql, pytest.mark.django_db(transaction=True)]


def call_concurrently(functions: list[Callable[[], Result]]) -> list[Result]:
    """Call each function in its own thread, all released at the same moment."""
    start = threading.Barrier(len(functions))

    def call_after_barrier(function: Callable[[], Result]) -> Result:
        try:
            connection.ensure_connection()
            start.wait(WAIT_SECONDS)
            return function()
        finally:
            connection.close()

    with ThreadPoolExecutor(len(functions)) as pool:
        return list(pool.map(call_after_barrier, functions))


def create_nodes(count: int) -> list[Node]:
    return [create_node(f"node-{number:02}")[0] for number in range(count)]


def build_claims(claimants: list[Node]) -> list[Callable[[], protocol.Lease | None]]:
    return [lambda node=node: leases.claim_job(node) for node in claimants]  # type: ignore[misc]


def skip_without_postgres() -> None:
    if connection.vendor != "postgresql":
        pytest.skip("needs PostgreSQL: set DATABASE_URL")


@pytest.mark.postgres
@pytest.mark.parametrize(("jobs", "authors"), [(1, 1), (10, 1), (40, 7), (80, 3)])
def test_fifty_concurrent_nodes_never_share_a_job(jobs: int, authors: int) -> None:
    skip_without_postgres()
    for number in range(jobs):
        create_job(author=f"author-{number % authors}")
    granted = [lease for lease in call_concurrently(build_claims(create_nodes(50))) if lease]
    lease_counts = Counter(protocol.JobSpec.model_validate_json(lease.spec).job for lease in granted)
    assert granted, "no claim succeeded"
    assert max(lease_counts.values()) == 1
    assert Job.objects.filter(state=Job.State.LEASED).count() == len(granted) == Lease.objects.count()
    assert Event.objects.filter(sentence__startswith="Taken by").count() == len(granted)
    assert all(job.attempts == (1 if job.pk in lease_counts else 0) for job in Job.objects.all())
    # A node whose claims were all contested gets a job at its next claim.
    busy = {protocol.JobSpec.model_validate_json(lease.spec).node for lease in granted}
    for node in Node.objects.exclude(pk__in=busy):
        leases.claim_job(node)
    assert Lease.objects.count() == min(50, jobs)
    assert Job.objects.filter(leases__state=Lease.State.ACTIVE).distinct().count() == min(50, jobs)


def test_concurrent_polls_of_one_node_get_one_job() -> None:
    for _ in range(4):
        create_job()
    node, _ = create_node()
    granted = [lease for lease in call_concurrently(build_claims([node] * 4)) if lease]
    assert len(granted) == 1
    assert Job.objects.filter(state=Job.State.LEASED).count() == 1


def test_concurrent_finish_and_sweep_end_lease_once() -> None:
    job = create_job()
    for number in range(4):
        node, _ = create_node(f"loco-{number}")
        assert leases.claim_job(node)
        Lease.objects.filter(state=Lease.State.ACTIVE).update(expires_at="2020-01-01T00:00:00Z")
        lease = Lease.objects.select_related("job", "node").get(state=Lease.State.ACTIVE)

        def finish(lease: Lease = lease) -> object:
            try:
                return leases.finish_lease(lease, protocol.FinishLease(outcome="released"))
            except LeaseEndedError:
                return "over"

        call_concurrently([finish, lease_sweeper.sweep_leases, lease_sweeper.sweep_leases, lease_sweeper.sweep_leases])
        job.refresh_from_db()
        assert job.state == Job.State.QUEUED
        assert Event.objects.about(job).filter(sentence__startswith="Back in the queue").count() == lease.attempt


@pytest.mark.postgres
def test_concurrent_claims_sweeps_and_finishes_are_consistent() -> None:
    """Claims, finishes and sweeps run together for several rounds: each job has at most one active lease."""
    skip_without_postgres()
    for number in range(30):
        create_job(author=f"author-{number % 5}", max_attempts=1000)
    nodes = create_nodes(50)

    def claim_and_finish(node: Node) -> None:
        for outcome in ("released", "failed", "done"):
            granted = leases.claim_job(node)
            if granted is None:
                lease_sweeper.sweep_leases()
                continue
            lease = Lease.objects.select_related("job", "node").get(pk=granted.lease)
            leases.renew_lease(lease, protocol.Heartbeat(phase="running", seconds=1))
            leases.finish_lease(lease, protocol.FinishLease(outcome=outcome))  # type: ignore[arg-type]

    call_concurrently([lambda node=node: claim_and_finish(node) for node in nodes])  # type: ignore[misc]
    assert not Lease.objects.filter(state=Lease.State.ACTIVE).exists()
    assert not Job.objects.filter(state=Job.State.LEASED).exists()
    for job in Job.objects.all():
        done = job.leases.filter(outcome="done").count()
        assert done == (1 if job.state == Job.State.DONE else 0)
        assert job.attempts == job.leases.count()
