"""Matching of jobs to nodes: requirements, the order of the queue, no starvation, and jobs that are taken."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from scheduler import job_groups, matching
from scheduler.matching import LIFT_PERIOD, JobGroup, NodeSlot
from scheduler.models import Job
from tests.support.pool import create_job

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ANY_NODE = NodeSlot(
    labels=frozenset({"2x3090", "rack-4"}),
    trusted=True,
    sandboxed=True,
    disk_free_bytes=10**12,
    gpus=2,
    gpu_memory_bytes=25 * 10**9,
    memory_bytes=10**11,
)
JOB_GROUP = JobGroup(
    priority=Job.Priority.COMMUNITY,
    impact=0,
    expected_seconds=3600.0,
    author="ada",
    needs_labels=(),
    needs_trusted=False,
    needs_sandbox=True,
    needs_disk_bytes=0,
    waiting_since=NOW,
)

ids = st.lists(st.integers(1, 3), max_size=2, unique=True)
names = st.lists(st.sampled_from(["h100", "rack-4"]), max_size=2, unique=True)
labels = st.lists(st.sampled_from(["1x24gb", "2x24gb", "1x80gb", "h100", "rack-4", "500gb"]), max_size=2, unique=True)
GPU_LABELS = {"1x24gb": (1, 24), "2x24gb": (2, 24), "1x80gb": (1, 80)}
tracks = st.sampled_from(["", "small", "large"])
queues = st.lists(
    st.builds(
        JobGroup,
        priority=st.sampled_from([int(priority) for priority in Job.Priority]),
        impact=st.integers(-2, 2),
        expected_seconds=st.floats(1, 1e6),
        author=st.sampled_from(["ada", "bob", "eve"]),
        needs_labels=labels.map(tuple),
        needs_trusted=st.booleans(),
        needs_vetted=st.booleans(),
        needs_sandbox=st.booleans(),
        needs_disk_bytes=st.integers(0, 10**12),
        needs_gpus=st.integers(0, 2),
        needs_gpu_memory_bytes=st.sampled_from([0, 24 * 10**9, 80 * 10**9]),
        needs_memory_bytes=st.sampled_from([0, 10**10]),
        track=tracks,
        from_core=st.booleans(),
        checkpoint_seconds=st.sampled_from([0.0, 60.0, 900.0]),
        excluded_nodes=ids.map(tuple),
        excluded_owners=ids.map(tuple),
        kind=st.sampled_from(["train", "score"]),
        jobs=st.integers(1, 3),
        waiting_since=st.integers(0, 10**6).map(lambda seconds: NOW - timedelta(seconds=seconds)),
    ),
    max_size=12,
)
nodes = st.builds(
    NodeSlot,
    labels=names.map(frozenset),
    trusted=st.booleans(),
    vetted=st.booleans(),
    sandboxed=st.booleans(),
    disk_free_bytes=st.integers(0, 10**12),
    gpus=st.integers(0, 2),
    gpu_memory_bytes=st.sampled_from([0, 25 * 10**9, 85 * 10**9]),
    memory_bytes=st.sampled_from([0, 10**11]),
    kinds=st.sampled_from([None, frozenset({"train"}), frozenset({"train", "score"})]),
    serves=st.sampled_from(["everyone", "core", "track"]),
    serves_track=tracks,
    seconds_left=st.none() | st.floats(0, 1e5),
    max_seconds=st.none() | st.floats(0, 1e5),
    node=st.integers(1, 3),
    owner=st.none() | st.integers(1, 3),
)
shares = st.dictionaries(st.sampled_from(["ada", "bob", "eve"]), st.floats(0, 1e6))


def list_fitting(*groups: JobGroup, used: dict[str, float] | None = None) -> list[JobGroup]:
    return list(matching.JobQueue(groups, used or {}, NOW).find_fitting(ANY_NODE))


def is_permitted(group: JobGroup, node: NodeSlot) -> bool:
    """Check the matching rules one by one, independently of the implementation."""
    gpu_needs = [GPU_LABELS[label] for label in group.needs_labels if label in GPU_LABELS]
    seconds_left = min(
        node.seconds_left or 1e9 * (node.seconds_left is None), node.max_seconds or 1e9 * (node.max_seconds is None)
    )
    needed_seconds = min(group.checkpoint_seconds or math.inf, group.expected_seconds)
    return (
        {label for label in group.needs_labels if label in ("h100", "rack-4")} <= node.labels
        and all(gpus <= node.gpus and memory * 1e9 <= node.gpu_memory_bytes for gpus, memory in gpu_needs)
        and ("500gb" not in group.needs_labels or node.disk_free_bytes >= 500e9)
        and (node.trusted or not group.needs_trusted)
        and (node.vetted or not group.needs_vetted)
        and (node.sandboxed or not group.needs_sandbox)
        and group.needs_disk_bytes <= node.disk_free_bytes
        and group.needs_gpus <= node.gpus
        and group.needs_gpu_memory_bytes <= node.gpu_memory_bytes
        and group.needs_memory_bytes <= node.memory_bytes
        and node.node not in group.excluded_nodes
        and node.owner not in group.excluded_owners
        and (node.kinds is None or group.kind in node.kinds)
        and {"everyone": True, "core": group.from_core, "track": group.track == node.serves_track}[node.serves]
        and needed_seconds + matching.LEEWAY_SECONDS <= seconds_left
    )


@given(queues, nodes, shares)
def test_matching_offers_only_permitted_jobs(queue: list[JobGroup], node: NodeSlot, used: dict[str, float]) -> None:
    chosen = list(matching.JobQueue(queue, used, NOW).find_fitting(node))
    for group in queue:
        assert (group in chosen) == is_permitted(group, node)


@given(queues, shares)
def test_matching_order_is_independent_of_input_order(queue: list[JobGroup], used: dict[str, float]) -> None:
    def list_ranks(groups: list[JobGroup]) -> list[tuple[object, ...]]:
        chosen = list(matching.JobQueue(groups, used, NOW).find_fitting(ANY_NODE))
        ranked = [(group, matching.rank_group(group, used.get(group.author, 0.0), NOW)) for group in chosen]
        return [(*rank[:2], matching.count_idle_gpus(group, ANY_NODE), *rank[2:]) for group, rank in ranked]

    assert list_ranks(queue) == sorted(list_ranks(queue)) == list_ranks(list(reversed(queue)))


@given(queues.filter(bool), shares, st.integers(0, 365))
def test_matching_age_prevents_starvation(queue: list[JobGroup], used: dict[str, float], days: int) -> None:
    """After a bounded time a waiting job goes before all jobs that are queued later; standing work behind nights."""
    old_group = queue[0]
    priorities = [int(priority) for priority in Job.Priority]
    bound = LIFT_PERIOD * ((max(priorities) - min(priorities)) // matching.PRIORITY_STEP + 1)
    now = old_group.waiting_since + bound + timedelta(days=days)
    new_groups = [replace(group, waiting_since=now) for group in queue]
    if old_group.priority >= matching.STANDING_PRIORITY:
        new_groups = [group for group in new_groups if group.priority > Job.Priority.NIGHTLY]
    assert all(
        matching.rank_group(old_group, used.get(old_group.author, 0.0), now)
        < matching.rank_group(group, used.get(group.author, 0.0), now)
        for group in new_groups
    )


def test_matching_follows_priorities() -> None:
    order = [Job.Priority.NIGHTLY, Job.Priority.CONFIRMATION, Job.Priority.MAINTAINER, Job.Priority.COMMUNITY]
    groups = [replace(JOB_GROUP, priority=int(priority)) for priority in reversed(order)]
    assert [group.priority for group in list_fitting(*groups)] == order


@pytest.mark.parametrize(
    ("first", "used"),
    [
        ({"impact": 1, "expected_seconds": 9e5, "needs_gpus": 1}, {}),
        ({"needs_gpus": 2, "expected_seconds": 9e5}, {}),
        ({"expected_seconds": 600.0, "author": "bob"}, {"bob": 1.0}),
        ({"author": "bob", "expected_seconds": 3700.0, "waiting_since": NOW + timedelta(hours=1)}, {"ada": 1.0}),
        ({"author": "bob", "waiting_since": NOW - timedelta(minutes=1)}, {}),
    ],
    ids=["impact", "idle GPUs", "duration", "share", "age"],
)
def test_matching_ranks_jobs_of_one_priority(first: dict[str, Any], used: dict[str, float]) -> None:
    """By impact, then the GPUs left idle, then duration, share and age."""
    group = replace(JOB_GROUP, **first)
    assert list_fitting(JOB_GROUP, group, used=used)[0] == group


def test_age_lifts_a_community_run_to_a_nightly_after_three_days() -> None:
    nightly = replace(JOB_GROUP, priority=int(Job.Priority.NIGHTLY))
    for age, is_first in ((3 * LIFT_PERIOD - timedelta(seconds=1), False), (3 * LIFT_PERIOD, True)):
        old = replace(JOB_GROUP, waiting_since=NOW - age)
        assert (list_fitting(nightly, old)[0] == old) == is_first


@pytest.mark.parametrize("priority", [Job.Priority.LADDER, Job.Priority.PACKETS])
def test_standing_work_of_any_age_goes_behind_nightly(priority: Job.Priority) -> None:
    standing = replace(JOB_GROUP, priority=int(priority), waiting_since=NOW - 99 * LIFT_PERIOD, from_core=True)
    nightly = replace(JOB_GROUP, priority=int(Job.Priority.NIGHTLY), expected_seconds=9e5)
    confirmation = replace(JOB_GROUP, priority=int(Job.Priority.CONFIRMATION))
    assert list_fitting(standing, confirmation, nightly) == [nightly, standing, confirmation]
    assert (matching.STANDING_PRIORITY, matching.NIGHTLY_PRIORITY) == (Job.Priority.LADDER, Job.Priority.NIGHTLY)


def test_explain_idle_names_needs_of_queue() -> None:
    queue = [
        replace(JOB_GROUP, needs_labels=("h100",)),
        replace(JOB_GROUP, needs_trusted=True),
        *(replace(JOB_GROUP, needs_gpus=gpus) for gpus in (2, 3)),
    ]
    idle = NodeSlot(labels=frozenset(), trusted=False, sandboxed=True, disk_free_bytes=0)
    assert (
        matching.JobQueue(queue, {}, NOW).explain_idle(idle)
        == "The waiting jobs need a node labeled h100; or one that is trusted to score; or one with 2 GPUs."
    )
    assert matching.JobQueue([], {}, NOW).explain_idle(idle) == "The queue is empty."
    assert matching.JobQueue([JOB_GROUP], {}, NOW).explain_idle(ANY_NODE) == "The waiting jobs go to other nodes."


# --- the queue as matching reads it, and jobs that are taken out of it ------------------------------------------------


@pytest.mark.sql
@pytest.mark.django_db
def test_large_node_prefers_large_jobs() -> None:
    """Otherwise small jobs are always claimed first: large ones waited two days in the simulation."""
    create_job(author="small", expected_seconds=60, needs_gpus=1)
    create_job(author="big", expected_seconds=36000, needs_gpus=4)
    create_job(author="night", expected_seconds=80000, needs_gpus=1, priority=Job.Priority.NIGHTLY)
    queue = job_groups.load_queue(timezone.now())
    for gpus, authors in ((4, ["night", "big", "small"]), (1, ["night", "small"])):
        assert [group.author for group in queue.find_fitting(replace(ANY_NODE, gpus=gpus))] == authors


@pytest.mark.sql
@pytest.mark.django_db
def test_authors_alternate_as_jobs_are_taken() -> None:
    """Otherwise the author with least usage would get all slots of an estimate."""
    for _ in range(3):
        create_job(author="ada", queued_at=timezone.now() - timedelta(hours=1))
        create_job(author="bob")
    queue, authors = job_groups.load_queue(timezone.now()), []
    while group := next(queue.find_fitting(ANY_NODE), None):
        queue.take_job(group)
        authors.append(group.author)
    assert authors == ["ada", "bob"] * 3


@given(queues, st.lists(st.integers(0, 9), max_size=12), shares)
def test_queue_order_matches_rank_after_jobs_are_taken(
    groups: list[JobGroup], taken: list[int], used: dict[str, float]
) -> None:
    queue = matching.JobQueue(groups, used, NOW)
    waiting = sum((count_jobs(group) for group in groups), Counter[JobGroup]())
    for number in taken:
        if fitting := list(queue.find_fitting(ANY_NODE)):
            chosen = fitting[number % len(fitting)]
            queue.take_job(chosen)
            waiting[replace(chosen, jobs=1)] -= 1
    fitting = list(queue.find_fitting(ANY_NODE))
    expected = {group: jobs for group, jobs in waiting.items() if matching.find_obstacle(group, ANY_NODE) is None}
    assert sum((count_jobs(group) for group in fitting), Counter[JobGroup]()) == +Counter(expected)
    ranks = [matching.rank_group(group, 0.0, NOW) for group in fitting]
    idle = [matching.count_idle_gpus(group, ANY_NODE) for group in fitting]
    levels = [(*rank[:2], gpus, rank[2]) for rank, gpus in zip(ranks, idle, strict=True)]
    assert levels == sorted(levels), "alternation of authors changes the order only within a rank"


def count_jobs(group: JobGroup) -> Counter[JobGroup]:
    return Counter({replace(group, jobs=1): group.jobs})


# --- labels, settings of owners, windows, sentences -------------------------------------------------------------------


LABELED_BY_OWNER = replace(ANY_NODE, labels=frozenset({"8x80gb", "1x3090"}), gpus=0, gpu_memory_bytes=0)
CORE = {"from_core": True, "track": "large"}
NOT_INDEPENDENT = "that has not failed at this job, and is independent of the authors and of the result to check"


@pytest.mark.parametrize(
    ("label", "node", "obstacle"),
    [
        ("1x24gb", ANY_NODE, None),
        ("2x24gb", ANY_NODE, None),
        ("2x16gb", ANY_NODE, None),
        ("1x3090", ANY_NODE, None),
        ("2x3090", ANY_NODE, None),
        ("rack-4", ANY_NODE, None),
        ("500gb", ANY_NODE, None),
        ("3x24gb", ANY_NODE, "with 3 GPUs of 24 GB"),
        ("1x80gb", ANY_NODE, "with a GPU of 80 GB"),
        ("4x3090", ANY_NODE, "labeled 4x3090"),
        ("1x4090", ANY_NODE, "labeled 1x4090"),
        ("2000gb", ANY_NODE, "with 2000 GB of free disk"),
        ("2x3090", replace(ANY_NODE, gpus=1), "labeled 2x3090"),
        ("2x24gb", replace(ANY_NODE, gpus=1), "with 2 GPUs of 24 GB"),
        ("1x3090", replace(ANY_NODE, gpus=1), None),
        ("2x3090", replace(ANY_NODE, labels=frozenset({"1x3090"})), "labeled 2x3090"),
        ("8x80gb", LABELED_BY_OWNER, "with 8 GPUs of 80 GB"),
        ("1x3090", LABELED_BY_OWNER, "labeled 1x3090"),
        ("model:tiny", ANY_NODE, None),
        ("model:tiny", replace(ANY_NODE, models=frozenset({"tiny"})), None),
        ("model:tiny", replace(ANY_NODE, models=frozenset({"big"})), "labeled model:tiny"),
    ],
)
def test_labels_with_numbers_compare_as_numbers(label: str, node: NodeSlot, obstacle: str | None) -> None:
    """With the GPUs of the slot, not with what its owner's labels say."""
    assert matching.find_obstacle(replace(JOB_GROUP, needs_labels=(label,)), node) == obstacle


@pytest.mark.parametrize(
    ("group", "node", "obstacle"),
    [
        ({}, {}, None),
        ({"needs_trusted": True}, {"trusted": False}, "that is trusted to score"),
        ({"needs_vetted": True}, {}, "whose results count: it is trusted, or enough of them agreed with others"),
        ({"needs_vetted": True}, {"vetted": True}, None),
        ({}, {"sandboxed": False}, "with a sandbox"),
        ({"needs_memory_bytes": 2 * 10**11}, {}, "with 200 GB of memory"),
        ({"excluded_nodes": (1,), "excluded_owners": (7,)}, {"node": 1, "owner": 8}, NOT_INDEPENDENT),
        ({"excluded_nodes": (1,), "excluded_owners": (7,)}, {"node": 2, "owner": 7}, NOT_INDEPENDENT),
        ({"excluded_nodes": (1,), "excluded_owners": (7,)}, {"node": 2, "owner": None}, None),
        ({}, {"kinds": frozenset({"score"})}, "whose agent is up to date"),
        ({}, {"kinds": frozenset({"seat"})}, "that does more than take seats"),
        ({"kind": "seat"}, {"kinds": frozenset({"seat"})}, None),
        ({"kind": "score"}, {"kinds": frozenset({"seat", "train"})}, "whose agent is up to date"),
        (CORE, {"serves": "core"}, None),
        ({"track": "small"}, {"serves": "core"}, "whose owner lends it to everyone"),
        ({"track": "small"}, {"serves": "track", "serves_track": "small"}, None),
        (CORE, {"serves": "track", "serves_track": "small"}, "whose owner lends it to more than one track"),
        ({"kind": "rephrase"}, {}, "whose owner lets it rephrase"),
        ({"kind": "rephrase"}, {"packets": "between", "serves": "core"}, None),
        ({}, {"packets": "only"}, "that does more than rephrase"),
        ({"kind": "seat", "track": "swarm:7"}, {"packets": "only", "swarm_run": 7}, None),
        ({"kind": "seat", "track": "swarm:8"}, {"swarm_run": 7}, "that takes seats of this run too"),
        ({"kind": "rephrase", "track": "rephrase:a"}, {"packets": "only", "campaign": "a"}, None),
        (
            {"kind": "rephrase", "track": "rephrase:b"},
            {"packets": "only", "campaign": "a"},
            "that rephrases for this campaign too",
        ),
    ],
)
def test_obstacle_names_what_the_node_lacks_or_its_owner_excludes(
    group: dict[str, Any], node: dict[str, Any], obstacle: str | None
) -> None:
    assert matching.find_obstacle(replace(JOB_GROUP, **group), replace(ANY_NODE, **node)) == obstacle


def test_matching_skips_job_without_checkpoint_before_window_end() -> None:
    hourly = replace(JOB_GROUP, expected_seconds=36_000.0, checkpoint_seconds=3600.0)
    at_once = replace(JOB_GROUP, expected_seconds=7200.0)
    short, long = replace(ANY_NODE, seconds_left=3000.0), replace(ANY_NODE, seconds_left=3800.0)
    assert matching.find_obstacle(hourly, short) == "that is free for 63 minutes at a stretch"
    assert matching.find_obstacle(hourly, long) is None
    assert matching.find_obstacle(at_once, long) == "that is free for 123 minutes at a stretch"
    assert matching.find_obstacle(hourly, replace(ANY_NODE, max_seconds=3000.0)) is not None
    assert matching.find_obstacle(replace(hourly, expected_seconds=60.0), short) is None


@pytest.mark.parametrize(
    ("needs", "sentence"),
    [
        ({}, "that fits"),
        ({"needs_gpus": 1}, "with a GPU"),
        (
            {"needs_labels": ("h100", "500gb"), "needs_gpus": 2, "needs_gpu_memory_bytes": 24 * 10**9},
            "with 2 GPUs of 24 GB and labeled h100 and with 500 GB of free disk",
        ),
        ({"needs_disk_bytes": 99 * 10**9, "needs_memory_bytes": 64 * 10**9}, "with 64 GB of memory"),
        ({"needs_disk_bytes": 100 * 10**9}, "with 100 GB of free disk"),
        ({"needs_trusted": True, "needs_vetted": True}, "that is trusted to score"),
        ({"needs_vetted": True}, "whose results count"),
        ({"excluded_nodes": (1,)}, "that has not failed at it or had a part in it"),
    ],
)
def test_describe_needs_names_requirements(needs: dict[str, Any], sentence: str) -> None:
    assert matching.describe_needs(replace(JOB_GROUP, **needs)) == sentence
