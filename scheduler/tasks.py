"""What Celery runs for the queue: each task calls one function that is safe to run twice."""

from __future__ import annotations

from celery import shared_task

from scheduler import expiry, preemption
from scheduler import retention as forgetting
from scheduler.packets import campaigns, collation, giving_back, producer, sittings, withdrawal
from scheduler.packets import forgetting as packets_forgetting


@shared_task  # type: ignore[untyped-decorator]
def expire_leases() -> None:
    """Put the jobs of silent nodes back into the queue, and say which nodes are offline."""
    expiry.sweep()


@shared_task  # type: ignore[untyped-decorator]
def retention() -> None:
    """Forget what nobody needs any more."""
    forgetting.forget_old()
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
    sittings.top_up_all()
    giving_back.of_ended_leases()
    withdrawal.withdraw_all()


@shared_task  # type: ignore[untyped-decorator]
def collate_packets() -> None:
    """Make shards of what was accepted, and end the campaigns of which nothing is left."""
    collation.collate_all()
    campaigns.close_all()
