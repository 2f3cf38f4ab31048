"""Preemption: a waiting nightly gets the slot of a preemptible run at that run's next checkpoint.

Only if the nightly would be next there, and only as many runs as there are nightlies without a slot. Runs that were
requested before count, so each run gets one request and each nightly one slot.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Max
from django.utils import timezone

from scheduler import job_groups, matching, node_slots, transitions
from scheduler.matching import JobGroup, NodeSlot
from scheduler.models import SITE_ACTOR, Checkpoint, Job, Lease, Node

FREE_SLOT_GRACE = timedelta(minutes=1)
"""A nightly waits so long for nodes that seem free before a run is preempted."""
MAX_NIGHTLIES = 20
"""Nightly jobs handled per call."""


@dataclass
class OccupiedSlot:
    """A slot of an online node, and its lease."""

    node: Node
    node_slot: NodeSlot
    lease: Lease | None
    saved_at: datetime | None = None
    """Time of its job's last checkpoint."""
    reserved: bool = False
    """Whether an earlier nightly job in the queue will use this slot."""

    @property
    def is_stopping(self) -> bool:
        job = self.lease.job if self.lease else None
        return job is not None and job.preemptible and job.stop_requested == "finish" and not job.hold_requested

    def can_yield_to(self, group: JobGroup, now: datetime) -> bool:
        """Return whether its job may be preempted and would then come after the group."""
        job = self.lease.job if self.lease else None
        if job is None or not job.preemptible or job.stop_requested:
            return False
        return matching.get_lifted_priority(group, now) < matching.get_lifted_priority(
            job_groups.build_group_from_job(job), now
        )

    def get_unsaved_time(self, now: datetime) -> timedelta:
        """Return how much work is not yet in a checkpoint."""
        assert self.lease is not None, "the slot has a lease"
        return now - max(self.saved_at or self.lease.started_at, self.lease.started_at)


def make_room(now: datetime | None = None) -> int:
    """Stop preemptible runs for waiting nightlies; return how many stops were requested. Idempotent."""
    now = now or timezone.now()
    nightlies = Job.objects.filter(state=Job.State.QUEUED, priority=Job.Priority.NIGHTLY).order_by("queued_at", "pk")
    waiting = list(nightlies[:MAX_NIGHTLIES])
    if not waiting:
        return 0
    slots = list(load_slots(now))
    return sum(make_room_for(job, slots, now) for job in waiting)


def make_room_for(job: Job, slots: Collection[OccupiedSlot], now: datetime) -> bool:
    """Reserve a slot for the nightly; return whether a run's stop was requested."""
    group = job_groups.build_group_from_job(job)
    fitting = [slot for slot in slots if not slot.reserved and matching.find_obstacle(group, slot.node_slot) is None]
    free = (slot for slot in fitting if slot.lease is None and now - job.state_since < FREE_SLOT_GRACE)
    coming = next(free, None) or next((slot for slot in fitting if slot.is_stopping), None)
    if coming:
        coming.reserved = True
        return False
    candidates = [slot for slot in fitting if slot.can_yield_to(group, now)]
    if not candidates:
        return False
    least = min(candidates, key=lambda slot: slot.get_unsaved_time(now))
    assert least.lease is not None, "a slot that yields has a lease"
    least.reserved = True
    return transitions.request_hand_back(
        least.lease.job, SITE_ACTOR, "Tonight's run needs its node; it resumes when one is free."
    )


def load_slots(now: datetime) -> Iterator[OccupiedSlot]:
    """Yield the slots of all nodes that take jobs now. Four queries, however many there are."""
    active = Lease.objects.filter(state=Lease.State.ACTIVE).select_related("job")
    leases = {(lease.node_id, lease.slot): lease for lease in active}
    saved = dict(
        Checkpoint.objects.uploaded()
        .filter(job__in=[lease.job_id for lease in leases.values() if lease.job.preemptible])
        .order_by()
        .values_list("job")
        .annotate(at=Max("created_at"))
    )
    for node in Node.objects.filter(state=Node.State.ONLINE).prefetch_related("windows"):
        if node.rest_until and node.rest_until > now:
            continue
        for slot in range(max(node.slots, 1)):
            lease = leases.get((node.pk, slot))
            node_slot = node_slots.build_node_slot(node, now, slot=slot)
            yield OccupiedSlot(node, node_slot, lease, saved.get(lease.job_id) if lease else None)
