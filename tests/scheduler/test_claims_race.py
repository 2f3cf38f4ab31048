"""Many nodes ask at the same moment, each over its own connection: no job is ever held twice."""

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
from tests.support.pool import make_job, make_node
from trainer import protocol

Answer = TypeVar("Answer")
pytestmark = pytest.mark.django_db(transaction=True)


def all_at_once(asks: list[Callable[[], Answer]]) -> list[Answer]:
    """Call each in a thread of its own, all released at the same moment."""
    start = threading.Barrier(len(asks))

    def one(ask: Callable[[], Answer]) -> Answer:
        try:
            connection.ensure_connection()
            start.wait(60)
            return ask()
        finally:
            connection.close()

    with ThreadPoolExecutor(len(asks)) as pool:
        return list(pool.map(one, asks))


def nodes(count: int) -> list[Node]:
    return [make_node(f"node-{number:02}")[0] for number in range(count)]


def claims(askers: list[Node]) -> list[Callable[[], protocol.Lease | None]]:
    return [lambda node=node: leases.claim_job(node) for node in askers]  # type: ignore[misc]


def check_no_job_is_held_twice(askers: int, jobs: int, authors: int) -> None:
    for number in range(jobs):
        make_job(author=f"author-{number % authors}")
    granted = [lease for lease in all_at_once(claims(nodes(askers))) if lease]
    held = Counter(protocol.JobSpec.model_validate_json(lease.spec).job for lease in granted)
    assert granted, "somebody gets something"
    assert max(held.values()) == 1
    assert len(granted) <= min(askers, jobs)
    assert Job.objects.filter(state=Job.State.LEASED).count() == len(granted) == Lease.objects.count()
    assert Event.objects.filter(sentence__startswith="Taken by").count() == len(granted)
    assert all(job.attempts == (1 if job.pk in held else 0) for job in Job.objects.all())
    # Whoever left empty-handed because all tries were contested asks again and is served.
    busy = {protocol.JobSpec.model_validate_json(lease.spec).node for lease in granted}
    for node in Node.objects.exclude(pk__in=busy):
        leases.claim_job(node)
    assert Lease.objects.count() == min(askers, jobs)
    assert Job.objects.filter(leases__state=Lease.State.ACTIVE).distinct().count() == min(askers, jobs)


def need_postgres() -> None:
    if connection.vendor != "postgresql":
        pytest.skip("needs PostgreSQL: set DATABASE_URL")


@pytest.mark.postgres
@pytest.mark.parametrize(("jobs", "authors"), [(1, 1), (10, 1), (50, 1), (40, 7), (80, 3)])
def test_fifty_concurrent_nodes_never_share_a_job(jobs: int, authors: int) -> None:
    need_postgres()
    check_no_job_is_held_twice(50, jobs, authors)


@pytest.mark.parametrize("jobs", [1, 3, 8])
def test_few_concurrent_nodes_never_share_a_job(jobs: int) -> None:
    check_no_job_is_held_twice(6, jobs, authors=2)


def test_concurrent_polls_of_one_node_get_one_job() -> None:
    for _ in range(4):
        make_job()
    node, _ = make_node()
    granted = [lease for lease in all_at_once(claims([node] * 4)) if lease]
    assert len(granted) == 1
    assert Job.objects.filter(state=Job.State.LEASED).count() == 1


def test_concurrent_finish_and_sweep_end_lease_once() -> None:
    job = make_job()
    node, _ = make_node()
    for _ in range(4):
        assert leases.claim_job(node)
        Lease.objects.filter(state=Lease.State.ACTIVE).update(expires_at="2020-01-01T00:00:00Z")
        lease = Lease.objects.select_related("job", "node").get(state=Lease.State.ACTIVE)

        def finish(lease: Lease = lease) -> object:
            try:
                return leases.finish_lease(lease, protocol.FinishLease(outcome="released"))
            except LeaseEndedError:
                return "over"

        all_at_once([finish, lease_sweeper.sweep_leases, lease_sweeper.sweep_leases, lease_sweeper.sweep_leases])
        job.refresh_from_db()
        assert job.state == Job.State.QUEUED
        assert Event.objects.about(job).filter(sentence__startswith="Back in the queue").count() == lease.attempt


@pytest.mark.postgres
def test_concurrent_claims_sweeps_and_finishes_are_consistent() -> None:
    """Claims, ends and sweeps mixed, for several rounds: every job has one active lease or none."""
    need_postgres()
    for number in range(30):
        make_job(author=f"author-{number % 5}", max_attempts=1000)
    everyone = nodes(50)

    def round_trip(node: Node) -> None:
        for outcome in ("released", "failed", "done"):
            granted = leases.claim_job(node)
            if granted is None:
                lease_sweeper.sweep_leases()
                continue
            lease = Lease.objects.select_related("job", "node").get(pk=granted.lease)
            leases.renew_lease(lease, protocol.Heartbeat(phase="running", seconds=1))
            leases.finish_lease(lease, protocol.FinishLease(outcome=outcome))  # type: ignore[arg-type]

    all_at_once([lambda node=node: round_trip(node) for node in everyone])  # type: ignore[misc]
    assert not Lease.objects.filter(state=Lease.State.ACTIVE).exists()
    assert not Job.objects.filter(state=Job.State.LEASED).exists()
    for job in Job.objects.all():
        done = job.leases.filter(outcome="done").count()
        assert done == (1 if job.state == Job.State.DONE else 0)
        assert job.attempts == job.leases.count()
