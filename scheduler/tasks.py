"""What Celery runs for the queue: each task calls one function that is safe to run twice."""

from __future__ import annotations

from celery import shared_task

from scheduler import lease_sweeper, preemption
from scheduler import retention as forgetting
from scheduler.campaigns import collation, producer, release, sessions, transitions, withdrawal
from scheduler.campaigns import retention as packets_forgetting


@shared_task  # type: ignore[untyped-decorator]
def expire_leases() -> None:
    """Put the jobs of silent nodes back into the queue, and say which nodes are offline."""
    lease_sweeper.sweep_leases()


@shared_task  # type: ignore[untyped-decorator]
def retention() -> None:
    """Forget what nobody needs any more."""
    forgetting.delete_expired()
    packets_forgetting.forget_old()


@shared_task  # type: ignore[untyped-decorator]
def make_room() -> None:
    """Let waiting nightlies take the places of playground runs."""
    preemption.make_room()


@shared_task  # type: ignore[untyped-decorator]
def produce_packets() -> None:
    """Read on in the sources of campaigns whose packets run out."""
    producer.produce_all()


@shared_task  # type: ignore[untyped-decorator]
def keep_campaigns() -> None:
    """Keep sittings in the queue, take back what was left lying, withdraw what bad volunteers wrote."""
    sessions.top_up_all()
    release.of_ended_leases()
    withdrawal.withdraw_all()


@shared_task  # type: ignore[untyped-decorator]
def collate_packets() -> None:
    """Make shards of what was accepted, and end the campaigns of which nothing is left."""
    collation.collate_all()
    transitions.close_all()
