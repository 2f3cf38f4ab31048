"""What Celery runs for the queue: each task calls one function that is safe to run twice."""

from __future__ import annotations

from celery import shared_task

from scheduler import lease_sweeper, preemption
from scheduler import retention as forgetting


@shared_task  # type: ignore[untyped-decorator]
def expire_leases() -> None:
    """Put the jobs of silent nodes back into the queue, and say which nodes are offline."""
    lease_sweeper.sweep_leases()


@shared_task  # type: ignore[untyped-decorator]
def retention() -> None:
    """Forget what nobody needs any more."""
    forgetting.delete_expired()


@shared_task  # type: ignore[untyped-decorator]
def make_room() -> None:
    """Let waiting nightlies take the places of playground runs."""
    preemption.make_room()
