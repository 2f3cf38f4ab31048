"""Expired leases, jobs whose lease is gone, nodes that are offline, and times of a clock that was ahead."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Exists, OuterRef
from django.utils import timezone
from django_celery_beat.models import PeriodicTask, PeriodicTasks

from scheduler import leases, pool, transitions
from scheduler.models import SITE_ACTOR, Event, Job, Lease, Node, Sweep
from trainer import protocol

logger = logging.getLogger(__name__)

SITE_DOWN_AFTER = timedelta(seconds=30)
"""Time without a sweep after which the site counts as having been down. Expired leases then get another period."""
SWEEP_FROM_POLLS_AFTER = timedelta(seconds=10)
"""Time without a sweep after which a poll sweeps, so that the site never counts as down while nodes poll."""
LOST_REPLY_AFTER = timedelta(seconds=10)
"""A node that polls this long after it got a lease, and never sent a heartbeat for it, has not received the reply."""


def sweep_if_due(now: datetime) -> None:
    """Sweep from a poll if Celery is down. One query if it is not."""
    recent = Sweep.objects.filter(pk=1, at__gt=now - SWEEP_FROM_POLLS_AFTER, at__lte=get_latest_time(now))
    if not recent.filter(~Exists(Lease.objects.expired(now))).exists():
        sweep_leases(now)


def sweep_leases(now: datetime | None = None) -> int:
    """Requeue the jobs of silent nodes; return how many. Safe to run at any time and concurrently."""
    now = now or timezone.now()
    repair_clock(now)
    if record_sweep(now):
        Lease.objects.expired(now).update(expires_at=now + leases.get_lease_duration())
        return 0
    lost = 0
    for lease in Lease.objects.expired(now).select_related("job", "node"):
        try:
            lost += leases.lose_lease(lease, f"{lease.node.name} fell silent.", expired_before=now)
        except Exception:  # one job must not keep the leases of others alive
            logger.exception("The job of %s could not be requeued", lease)
    pool.mark_silent_nodes_offline(now)
    return lost + requeue_orphaned_jobs()


def get_latest_time(now: datetime) -> datetime:
    """Return the latest time that a row may have whose clock was right."""
    return now + leases.get_lease_duration()


def repair_clock(now: datetime) -> bool:
    """Correct what a clock that was ahead has written, and record that; return whether there was anything.

    Celery beat starts no task whose last start is in the future, silent nodes would keep their leases, and no sweep
    would be due, each for as long as the clock was ahead.
    """
    latest = get_latest_time(now)
    sweep = Sweep.objects.filter(pk=1).first()
    is_sweep_ahead = sweep is not None and sweep.at > latest
    tasks = PeriodicTask.objects.filter(last_run_at__gt=latest).update(last_run_at=now)
    if tasks:
        PeriodicTasks.update_changed()  # so that a running beat reads them again
    if is_sweep_ahead:
        active = Lease.objects.filter(state=Lease.State.ACTIVE)
        active.filter(expires_at__gt=latest).update(expires_at=latest)
        active.filter(started_at__gt=latest).update(started_at=now)
        Node.objects.filter(last_seen__gt=latest).update(last_seen=now)
        Sweep.objects.filter(pk=1, at__gt=latest).update(at=now)
    if tasks or is_sweep_ahead:
        logger.error("The clock was ahead: the times of %d periodic tasks, of leases and sweeps are corrected", tasks)
    if sweep and (tasks or is_sweep_ahead):
        Event.record(SITE_ACTOR, sweep, "The clock was ahead: times of tasks, leases and sweeps are corrected.")
    return bool(tasks) or is_sweep_ahead


def record_sweep(now: datetime) -> bool:
    """Record the time of this sweep; return whether the site was down before it."""
    last = Sweep.objects.filter(pk=1).first()
    if last is None:
        Sweep.objects.update_or_create(pk=1, defaults={"at": now})
        return False
    Sweep.objects.filter(pk=1, at__lt=now).update(at=now)
    return now - last.at > SITE_DOWN_AFTER


def requeue_orphaned_jobs() -> int:
    """Requeue jobs that count as leased and have no lease, because their node was deleted."""
    active = Lease.objects.filter(job=OuterRef("pk"), state=Lease.State.ACTIVE)
    orphans = Job.objects.filter(~Exists(active), state=Job.State.LEASED).order_by()
    return sum(requeue_orphaned_job(pk) for pk in orphans.values_list("pk", flat=True))


@transaction.atomic
def requeue_orphaned_job(pk: int) -> bool:
    """Lock a job, check again that it has no lease, and requeue it."""
    job = Job.objects.select_for_update().filter(pk=pk, state=Job.State.LEASED).first()
    if job is None or job.leases.filter(state=Lease.State.ACTIVE).exists():
        return False
    transitions.requeue_job(job, SITE_ACTOR, "Its node is gone.", counts=True)
    return True


def release_stale_leases(node: Node, message: protocol.Poll, now: datetime) -> Lease | None:
    """End the leases that the polling node cannot hold any more; return a lease that the polling slot still holds."""
    for lease in Lease.objects.held_by(node).select_related("job", "node"):
        if lease.pk in message.abandoned:
            leases.lose_lease(lease, f"{node.name} was restarted.")
        elif lease.slot != message.lane:
            continue
        elif lease.heartbeat_at is None and now - lease.started_at > LOST_REPLY_AFTER:
            leases.lose_lease(lease, f"{node.name} never began.")
        else:
            return lease
    return None
