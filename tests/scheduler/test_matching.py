"""Which job goes to which node: the order of the queue, and that nothing starves."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from scheduler import matching
from scheduler.matching import LIFT, Line, Seeker
from scheduler.models import Job

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ANY_NODE = Seeker(labels=frozenset({"1x24gb"}), trusted=True, sandboxed=True, disk_free_bytes=10**12)
LINE = Line(
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
labels = st.lists(st.sampled_from(["1x24gb", "2x24gb", "h100", "500gb"]), max_size=2, unique=True)
queues = st.lists(
    st.builds(
        Line,
        priority=st.sampled_from([int(priority) for priority in Job.Priority]),
        impact=st.integers(-2, 2),
        expected_seconds=st.floats(1, 1e6),
        author=st.sampled_from(["ada", "bob", "eve"]),
        needs_labels=labels.map(tuple),
        needs_trusted=st.booleans(),
        needs_sandbox=st.booleans(),
        needs_disk_bytes=st.integers(0, 10**12),
        excluded_nodes=ids.map(tuple),
        excluded_owners=ids.map(tuple),
        waiting_since=st.integers(0, 10**6).map(lambda seconds: NOW - timedelta(seconds=seconds)),
    ),
    max_size=12,
)
nodes = st.builds(
    Seeker,
    labels=labels.map(frozenset),
    trusted=st.booleans(),
    sandboxed=st.booleans(),
    disk_free_bytes=st.integers(0, 10**12),
    node=st.integers(1, 3),
    owner=st.none() | st.integers(1, 3),
)
shares = st.dictionaries(st.sampled_from(["ada", "bob", "eve"]), st.floats(0, 1e6))


def first(*lines: Line, used: dict[str, float] | None = None, now: datetime = NOW) -> Line:
    return matching.order(lines, ANY_NODE, used or {}, now)[0]


@given(queues, nodes, shares)
def test_a_node_is_offered_what_it_may_serve_and_nothing_else(
    queue: list[Line], node: Seeker, used: dict[str, float]
) -> None:
    chosen = matching.order(queue, node, used, NOW)
    for line in queue:
        fits = (
            set(line.needs_labels) <= node.labels
            and (node.trusted or not line.needs_trusted)
            and (node.sandboxed or not line.needs_sandbox)
            and line.needs_disk_bytes <= node.disk_free_bytes
            and node.node not in line.excluded_nodes
            and node.owner not in line.excluded_owners
        )
        assert (line in chosen) == fits


@given(queues, shares)
def test_the_order_does_not_depend_on_how_the_queue_was_read(queue: list[Line], used: dict[str, float]) -> None:
    def ranks(lines: list[Line]) -> list[tuple[object, ...]]:
        chosen = matching.order(lines, ANY_NODE, used, NOW)
        return [matching.rank(line, used.get(line.author, 0.0), NOW) for line in chosen]

    assert ranks(queue) == sorted(ranks(queue)) == ranks(list(reversed(queue)))


@given(queues.filter(bool), shares, st.integers(0, 365))
def test_nothing_starves_because_age_lifts_without_end(queue: list[Line], used: dict[str, float], days: int) -> None:
    """After a bounded time a waiting job goes before whatever is queued from then on."""
    old = queue[0]
    ladder = [int(priority) for priority in Job.Priority]
    bound = LIFT * ((max(ladder) - min(ladder)) // matching.STEP + 1)
    now = old.waiting_since + bound + timedelta(days=days)
    new = [replace(line, waiting_since=now) for line in queue]
    assert all(
        matching.rank(old, used.get(old.author, 0.0), now) < matching.rank(line, used.get(line.author, 0.0), now)
        for line in new
    )


def test_nightly_goes_before_confirmation_before_maintainers_before_the_community() -> None:
    order = [Job.Priority.NIGHTLY, Job.Priority.CONFIRMATION, Job.Priority.MAINTAINER, Job.Priority.COMMUNITY]
    lines = [replace(LINE, priority=int(priority)) for priority in reversed(order)]
    assert [line.priority for line in matching.order(lines, ANY_NODE, {}, NOW)] == order


def test_within_a_priority_impact_goes_first() -> None:
    assert first(LINE, replace(LINE, impact=1, expected_seconds=9e5)).impact == 1


def test_then_the_shorter_goes_first() -> None:
    assert first(LINE, replace(LINE, expected_seconds=600.0)).expected_seconds == 600.0


def test_of_about_the_same_length_the_author_who_had_less_goes_first() -> None:
    bob = replace(LINE, author="bob", expected_seconds=3700.0)
    assert first(LINE, bob, used={"ada": 7200.0}).author == "bob"
    assert first(LINE, bob, used={"bob": 7200.0}).author == "ada"


def test_then_who_has_waited_longer() -> None:
    assert first(LINE, replace(LINE, author="bob", waiting_since=NOW - timedelta(minutes=1))).author == "bob"


def test_a_job_that_waited_three_nights_ranks_with_tonights_train() -> None:
    tonight = replace(LINE, priority=int(Job.Priority.NIGHTLY))
    assert matching.level(replace(LINE, waiting_since=NOW - 3 * LIFT), NOW) == matching.level(tonight, NOW)
    patient = replace(LINE, waiting_since=NOW - 4 * LIFT)
    assert first(tonight, patient) == patient


def test_a_sponsor_is_told_what_the_queue_waits_for() -> None:
    queue = [replace(LINE, needs_labels=("8xh100",)), replace(LINE, needs_trusted=True)]
    idle = Seeker(labels=frozenset(), trusted=False, sandboxed=True, disk_free_bytes=0)
    assert matching.why_idle(queue, idle) == "What waits needs a node labelled 8xh100; or one that is trusted to score."
    assert matching.why_idle([], idle) == "The queue is empty."


def test_a_node_does_not_check_itself_nor_its_owners_other_machines() -> None:
    check = replace(LINE, excluded_nodes=(1,), excluded_owners=(7,))
    assert matching.obstacle(check, replace(ANY_NODE, node=1, owner=8))
    assert matching.obstacle(check, replace(ANY_NODE, node=2, owner=7))
    assert matching.obstacle(check, replace(ANY_NODE, node=2, owner=8)) is None
    assert matching.obstacle(check, replace(ANY_NODE, node=2, owner=None)) is None
