"""Celery tasks of the queue. Each is idempotent."""

from __future__ import annotations

from celery import shared_task

from scheduler import lease_sweeper, preemption
from scheduler.retention import delete_expired


@shared_task  # type: ignore[untyped-decorator]
def expire_leases() -> None:
    """Requeue the jobs of silent nodes and mark these nodes as offline."""
    lease_sweeper.sweep_leases()


@shared_task  # type: ignore[untyped-decorator]
def retention() -> None:
    """Delete expired rows and files."""
    delete_expired()


@shared_task  # type: ignore[untyped-decorator]
def make_room() -> None:
    """Preempt playground, ladder and monthly runs for waiting nightlies."""
    preemption.make_room()
