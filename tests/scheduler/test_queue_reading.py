"""The queue cache: constant queries, shared reads, and the same order as a full read."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st
from pytest_django import Settings

from scheduler import job_groups as lines
from scheduler import leases, matching, storage
from scheduler.models import Job, Node, Sweep
from scheduler.node_api import polls
from tests.support.pool import HARDWARE, create_job, create_node
from trainer import protocol

pytestmark = [pytest.mark.sql, pytest.mark.django_db]
NODE = matching.NodeSlot(labels=frozenset(), trusted=True, sandboxed=True, disk_free_bytes=10**12)


def count_poll_queries(node: Node) -> int:
    Sweep.objects.update_or_create(pk=1, defaults={"at": timezone.now()})  # otherwise the first poll sweeps
    with CaptureQueriesContext(connection) as captured:
        polls.PollSession(Node.objects.get(pk=node.pk), protocol.Poll(hardware=HARDWARE, wait_seconds=0)).check()
    return len(captured)


def create_jobs(jobs: int, authors: int) -> None:
    release = storage.store_bytes(b"a release")
    for number in range(jobs):
        create_job(author=f"author-{number % authors}", impact=number % 3, release=release)


@pytest.mark.parametrize("has_match", [True, False])
def test_poll_of_long_queue_takes_constant_queries(has_match: bool) -> None:
    nodes = [create_node(f"node-{number}", state=Node.State.ONLINE, trusted=has_match)[0] for number in range(2)]
    create_jobs(3, 1)
    Job.objects.update(needs_trusted=True)
    short = count_poll_queries(nodes[0])
    create_jobs(200, 40)
    Job.objects.filter(state=Job.State.QUEUED).update(needs_trusted=True)
    assert count_poll_queries(nodes[1]) == short


@pytest.fixture
def reader(settings: Settings) -> lines.QueueCache:
    settings.QUEUE_READ_SECONDS = 1
    return lines.QueueCache()


def list_authors(queue: matching.JobQueue) -> list[str]:
    return [group.author for group in queue.find_fitting(NODE)]


def test_concurrent_polls_share_one_queue_read(reader: lines.QueueCache) -> None:
    create_job(author="ada")
    now = timezone.now()
    first = reader.get_queue(now)
    with CaptureQueriesContext(connection) as captured:
        assert reader.get_queue(now + timedelta(seconds=0.9)) is first
    assert len(captured) == 0
    assert reader.get_queue(now + timedelta(seconds=1.1)) is not first


def test_long_queue_refresh_reads_only_new_jobs(settings: Settings) -> None:
    settings.QUEUE_READ_SECONDS = 1
    reader = lines.QueueCache(refresh_per_job=timedelta(seconds=10))
    create_job(author="ada")
    now = timezone.now()
    first = reader.get_queue(now)
    create_job(author="bob", priority=Job.Priority.NIGHTLY, state_since=now + timedelta(seconds=1))
    later = reader.get_queue(now + timedelta(seconds=2))
    assert later is first
    assert list_authors(later)[0] == "bob", "the nightly is first, as after a full read"
    assert set(list_authors(later)) == {"ada", "bob"}
    assert reader.get_queue(now + timedelta(minutes=1)) is not first, (
        "the whole queue is read again after the refresh interval"
    )


def test_clock_set_back_refreshes_queue(reader: lines.QueueCache) -> None:
    now = timezone.now()
    first = reader.get_queue(now)
    assert reader.get_queue(now - timedelta(hours=1)) is not first


def test_cached_queue_alternates_authors() -> None:
    """Otherwise the author with least usage would get all jobs until the next read."""
    for _ in range(3):
        create_job(author="ada", queued_at=timezone.now() - timedelta(hours=1))
        create_job(author="bob")
    queue = lines.load_queue(timezone.now())
    claimed_authors = []
    for number in range(6):
        node = create_node(f"node-{number}")[0]
        granted = leases.claim_job(node, queue=queue)
        assert granted is not None
        claimed_authors.append(Job.objects.get(leases=granted.lease).author)
    assert claimed_authors == ["ada", "bob"] * 3


def test_claim_skips_group_emptied_by_others() -> None:
    create_job(author="ada", priority=Job.Priority.NIGHTLY)
    create_job(author="bob")
    queue = lines.load_queue(timezone.now())
    Job.objects.filter(author="ada").update(state=Job.State.CANCELLED)
    granted = leases.claim_job(create_node()[0], queue=queue)
    assert granted is not None
    assert Job.objects.get(leases=granted.lease).author == "bob"
    assert list_authors(queue) == [], "the only job of the other group is claimed"


def test_large_node_prefers_large_jobs() -> None:
    """Otherwise small jobs are always claimed first: large ones waited two days in the simulation."""
    create_job(author="small", expected_seconds=60, needs_gpus=1)
    create_job(author="big", expected_seconds=36000, needs_gpus=4)
    create_job(author="night", expected_seconds=80000, needs_gpus=1, priority=Job.Priority.NIGHTLY)
    queue = lines.load_queue(timezone.now())
    assert [group.author for group in queue.find_fitting(replace(NODE, gpus=4))] == ["night", "big", "small"]
    assert [group.author for group in queue.find_fitting(replace(NODE, gpus=1))] == ["night", "small"]


# --- the queue without a database ------------------------------------------------------------------------------------

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
job_group_strategy = st.builds(
    matching.JobGroup,
    priority=st.sampled_from([int(priority) for priority in Job.Priority]),
    impact=st.integers(0, 1),
    expected_seconds=st.sampled_from([60.0, 3600.0]),
    author=st.sampled_from(["ada", "bob", "eve"]),
    needs_labels=st.just(()),
    needs_trusted=st.booleans(),
    needs_sandbox=st.booleans(),
    needs_disk_bytes=st.sampled_from([0, 10**13]),
    jobs=st.integers(1, 3),
    waiting_since=st.integers(0, 10**6).map(lambda seconds: NOW - timedelta(seconds=seconds)),
)
changes = st.lists(
    st.tuples(st.sampled_from(["add", "reserve_job", "remove_group"]), job_group_strategy, st.integers(0, 9)),
    max_size=12,
)


@given(
    lines=st.lists(job_group_strategy, max_size=10),
    changes=changes,
    used=st.dictionaries(st.just("ada"), st.just(100.0)),
)
def test_queue_order_matches_rank_after_any_change(
    lines: list[matching.JobGroup], changes: list[tuple[str, matching.JobGroup, int]], used: dict[str, float]
) -> None:
    queue = matching.JobQueue(lines, used, NOW)
    waiting = sum((count_jobs(group) for group in lines), Counter[matching.JobGroup]())
    for change, group, number in changes:
        groups = list(queue.find_fitting(NODE))
        if change == "add":
            queue.add([group], NOW)
            waiting += count_jobs(group)
        elif groups:
            chosen = groups[number % len(groups)]
            getattr(queue, change)(chosen)
            waiting -= count_jobs(chosen) if change == "remove_group" else Counter({replace(chosen, jobs=1): 1})
    groups = list(queue.find_fitting(NODE))
    expected = Counter({group: jobs for group, jobs in waiting.items() if matching.find_obstacle(group, NODE) is None})
    assert sum((count_jobs(group) for group in groups), Counter[matching.JobGroup]()) == expected
    levels = [matching.rank_group(group, 0.0, NOW)[:3] for group in groups]
    assert levels == sorted(levels), "alternation of authors changes the order only within a rank"


def count_jobs(group: matching.JobGroup) -> Counter[matching.JobGroup]:
    return Counter({replace(group, jobs=1): group.jobs})


def build_group(author: str, jobs: int) -> matching.JobGroup:
    needs = {"needs_labels": (), "needs_trusted": False, "needs_sandbox": False, "needs_disk_bytes": 0}
    facts = {"priority": 40, "impact": 0, "expected_seconds": 60.0, "waiting_since": NOW}
    return matching.JobGroup(**needs, **facts, author=author, jobs=jobs)


def test_reserved_job_is_not_tried_by_others() -> None:
    queue = matching.JobQueue([build_group("ada", 1), build_group("bob", 2)], {}, NOW)
    first = next(queue.find_fitting(NODE))
    assert queue.reserve_job(first)
    assert not queue.reserve_job(first), "a reserved job can be reserved again"
    assert [(group.author, group.jobs) for group in queue.find_fitting(NODE)] == [("bob", 2)]


def test_cancelled_reservation_restores_queue() -> None:
    queue = matching.JobQueue([build_group("ada", 2), build_group("bob", 1)], {}, NOW)
    groups = list(queue.find_fitting(NODE))
    for chosen in groups:
        assert queue.reserve_job(chosen)
    for chosen in groups:
        queue.cancel_reservation(chosen)
    assert list(queue.find_fitting(NODE)) == groups


def test_remove_group_removes_its_rest() -> None:
    queue = matching.JobQueue([build_group("ada", 3)], {}, NOW)
    chosen = next(queue.find_fitting(NODE))
    assert queue.reserve_job(chosen)
    queue.cancel_reservation(chosen)
    queue.remove_group(chosen)
    assert list(queue.find_fitting(NODE)) == []
