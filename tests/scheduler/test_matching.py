"""Matching of jobs to nodes: requirements, the order of the queue, and no starvation."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler import matching
from scheduler.matching import LIFT_PERIOD, JobGroup, NodeSlot
from scheduler.models import Job

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
        waiting_since=st.integers(0, 10**6).map(lambda seconds: NOW - timedelta(seconds=seconds)),
    ),
    max_size=12,
)
nodes = st.builds(
    NodeSlot,
    labels=names.map(frozenset),
    trusted=st.booleans(),
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


def find_first_group(*groups: JobGroup, used: dict[str, float] | None = None, now: datetime = NOW) -> JobGroup:
    return next(matching.JobQueue(groups, used or {}, now).find_fitting(ANY_NODE))


def is_permitted(group: JobGroup, node: NodeSlot) -> bool:
    """Check the matching rules one by one, independently of the implementation."""
    gpu_needs = [GPU_LABELS[label] for label in group.needs_labels if label in GPU_LABELS]
    seconds_left = min(
        node.seconds_left or 1e9 * (node.seconds_left is None), node.max_seconds or 1e9 * (node.max_seconds is None)
    )
    needed_seconds = (
        min(group.checkpoint_seconds, group.expected_seconds) if group.checkpoint_seconds else group.expected_seconds
    )
    return (
        {label for label in group.needs_labels if label in ("h100", "rack-4")} <= node.labels
        and all(gpus <= node.gpus and memory * 1e9 <= node.gpu_memory_bytes for gpus, memory in gpu_needs)
        and ("500gb" not in group.needs_labels or node.disk_free_bytes >= 500e9)
        and (node.trusted or not group.needs_trusted)
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
    assert [group.priority for group in matching.JobQueue(groups, {}, NOW).find_fitting(ANY_NODE)] == order


def test_matching_prefers_impact_within_priority() -> None:
    assert find_first_group(JOB_GROUP, replace(JOB_GROUP, impact=1, expected_seconds=9e5)).impact == 1


def test_matching_prefers_shorter_jobs() -> None:
    assert find_first_group(JOB_GROUP, replace(JOB_GROUP, expected_seconds=600.0)).expected_seconds == 600.0


def test_matching_prefers_author_with_less_usage() -> None:
    bob = replace(JOB_GROUP, author="bob", expected_seconds=3700.0)
    assert find_first_group(JOB_GROUP, bob, used={"ada": 7200.0}).author == "bob"
    assert find_first_group(JOB_GROUP, bob, used={"bob": 7200.0}).author == "ada"


def test_matching_prefers_longer_waiting_job() -> None:
    assert (
        find_first_group(JOB_GROUP, replace(JOB_GROUP, author="bob", waiting_since=NOW - timedelta(minutes=1))).author
        == "bob"
    )


def test_matching_three_days_of_age_equal_nightly_priority() -> None:
    nightly = replace(JOB_GROUP, priority=int(Job.Priority.NIGHTLY))
    assert matching.get_lifted_priority(
        replace(JOB_GROUP, waiting_since=NOW - 3 * LIFT_PERIOD), NOW
    ) == matching.get_lifted_priority(nightly, NOW)
    old_group = replace(JOB_GROUP, waiting_since=NOW - 4 * LIFT_PERIOD)
    assert find_first_group(nightly, old_group) == old_group


@pytest.mark.parametrize("priority", [Job.Priority.LADDER, Job.Priority.PACKETS])
def test_standing_work_of_any_age_goes_behind_nightly(priority: Job.Priority) -> None:
    standing = replace(JOB_GROUP, priority=int(priority), waiting_since=NOW - 99 * LIFT_PERIOD, from_core=True)
    nightly = replace(JOB_GROUP, priority=int(Job.Priority.NIGHTLY), expected_seconds=9e5)
    assert find_first_group(standing, nightly) == nightly
    assert find_first_group(standing, replace(JOB_GROUP, priority=int(Job.Priority.CONFIRMATION))) == standing
    assert (matching.STANDING_PRIORITY, matching.NIGHTLY_PRIORITY) == (Job.Priority.LADDER, Job.Priority.NIGHTLY)


def test_explain_idle_names_needs_of_queue() -> None:
    queue = [replace(JOB_GROUP, needs_labels=("h100",)), replace(JOB_GROUP, needs_trusted=True)]
    idle = NodeSlot(labels=frozenset(), trusted=False, sandboxed=True, disk_free_bytes=0)
    assert (
        matching.JobQueue(queue, {}, NOW).explain_idle(idle)
        == "The waiting jobs need a node labeled h100; or one that is trusted to score."
    )
    assert matching.JobQueue([], {}, NOW).explain_idle(idle) == "The queue is empty."


def test_matching_excludes_nodes_of_same_owner() -> None:
    check = replace(JOB_GROUP, excluded_nodes=(1,), excluded_owners=(7,))
    assert matching.find_obstacle(check, replace(ANY_NODE, node=1, owner=8))
    assert matching.find_obstacle(check, replace(ANY_NODE, node=2, owner=7))
    assert matching.find_obstacle(check, replace(ANY_NODE, node=2, owner=8)) is None
    assert matching.find_obstacle(check, replace(ANY_NODE, node=2, owner=None)) is None


# --- labels, settings of owners, windows ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "obstacle"),
    [
        ("1x24gb", None),
        ("2x24gb", None),
        ("2x16gb", None),
        ("1x3090", None),
        ("2x3090", None),
        ("rack-4", None),
        ("500gb", None),
        ("3x24gb", "with 3 GPUs of 24 GB"),
        ("1x80gb", "with a GPU of 80 GB"),
        ("4x3090", "labeled 4x3090"),
        ("1x4090", "labeled 1x4090"),
        ("2000gb", "with 2000 GB of free disk"),
    ],
)
def test_labels_with_numbers_compare_as_numbers(label: str, obstacle: str | None) -> None:
    assert matching.find_obstacle(replace(JOB_GROUP, needs_labels=(label,)), ANY_NODE) == obstacle


def test_slot_label_counts_only_its_gpus() -> None:
    slot = replace(ANY_NODE, gpus=1)
    assert matching.find_obstacle(replace(JOB_GROUP, needs_labels=("2x3090",)), slot) == "labeled 2x3090"
    assert matching.find_obstacle(replace(JOB_GROUP, needs_labels=("2x24gb",)), slot) == "with 2 GPUs of 24 GB"
    assert matching.find_obstacle(replace(JOB_GROUP, needs_labels=("1x3090",)), slot) is None


def test_owner_label_adds_no_gpu() -> None:
    slot = replace(ANY_NODE, labels=frozenset({"8x80gb", "1x3090"}), gpus=0, gpu_memory_bytes=0)
    assert matching.find_obstacle(replace(JOB_GROUP, needs_labels=("8x80gb",)), slot) == "with 8 GPUs of 80 GB"
    assert matching.find_obstacle(replace(JOB_GROUP, needs_labels=("1x3090",)), slot) == "labeled 1x3090"


def test_matching_respects_owner_settings() -> None:
    core_slot, track_slot = replace(ANY_NODE, serves="core"), replace(ANY_NODE, serves="track", serves_track="small")
    core_group, small_group = replace(JOB_GROUP, from_core=True, track="large"), replace(JOB_GROUP, track="small")
    assert [matching.find_obstacle(core_group, core_slot), matching.find_obstacle(small_group, track_slot)] == [
        None,
        None,
    ]
    assert matching.find_obstacle(small_group, core_slot) == "whose owner lends it to everyone"
    assert matching.find_obstacle(core_group, track_slot) == "whose owner lends it to more than one track"


def test_matching_skips_job_without_checkpoint_before_window_end() -> None:
    hourly = replace(JOB_GROUP, expected_seconds=36_000.0, checkpoint_seconds=3600.0)
    at_once = replace(JOB_GROUP, expected_seconds=7200.0)
    short, long = replace(ANY_NODE, seconds_left=3000.0), replace(ANY_NODE, seconds_left=3800.0)
    assert matching.find_obstacle(hourly, short) == "that is free for 63 minutes at a stretch"
    assert matching.find_obstacle(hourly, long) is None
    assert matching.find_obstacle(at_once, long) == "that is free for 123 minutes at a stretch"
    assert matching.find_obstacle(hourly, replace(ANY_NODE, max_seconds=3000.0)) is not None
    assert matching.find_obstacle(replace(hourly, expected_seconds=60.0), short) is None


def test_describe_needs_names_requirements() -> None:
    group = replace(JOB_GROUP, needs_labels=("h100", "500gb"), needs_gpus=2, needs_gpu_memory_bytes=24 * 10**9)
    assert matching.describe_needs(group) == "with 2 GPUs of 24 GB and labeled h100 and with 500 GB of free disk"
    assert matching.describe_needs(JOB_GROUP) == "that fits"
