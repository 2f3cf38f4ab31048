"""Making room: a nightly that waits gets the place of a playground run, at that run's next checkpoint.

Only where it would be next there, and only of as many runs as there are nightlies without a place. Whoever has been
asked already is counted on, so nobody is asked twice, and no second one for the same nightly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Max
from django.utils import timezone

from scheduler import job_groups, matching, node_slots, transitions
from scheduler.matching import JobGroup, NodeSlot
from scheduler.models import Checkpoint, Job, Lease, Node

SITE = "site"
FREE_SLOT_GRACE = timedelta(minutes=1)
"""So long a nightly is left to nodes that seem free; if none has taken it by then, something keeps them from it."""
MAX_NIGHTLIES = 20
"""Nightlies that are looked after in one go."""


@dataclass
class OccupiedSlot:
    """A lane of a node at work, and what it does."""

    node: Node
    seeker: NodeSlot
    lease: Lease | None
    saved_at: datetime | None = None
    """When the last checkpoint of its job came."""
    promised: bool = False
    """To a nightly that comes before."""

    @property
    def is_asked(self) -> bool:
        job = self.lease.job if self.lease else None
        return job is not None and job.preemptible and job.stop_requested == "finish" and not job.hold_requested

    def gives_way_to(self, line: JobGroup, now: datetime) -> bool:
        """Whether its job may be asked back, and would then come after the line."""
        job = self.lease.job if self.lease else None
        if job is None or not job.preemptible or job.stop_requested:
            return False
        return matching.get_lifted_priority(line, now) < matching.get_lifted_priority(
            job_groups.build_group_from_job(job), now
        )

    def at_stake(self, now: datetime) -> timedelta:
        """Return how much work would be done again if its last checkpoint went wrong."""
        assert self.lease is not None, "only who works has something to lose"
        return now - max(self.saved_at or self.lease.started_at, self.lease.started_at)


def make_room(now: datetime | None = None) -> int:
    """Ask for the runs back whose places the waiting nightlies need; return how many were asked. Safe to repeat."""
    now = now or timezone.now()
    nightlies = Job.objects.filter(state=Job.State.QUEUED, priority=Job.Priority.NIGHTLY).order_by("queued_at", "pk")
    waiting = list(nightlies[:MAX_NIGHTLIES])
    if not waiting:
        return 0
    lanes = list(load_slots(now))
    return sum(make_room_for(job, lanes, now) for job in waiting)


def make_room_for(job: Job, lanes: Collection[OccupiedSlot], now: datetime) -> bool:
    """Promise the nightly a lane; return whether somebody was asked for it."""
    line = job_groups.build_group_from_job(job)
    fitting = [lane for lane in lanes if not lane.promised and matching.find_obstacle(line, lane.seeker) is None]
    free = (lane for lane in fitting if lane.lease is None and now - job.state_since < FREE_SLOT_GRACE)
    coming = next(free, None) or next((lane for lane in fitting if lane.is_asked), None)
    if coming:
        coming.promised = True
        return False
    giving = [lane for lane in fitting if lane.gives_way_to(line, now)]
    if not giving:
        return False
    least = min(giving, key=lambda lane: lane.at_stake(now))
    assert least.lease is not None, "whoever gives way has a lease"
    least.promised = True
    return transitions.request_hand_back(
        least.lease.job, SITE, "Tonight's train needs its node; it goes on when one is free."
    )


def load_slots(now: datetime) -> Iterator[OccupiedSlot]:
    """Yield the lanes of all nodes that take jobs just now. Four queries, however many there are."""
    active = Lease.objects.filter(state=Lease.State.ACTIVE).select_related("job")
    leases = {(lease.node_id, lease.lane): lease for lease in active}
    saved = dict(
        Checkpoint.objects.filter(job__in=[lease.job_id for lease in leases.values() if lease.job.preemptible])
        .order_by()
        .values_list("job")
        .annotate(at=Max("created_at"))
    )
    for node in Node.objects.filter(state=Node.State.ONLINE).prefetch_related("windows"):
        if node.rest_until and node.rest_until > now:
            continue
        for lane in range(max(node.lanes, 1)):
            lease = leases.get((node.pk, lane))
            seeker = node_slots.build_node_slot(node, now, lane=lane, lent=list(node.windows.all()))
            yield OccupiedSlot(node, seeker, lease, saved.get(lease.job_id) if lease else None)
