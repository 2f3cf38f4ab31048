"""Sweeping: leases whose nodes fell silent, jobs that lost their lease otherwise, nodes that are gone."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import BigIntegerField, DateTimeField, Exists, OuterRef, QuerySet
from django.utils import timezone

from scheduler import leases, pool, transitions
from scheduler.models import Job, Lease, Node, Sweep
from scheduler.prepared import Later, Prepared, PreparedUpdate
from trainer import protocol

SITE_DOWN_AFTER = timedelta(seconds=30)
"""Without a sweep for so long the site itself was down: nodes that could not reach it get another chance."""
LOST_REPLY_AFTER = timedelta(seconds=10)
"""A node that asks for work this long after it was given some, and never said a word about it, missed the answer."""

NOW = Later("now", DateTimeField())


def sweep_leases(now: datetime | None = None) -> int:
    """Put the jobs of silent nodes back into the queue; return how many. Safe to run at any time, and by several."""
    now = now or timezone.now()
    if record_sweep(now):
        Lease.objects.expired(now).update(expires_at=now + leases.get_lease_duration())
        return 0
    lost = 0
    if EXPIRED.tuples(now=now):
        lost = sum(
            leases.lose_lease(lease, f"{lease.node.name} fell silent.", expired_before=now)
            for lease in Lease.objects.expired(now).select_related("job", "node")
        )
    pool.mark_silent_nodes_offline(now)
    return lost + requeue_orphaned_jobs()


EXPIRED = Prepared(lambda: Lease.objects.expired(NOW).order_by().values_list("pk")[:1])
"""Asked by every process every second: is there any?"""


def record_sweep(now: datetime) -> bool:
    """Note this sweep; return whether the one before is suspiciously long ago."""
    last = LAST.first()
    if last is None:
        Sweep.objects.update_or_create(pk=1, defaults={"at": now})
        return False
    SWEPT.run(now=now)
    return now - last.at > SITE_DOWN_AFTER


LAST = Prepared(lambda: Sweep.objects.filter(pk=1))
SWEPT = PreparedUpdate(lambda: (Sweep.objects.filter(pk=1, at__lt=NOW), {"at": NOW}))


def requeue_orphaned_jobs() -> int:
    """Put back jobs that count as leased and have no lease: somebody deleted their node."""
    return sum(requeue_orphaned_job(pk) for (pk,) in ORPHANS.tuples())


def orphans() -> QuerySet[Job, tuple[int]]:
    held = Lease.objects.filter(job=OuterRef("pk"), state=Lease.State.ACTIVE)
    return Job.objects.filter(~Exists(held), state=Job.State.LEASED).order_by().values_list("pk")


ORPHANS = Prepared(orphans)


@transaction.atomic
def requeue_orphaned_job(pk: int) -> bool:
    """Put back one job without a lease, if it still is that: first the row is locked, then we look again."""
    job = Job.objects.select_for_update().filter(pk=pk, state=Job.State.LEASED).first()
    if job is None or job.leases.filter(state=Lease.State.ACTIVE).exists():
        return False
    return transitions.requeue_job(job, leases.SITE, "Its node is gone.", counts=True)


HELD = Prepared(lambda: Lease.objects.filter(node=Later("node", BigIntegerField()), state=Lease.State.ACTIVE))


def release_stale_leases(node: Node, message: protocol.Poll, now: datetime) -> Lease | None:
    """A lane asks for work: take away what the node cannot hold any more; return a lease that the lane still holds.

    No query for a node of which it is known that it holds none (`auth.node_of`)."""
    for lease in HELD.rows(node=node.pk) if vars(node).get("holds", True) else ():
        if lease.pk in message.abandoned:
            leases.lose_lease(lease, f"{node.name} was restarted.")
        elif lease.lane != message.lane:
            continue
        elif lease.heartbeat_at is None and now - lease.started_at > LOST_REPLY_AFTER:
            leases.lose_lease(lease, f"{node.name} never began.")
        else:
            return lease
    return None
