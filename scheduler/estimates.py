"""Start estimates: a job's position in the queue, what it waits for, when it starts and ends.

An estimate simulates the queue: every node takes what matching would give it, every job takes as long as jobs of its
kind and track take on that node, else on all nodes, and no node joins, leaves or is interrupted. A running job's own
progress counts, where its kind knows it, also for the jobs after it. One `QueueEstimates` serves a whole page with a
fixed number of queries. It looks `HORIZON` jobs ahead.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from heapq import heapify, heappop, heappush
from itertools import groupby

from django.db.models import F, Q, Sum

from scheduler import job_groups, job_kinds, matching, node_slots
from scheduler.matching import JobGroup, NodeSlot
from scheduler.models import Job, Lease, Node

HORIZON = 500
"""Jobs in the order of the queue, and slots in the order of their free times, that an estimate looks at."""
DURATION_WINDOW = timedelta(days=30)
"""Age of the oldest durations that count."""
EARLIEST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class StartEstimate:
    """The estimate of one job."""

    position: int | None
    """Position in the queue, from 1; None beyond the horizon, or if the job does not wait."""
    reason: str
    """One or two sentences. The last one lacks its end if there is a `next_free`."""
    begins_at: datetime | None = None
    """None if it is unknown."""
    ends_at: datetime | None = None
    next_free: datetime | None = None
    """Time at which the first node that could run it is free, perhaps for another job."""


@dataclass
class SlotSchedule:
    """A slot of a node, and from when on it is free."""

    node_slot: NodeSlot
    """Slot without the end of its lending time, which is in `free_at`."""
    free_at: datetime | None
    """None: unknown, because its owner has not set when the node is lent again."""
    next_at: datetime | None
    """The same after the jobs that are earlier in the queue."""
    busy: bool


Work = tuple[str, str]
"""Kind and track of jobs."""


@dataclass(frozen=True)
class Durations:
    """Recent durations of jobs by kind and track, relative to the expected ones: the measured speed of nodes."""

    ratios: dict[tuple[Work, int | None], float]
    """By node, too; None: of all nodes."""

    def get_duration(self, job: Job, node: int | None = None) -> timedelta:
        """Return how long a job takes on a node; None: on any."""
        work = (job.kind, job.track)
        ratio = self.ratios.get((work, node)) or self.ratios.get((work, None)) or 1.0
        return timedelta(seconds=job.expected_seconds * ratio)


def load_durations(now: datetime, running: Iterable[tuple[Lease, float]]) -> Durations:
    """Return the durations of recent jobs, and of those that run now. One query.

    `running`: leases, and the seconds that their jobs take from start to end.
    """
    took: defaultdict[tuple[Work, int | None], list[float]] = defaultdict(lambda: [0.0, 0.0])

    def add(work: Work, node: int | None, seconds: float, expected: float) -> None:
        took[work, node][0] += seconds
        took[work, node][1] += expected

    leases = Lease.objects.filter(job__state=Job.State.DONE, job__finished_at__gt=now - DURATION_WINDOW).order_by()
    is_last, expected = Q(outcome="done"), F("job__expected_seconds")
    is_only = is_last & Q(attempt=1)
    sums = leases.values_list("job__kind", "job__track", "node").annotate(
        all_seconds=Sum("seconds"),
        all_expected=Sum(expected, filter=is_last, default=0.0),
        whole_seconds=Sum("seconds", filter=is_only, default=0.0),
        whole_expected=Sum(expected, filter=is_only, default=0.0),
    )
    for kind, track, node, all_seconds, all_expected, whole_seconds, whole_expected in sums:
        add((kind, track), None, all_seconds, all_expected)
        add((kind, track), node, whole_seconds, whole_expected)
    known = {work for work, _ in took}
    for lease, seconds in running:
        work = (lease.job.kind, lease.job.track)
        took.pop((work, lease.node_id), None)  # what a node does now says more than what it did
        add(work, lease.node_id, seconds, lease.job.expected_seconds)
        if work not in known:
            add(work, None, seconds, lease.job.expected_seconds)
    return Durations({key: spent / total for key, (spent, total) in took.items() if spent and total})


# --- the whole queue -------------------------------------------------------------------------------------------------


class QueueEstimates:
    """The estimates of all waiting jobs, as of now."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        leases = Lease.objects.filter(state=Lease.State.ACTIVE).select_related("job")
        active = list(leases.annotate(job_seconds=Sum("job__leases__seconds")))
        seconds_left = job_kinds.estimate_seconds_left([lease.job for lease in active])
        spent = {lease.job_id: lease.job_seconds for lease in active}  # type: ignore[attr-defined]
        running = [lease for lease in active if lease.job_id in seconds_left]
        took = [(lease, spent[lease.job_id] + seconds_left[lease.job_id]) for lease in running]
        self.durations = load_durations(now, took)
        self.slots = list(self._load_slots(active, seconds_left))
        self.estimates: dict[int, StartEstimate] = {}
        self._fitting_slots: dict[tuple[object, ...], list[SlotSchedule]] = {}
        self._estimate_queue()

    def get_estimate(self, job: Job) -> StartEstimate:
        """Return the estimate of a job. No query."""
        if found := self.estimates.get(job.pk):
            return found
        if job.state == Job.State.QUEUED:
            if job.not_before and job.not_before > self.now:
                begin = format_time(job.not_before, self.now)
                reason = f"It starts in the hours of its track only. They begin at {begin}."
                return StartEstimate(None, reason, job.not_before)
            return self._build_estimate(None, job_groups.build_group_from_job(job), None, None)
        return StartEstimate(None, job.reason)

    def estimate_if_queued(self, job: Job) -> StartEstimate:
        """Return the estimate of an unsaved job, as if it were last in the queue. No query."""
        group = job_groups.build_group_from_job(job)
        times = [(slot.next_at, slot.node_slot.node) for slot in self._find_fitting_slots(group) if slot.next_at]
        begins, node = min(times, key=lambda time: time[0], default=(None, None))
        ends = begins + self.durations.get_duration(job, node) if begins else None
        return self._build_estimate(None, group, begins, ends)

    def _load_slots(self, active: Iterable[Lease], seconds_left: Mapping[int, float]) -> Iterator[SlotSchedule]:
        """Yield the slots of all online nodes. Two queries."""
        leases = {(lease.node_id, lease.slot): lease for lease in active}
        for node in Node.objects.filter(state=Node.State.ONLINE).prefetch_related("windows"):
            for slot in range(max(node.slots, 1)):
                lease = leases.get((node.pk, slot))
                yield self._build_slot(node, slot, lease, seconds_left.get(lease.job_id) if lease else None)

    def _build_slot(self, node: Node, slot: int, lease: Lease | None, seconds_left: float | None) -> SlotSchedule:
        done = max(self.now, node.rest_until or self.now)
        if seconds_left is not None:
            done = self.now + timedelta(seconds=seconds_left)
        elif lease:
            duration = self.durations.get_duration(lease.job, node.pk)
            # 5 % of its duration is left of a job that has taken longer than expected.
            done = self.now + max(duration - timedelta(seconds=lease.seconds), 0.05 * duration)
        node_slot = replace(node_slots.build_node_slot(node, self.now, slot=slot), seconds_left=None)
        is_lent = node_slots.get_seconds_left(node, done) != 0
        free = done if is_lent else node_slots.find_next_opening(node, done)
        return SlotSchedule(node_slot, free, free, busy=lease is not None)

    def _estimate_queue(self) -> None:
        """Fill `estimates`. Two queries."""
        used = job_groups.sum_author_seconds(self.now)
        each = load_ordered_jobs(self.now, used)
        times = self._assign_jobs(each, used)
        for position, (job, group) in enumerate(each, 1):
            self.estimates[job.pk] = self._build_estimate(position, group, *times.get(job.pk, (None, None)))

    def _assign_jobs(
        self, each: list[tuple[Job, JobGroup]], used: dict[str, float]
    ) -> dict[int, tuple[datetime, datetime]]:
        """Return when each job begins and ends: the first free slot gets its best match."""
        waiting: dict[JobGroup, deque[tuple[Job, JobGroup]]] = {}
        for pair in sorted(each, key=lambda pair: (pair[1].waiting_since, pair[0].pk)):
            waiting.setdefault(normalize_group(pair[1]), deque()).append(pair)
        times = {}
        queue = matching.JobQueue((replace(jobs[0][1], jobs=len(jobs)) for jobs in waiting.values()), used, self.now)
        useful = {id(slot): slot for jobs in waiting.values() for slot in self._find_fitting_slots(jobs[0][1])}
        free = [(slot.next_at, number, slot) for number, slot in enumerate(useful.values()) if slot.next_at]
        heapify(free)
        while free:
            begins, number, slot = heappop(free)
            group = next(queue.find_fitting(slot.node_slot), None)
            if group is None:
                continue
            job, _ = waiting[normalize_group(group)].popleft()
            queue.take_job(group)
            slot.next_at = ends = begins + self.durations.get_duration(job, slot.node_slot.node)
            times[job.pk] = begins, ends
            heappush(free, (ends, number, slot))
        return times

    def _find_fitting_slots(self, group: JobGroup) -> list[SlotSchedule]:
        """Return the slots that may run the group, the first to be free first."""
        if group.needs not in self._fitting_slots:
            fitting = [slot for slot in self.slots if matching.find_obstacle(group, slot.node_slot) is None]
            fitting.sort(key=lambda slot: (slot.free_at is None, slot.free_at or self.now))
            self._fitting_slots[group.needs] = fitting[:HORIZON]
        return self._fitting_slots[group.needs]

    def _build_estimate(
        self, position: int | None, group: JobGroup, begins: datetime | None, ends: datetime | None
    ) -> StartEstimate:
        fitting, needs = self._find_fitting_slots(group), f"Waits for a node {matching.describe_needs(group)}"
        if not fitting:
            return StartEstimate(position, f"{needs}: none is online. It starts as soon as one is.")
        next_free = fitting[0].free_at
        if next_free is None:
            return StartEstimate(position, f"{needs}: it is unknown when one is lent again.")
        if begins and begins <= self.now:
            return StartEstimate(position, "The next free node gets it.", begins, ends)
        if next_free <= self.now:
            return StartEstimate(position, f"{needs}; other jobs go first.", begins, ends)
        busy = sum(slot.busy for slot in fitting)
        used = f"{busy} {'is' if busy == 1 else 'are'} in use" if busy else "none is lent now"
        return StartEstimate(position, f"{needs}; {used}", begins, ends, next_free)


def format_time(at: datetime, now: datetime) -> str:
    """Return a time of day in UTC, with the date unless it is within 24 hours."""
    pattern = "%H:%M" if at - now < timedelta(days=1) else "%-d %b, %H:%M"
    return f"{at.astimezone(UTC):{pattern}} UTC"


def normalize_group(group: JobGroup) -> JobGroup:
    """Return the group without what differs between equal groups."""
    return replace(group, waiting_since=EARLIEST, jobs=1)


def load_ordered_jobs(now: datetime, used: dict[str, float]) -> list[tuple[Job, JobGroup]]:
    """Return the waiting jobs in the order of the queue, each with a group of its own. One query."""
    waiting = Job.objects.filter(job_groups.is_startable(now), state=Job.State.QUEUED)
    each = [
        (job, job_groups.build_group_from_job(job)) for job in waiting.order_by(*(Job._meta.ordering or ()))[:HORIZON]
    ]
    each.sort(key=lambda pair: (pair[1].author, matching.rank_group(pair[1], 0.0, now), pair[0].pk))
    ranked = []
    for author, theirs in groupby(each, key=lambda pair: pair[1].author):
        share = used.get(author, 0.0)
        for job, group in theirs:  # what comes before counts for the author's share
            ranked.append(((*matching.rank_group(group, share, now), job.pk), job, group))
            share += job.expected_seconds
    return [(job, group) for _, job, group in sorted(ranked, key=lambda found: found[0])]


def estimate_start(job: Job, now: datetime) -> StartEstimate:
    """Return the estimate of one job. For several jobs create one `QueueEstimates`."""
    return QueueEstimates(now).get_estimate(job)
