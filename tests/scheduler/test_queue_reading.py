"""Reading a long queue: no more queries than for a short one, one look shared by many, and nothing overlooked."""

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
from scheduler.models import Job, Node
from scheduler.node_api import polls
from tests.support.pool import HARDWARE, make_job, make_node
from trainer import protocol

pytestmark = pytest.mark.django_db
NODE = matching.NodeSlot(labels=frozenset(), trusted=True, sandboxed=True, disk_free_bytes=10**12)


def queries(node: Node) -> int:
    with CaptureQueriesContext(connection) as captured:
        polls.PollSession(Node.objects.get(pk=node.pk), protocol.Poll(hardware=HARDWARE, wait_seconds=0)).check()
    return len(captured)


def fill(jobs: int, authors: int) -> None:
    release = storage.store_bytes(b"a release")
    for number in range(jobs):
        make_job(author=f"author-{number % authors}", impact=number % 3, release=release)


@pytest.mark.parametrize("finds", [True, False])
def test_poll_of_long_queue_takes_constant_queries(finds: bool) -> None:
    nodes = [make_node(f"node-{number}", state=Node.State.ONLINE, trusted=finds)[0] for number in range(2)]
    fill(3, 1)
    Job.objects.update(needs_trusted=True)
    short = queries(nodes[0])
    fill(200, 40)
    Job.objects.filter(state=Job.State.QUEUED).update(needs_trusted=True)
    assert queries(nodes[1]) == short


@pytest.fixture
def reader(settings: Settings) -> lines.QueueCache:
    settings.QUEUE_READ_SECONDS = 1
    return lines.QueueCache()


def authors(queue: matching.JobQueue) -> list[str]:
    return [line.author for line in queue.find_fitting(NODE)]


def test_concurrent_polls_share_one_queue_read(reader: lines.QueueCache) -> None:
    make_job(author="ada")
    now = timezone.now()
    first = reader.get_queue(now)
    with CaptureQueriesContext(connection) as captured:
        assert reader.get_queue(now + timedelta(seconds=0.9)) is first
    assert len(captured) == 0
    assert reader.get_queue(now + timedelta(seconds=1.1)) is not first


def test_long_queue_refresh_reads_only_new_jobs(settings: Settings) -> None:
    settings.QUEUE_READ_SECONDS = 1
    reader = lines.QueueCache(refresh_per_job=timedelta(seconds=10))
    make_job(author="ada")
    now = timezone.now()
    first = reader.get_queue(now)
    make_job(author="bob", priority=Job.Priority.NIGHTLY, state_since=now + timedelta(seconds=1))
    later = reader.get_queue(now + timedelta(seconds=2))
    assert later is first
    assert authors(later)[0] == "bob", "the nightly goes first, as if all had been read"
    assert set(authors(later)) == {"ada", "bob"}
    assert reader.get_queue(now + timedelta(minutes=1)) is not first, "in the end all of it is read"


def test_clock_set_back_refreshes_queue(reader: lines.QueueCache) -> None:
    now = timezone.now()
    first = reader.get_queue(now)
    assert reader.get_queue(now - timedelta(hours=1)) is not first


def test_cached_queue_alternates_authors() -> None:
    """Otherwise the author who had least would get everything until the next look."""
    for _ in range(3):
        make_job(author="ada", queued_at=timezone.now() - timedelta(hours=1))
        make_job(author="bob")
    queue = lines.load_queue(timezone.now())
    got = []
    for number in range(6):
        node = make_node(f"node-{number}")[0]
        granted = leases.claim_job(node, queue=queue)
        assert granted is not None
        got.append(Job.objects.get(leases=granted.lease).author)
    assert got == ["ada", "bob"] * 3


def test_claim_skips_group_emptied_by_others() -> None:
    make_job(author="ada", priority=Job.Priority.NIGHTLY)
    make_job(author="bob")
    queue = lines.load_queue(timezone.now())
    Job.objects.filter(author="ada").update(state=Job.State.CANCELLED)
    granted = leases.claim_job(make_node()[0], queue=queue)
    assert granted is not None
    assert Job.objects.get(leases=granted.lease).author == "bob"
    assert authors(queue) == [], "and of the other line there was one job, which is taken"


def test_large_node_prefers_large_jobs() -> None:
    """Else small jobs would always be there first: the simulation had big ones wait for two days."""
    make_job(author="small", expected_seconds=60, needs_gpus=1)
    make_job(author="big", expected_seconds=36000, needs_gpus=4)
    make_job(author="night", expected_seconds=80000, needs_gpus=1, priority=Job.Priority.NIGHTLY)
    queue = lines.load_queue(timezone.now())
    assert [line.author for line in queue.find_fitting(replace(NODE, gpus=4))] == ["night", "big", "small"]
    assert [line.author for line in queue.find_fitting(replace(NODE, gpus=1))] == ["night", "small"]


# --- the queue by itself ---------------------------------------------------------------------------------------------

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
some_lines = st.builds(
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
    st.tuples(st.sampled_from(["add", "reserve_job", "remove_group"]), some_lines, st.integers(0, 9)), max_size=12
)


@given(lines=st.lists(some_lines, max_size=10), changes=changes, used=st.dictionaries(st.just("ada"), st.just(100.0)))
def test_queue_order_matches_rank_after_any_change(
    lines: list[matching.JobGroup], changes: list[tuple[str, matching.JobGroup, int]], used: dict[str, float]
) -> None:
    queue = matching.JobQueue(lines, used, NOW)
    waiting = sum((jobs_of(line) for line in lines), Counter[matching.JobGroup]())
    for what, line, number in changes:
        seen = list(queue.find_fitting(NODE))
        if what == "add":
            queue.add([line], NOW)
            waiting += jobs_of(line)
        elif seen:
            chosen = seen[number % len(seen)]
            getattr(queue, what)(chosen)
            waiting -= jobs_of(chosen) if what == "remove_group" else Counter({replace(chosen, jobs=1): 1})
    seen = list(queue.find_fitting(NODE))
    fits = Counter({line: jobs for line, jobs in waiting.items() if matching.find_obstacle(line, NODE) is None})
    assert sum((jobs_of(line) for line in seen), Counter[matching.JobGroup]()) == fits
    levels = [matching.rank_group(line, 0.0, NOW)[:3] for line in seen]
    assert levels == sorted(levels), "taking turns changes the order only among equals"


def jobs_of(line: matching.JobGroup) -> Counter[matching.JobGroup]:
    return Counter({replace(line, jobs=1): line.jobs})


def line(author: str, jobs: int) -> matching.JobGroup:
    needs = {"needs_labels": (), "needs_trusted": False, "needs_sandbox": False, "needs_disk_bytes": 0}
    facts = {"priority": 40, "impact": 0, "expected_seconds": 60.0, "waiting_since": NOW}
    return matching.JobGroup(**needs, **facts, author=author, jobs=jobs)


def test_reserved_job_is_not_tried_by_others() -> None:
    queue = matching.JobQueue([line("ada", 1), line("bob", 2)], {}, NOW)
    first = next(queue.find_fitting(NODE))
    assert queue.reserve_job(first)
    assert not queue.reserve_job(first), "it stands there no more"
    assert [(line.author, line.jobs) for line in queue.find_fitting(NODE)] == [("bob", 2)]


def test_cancelled_reservation_restores_queue() -> None:
    queue = matching.JobQueue([line("ada", 2), line("bob", 1)], {}, NOW)
    before = list(queue.find_fitting(NODE))
    for chosen in before:
        assert queue.reserve_job(chosen)
    for chosen in before:
        queue.cancel_reservation(chosen)
    assert list(queue.find_fitting(NODE)) == before


def test_remove_group_removes_its_rest() -> None:
    queue = matching.JobQueue([line("ada", 3)], {}, NOW)
    chosen = next(queue.find_fitting(NODE))
    assert queue.reserve_job(chosen)
    queue.cancel_reservation(chosen)
    queue.remove_group(chosen)
    assert list(queue.find_fitting(NODE)) == []
