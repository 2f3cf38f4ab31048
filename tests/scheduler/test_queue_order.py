"""The queue as matching reads it: the order of its groups, and jobs that are taken out of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from scheduler import job_groups, matching
from scheduler.models import Job
from tests.support.pool import create_job

pytestmark = [pytest.mark.sql, pytest.mark.django_db]
NODE = matching.NodeSlot(labels=frozenset(), trusted=True, sandboxed=True, disk_free_bytes=10**12)


def test_large_node_prefers_large_jobs() -> None:
    """Otherwise small jobs are always claimed first: large ones waited two days in the simulation."""
    create_job(author="small", expected_seconds=60, needs_gpus=1)
    create_job(author="big", expected_seconds=36000, needs_gpus=4)
    create_job(author="night", expected_seconds=80000, needs_gpus=1, priority=Job.Priority.NIGHTLY)
    queue = job_groups.load_queue(timezone.now())
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


@given(
    groups=st.lists(job_group_strategy, max_size=10),
    taken=st.lists(st.integers(0, 9), max_size=12),
    used=st.dictionaries(st.just("ada"), st.just(100.0)),
)
def test_queue_order_matches_rank_after_jobs_are_taken(
    groups: list[matching.JobGroup], taken: list[int], used: dict[str, float]
) -> None:
    queue = matching.JobQueue(groups, used, NOW)
    waiting = sum((count_jobs(group) for group in groups), Counter[matching.JobGroup]())
    for number in taken:
        if fitting := list(queue.find_fitting(NODE)):
            chosen = fitting[number % len(fitting)]
            queue.take_job(chosen)
            waiting[replace(chosen, jobs=1)] -= 1
    fitting = list(queue.find_fitting(NODE))
    expected = Counter({group: jobs for group, jobs in waiting.items() if matching.find_obstacle(group, NODE) is None})
    assert sum((count_jobs(group) for group in fitting), Counter[matching.JobGroup]()) == +expected
    levels = [matching.rank_group(group, 0.0, NOW)[:3] for group in fitting]
    assert levels == sorted(levels), "alternation of authors changes the order only within a rank"


def count_jobs(group: matching.JobGroup) -> Counter[matching.JobGroup]:
    return Counter({replace(group, jobs=1): group.jobs})


def test_authors_alternate_as_jobs_are_taken() -> None:
    """Otherwise the author with least usage would get all slots of an estimate."""
    for _ in range(3):
        create_job(author="ada", queued_at=timezone.now() - timedelta(hours=1))
        create_job(author="bob")
    queue, authors = job_groups.load_queue(timezone.now()), []
    while group := next(queue.find_fitting(NODE), None):
        queue.take_job(group)
        authors.append(group.author)
    assert authors == ["ada", "bob"] * 3
