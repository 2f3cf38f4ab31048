"""What somebody who waits wants to know: which place in the queue, for what it waits, and when it will begin and end.

An estimate: every node takes what matching would give it, each job takes as long as jobs of its kind and
track took lately, and nobody comes, goes or is interrupted meanwhile. One `Outlook` serves a whole page, in six queries
however long the queue is; it looks as far as `HORIZON` jobs ahead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from heapq import heapify, heappop, heappush
from itertools import groupby

from django.db.models import Count, Sum

from scheduler import job_groups, matching, node_slots
from scheduler.matching import JobGroup, NodeSlot
from scheduler.models import Job, Lease, Node

HORIZON = 500
"""Jobs, in the order of the queue, and lanes of nodes, those free soonest first, that an estimate looks at."""
DURATION_WINDOW = timedelta(days=30)
"""How far back past durations count."""
EARLIEST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class StartEstimate:
    """What can be said of one job."""

    position: int | None
    """Jobs before it in the queue, and itself; None where it is further back than anybody looks, or does not wait."""
    reason: str
    """In a sentence or two; the last is open where `next_free` ends it."""
    begins_at: datetime | None = None
    """None where nobody can say."""
    ends_at: datetime | None = None
    next_free: datetime | None = None
    """When the first of the nodes is free that it waits for, perhaps for another job."""

    def sentence(self, now: datetime) -> str:
        """Return the reason with its time, where no page puts that into the reader's zone."""
        return f"{self.reason}, next free about {format_time(self.next_free, now)}." if self.next_free else self.reason


@dataclass
class SlotSchedule:
    """A lane of a node, and from when on it is free."""

    seeker: NodeSlot
    """As if its owner lent it without end: when he does is in `free_at`."""
    free_at: datetime | None
    """None: its owner has not said when he lends it again."""
    next_at: datetime | None
    """The same, once it has taken what comes before in the queue."""
    busy: bool


@dataclass(frozen=True)
class Durations:
    """How long jobs of a kind and track took lately, in parts of what was expected."""

    ratios: dict[tuple[str, str], float]

    def of(self, job: Job) -> timedelta:
        """Return about how long it works, whole."""
        return timedelta(seconds=job.expected_seconds * self.ratios.get((job.kind, job.track), 1.0))

    def left(self, job: Job, worked: float) -> timedelta:
        """Return about how long it still works; a little where it has taken longer than expected."""
        whole = self.of(job).total_seconds()
        return timedelta(seconds=max(whole - worked, 0.05 * whole))


def load_durations(now: datetime) -> Durations:
    """Return what is known of past durations. One query."""
    rows = (
        Job.objects.filter(state=Job.State.DONE, finished_at__gt=now - DURATION_WINDOW)
        .order_by()
        .values_list("kind", "track", "expected_seconds")
        .annotate(jobs=Count("pk", distinct=True), seconds=Sum("leases__seconds"))
    )
    took: dict[tuple[str, str], tuple[float, float]] = {}
    for kind, track, expected, jobs, seconds in rows:
        before = took.get((kind, track), (0.0, 0.0))
        took[kind, track] = (before[0] + (seconds or 0.0), before[1] + jobs * expected)
    return Durations({key: spent / expected for key, (spent, expected) in took.items() if spent and expected})


# --- the whole queue -------------------------------------------------------------------------------------------------


class QueueEstimates:
    """The queue and the pool as they are now."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.durations = load_durations(now)
        self.lanes = list(self._lanes())
        self.prospects: dict[int, StartEstimate] = {}
        self._fits: dict[tuple[object, ...], list[SlotSchedule]] = {}
        self._look_ahead()

    def of(self, job: Job) -> StartEstimate:
        """Return what can be said of a job. No query."""
        if found := self.prospects.get(job.pk):
            return found
        if out_of_hours(job, self.now):
            return StartEstimate(None, waits_for_hours(job, self.now), job.not_before)
        if job.state == Job.State.QUEUED:
            return self._prospect(None, job_groups.build_group_from_job(job), None, None)
        return StartEstimate(None, job.reason)

    def if_queued(self, job: Job) -> StartEstimate:
        """Return what could be said of a job without a row if it stood behind all that wait. No query."""
        line = job_groups.build_group_from_job(job)
        begins = min((lane.next_at for lane in self._fitting(line) if lane.next_at), default=None)
        return self._prospect(None, line, begins, begins + self.durations.of(job) if begins else None)

    def _lanes(self) -> Iterator[SlotSchedule]:
        """Yield the lanes of all nodes that are here. Three queries."""
        active = Lease.objects.filter(state=Lease.State.ACTIVE).select_related("job")
        leases = {(lease.node_id, lease.lane): lease for lease in active}
        for node in Node.objects.filter(state=Node.State.ONLINE).prefetch_related("windows"):
            for lane in range(max(node.lanes, 1)):
                yield self._lane(node, lane, leases.get((node.pk, lane)))

    def _lane(self, node: Node, lane: int, lease: Lease | None) -> SlotSchedule:
        lent = list(node.windows.all())
        done = max(self.now, node.rest_until or self.now)
        if lease:
            done = self.now + self.durations.left(lease.job, lease.seconds)
        seeker = replace(node_slots.build_node_slot(node, self.now, lane=lane, lent=lent), seconds_left=None)
        free = (
            node_slots.find_next_opening(node, done, lent)
            if node_slots.get_seconds_left(node, done, lent) == 0
            else done
        )
        return SlotSchedule(seeker, free, free, busy=lease is not None)

    def _look_ahead(self) -> None:
        """Let the lanes take jobs until there is nothing left for them."""
        used = job_groups.sum_author_seconds(self.now)
        each = load_ordered_jobs(self.now, used)
        times = self._taken(each, used)
        for position, (job, line) in enumerate(each, 1):
            self.prospects[job.pk] = self._prospect(position, line, *times.get(job.pk, (None, None)))

    def _taken(self, each: list[tuple[Job, JobGroup]], used: dict[str, float]) -> dict[int, tuple[datetime, datetime]]:
        """Return when each job begins and ends: a lane that is free takes what matching would give it then."""
        waiting, times = group_jobs(each), {}
        queue = matching.JobQueue((replace(jobs[0][1], jobs=len(jobs)) for jobs in waiting.values()), used, self.now)
        useful = {id(lane): lane for jobs in waiting.values() for lane in self._fitting(jobs[0][1])}
        free = [(lane.next_at, number, lane) for number, lane in enumerate(useful.values()) if lane.next_at]
        heapify(free)
        while free:
            begins, number, lane = heappop(free)
            line = next(queue.fitting(lane.seeker), None)
            if line is None:
                continue
            job, _ = waiting[normalize_group(line)].popleft()
            queue.served(line)
            lane.next_at = ends = begins + self.durations.of(job)
            times[job.pk] = begins, ends
            heappush(free, (ends, number, lane))
        return times

    def _fitting(self, line: JobGroup) -> list[SlotSchedule]:
        """Return the lanes that may serve the line, whenever they are free: those that are free soonest."""
        if line.needs not in self._fits:
            fitting = [lane for lane in self.lanes if matching.find_obstacle(line, lane.seeker) is None]
            fitting.sort(key=lambda lane: (lane.free_at is None, lane.free_at or self.now))
            self._fits[line.needs] = fitting[:HORIZON]
        return self._fits[line.needs]

    def _prospect(
        self, position: int | None, line: JobGroup, begins: datetime | None, ends: datetime | None
    ) -> StartEstimate:
        """Return what can be said of a job of the line."""
        fitting, wanted = self._fitting(line), f"Waits for a node {matching.describe_needs(line)}"
        if not fitting:
            return StartEstimate(position, f"{wanted}: none is online. It leaves as soon as one is.")
        next_free = fitting[0].free_at
        if next_free is None:
            return StartEstimate(position, f"{wanted}: when one is lent again is not known.")
        if begins and begins <= self.now:
            return StartEstimate(position, "The next free node takes it.", begins, ends)
        if next_free <= self.now:
            return StartEstimate(position, f"{wanted}; others go before it.", begins, ends)
        busy = sum(lane.busy for lane in fitting)
        used = f"{busy} {'is' if busy == 1 else 'are'} in use" if busy else "none is lent just now"
        return StartEstimate(position, f"{wanted}; {used}", begins, ends, next_free)


def format_time(at: datetime, now: datetime) -> str:
    """Return a time of day, with the day where it is not within a day."""
    pattern = "%H:%M" if at - now < timedelta(days=1) else "%-d %B, %H:%M"
    return f"{at.astimezone(UTC):{pattern}} UTC"


def out_of_hours(job: Job, now: datetime) -> bool:
    return job.state == Job.State.QUEUED and job.not_before is not None and job.not_before > now


def waits_for_hours(job: Job, now: datetime) -> str:
    assert job.not_before is not None, "only a job with hours waits for them"
    return f"It starts in the hours of its track only. They begin at {format_time(job.not_before, now)}."


def normalize_group(line: JobGroup) -> JobGroup:
    """Return what a line has in common with those that matching takes for the same."""
    return replace(line, waiting_since=EARLIEST, jobs=1)


def group_jobs(each: Iterable[tuple[Job, JobGroup]]) -> dict[JobGroup, deque[tuple[Job, JobGroup]]]:
    """Return the jobs of each line, oldest first."""
    found: dict[JobGroup, deque[tuple[Job, JobGroup]]] = {}
    for job, line in sorted(each, key=lambda pair: (pair[1].waiting_since, pair[0].pk)):
        found.setdefault(normalize_group(line), deque()).append((job, line))
    return found


def load_ordered_jobs(now: datetime, used: dict[str, float]) -> list[tuple[Job, JobGroup]]:
    """Return the jobs that wait, each as a line of its own, in the order of the queue. One query."""
    waiting = Job.objects.filter(job_groups.is_startable(now), state=Job.State.QUEUED)
    each = [
        (job, job_groups.build_group_from_job(job)) for job in waiting.order_by(*(Job._meta.ordering or ()))[:HORIZON]
    ]
    each.sort(key=lambda pair: (pair[1].author, matching.rank_group(pair[1], 0.0, now), pair[0].pk))
    ranked = []
    for author, theirs in groupby(each, key=lambda pair: pair[1].author):
        share = used.get(author, 0.0)
        for job, line in theirs:  # what comes before counts for the author's share
            ranked.append(((*matching.rank_group(line, share, now), job.pk), job, line))
            share += job.expected_seconds
    return [(job, line) for _, job, line in sorted(ranked, key=lambda found: found[0])]


def estimate_start(job: Job, now: datetime) -> StartEstimate:
    """Return the prospect of one job; for a page with several take one `Outlook` for all."""
    return QueueEstimates(now).of(job)
