"""Celery tasks of the dataset swarm. Each calls functions that are safe to run twice."""

from __future__ import annotations

from celery import shared_task

from scheduler.campaigns import producer, release, retention, sessions, shards, transitions, withdrawal


@shared_task  # type: ignore[untyped-decorator]
def produce_packets() -> None:
    """Create packets for the campaigns that run out of them."""
    producer.produce_packets()


@shared_task  # type: ignore[untyped-decorator]
def maintain_campaigns() -> None:
    """Queue sessions, release packets of ended leases and withdraw texts of banned volunteers."""
    sessions.queue_sessions()
    release.release_ended_leases()
    withdrawal.withdraw_banned()


@shared_task  # type: ignore[untyped-decorator]
def update_shards() -> None:
    """Write accepted texts into shards and finish complete campaigns."""
    shards.update_shards()
    transitions.finish_complete_campaigns()


@shared_task  # type: ignore[untyped-decorator]
def delete_expired_texts() -> None:
    """Delete old texts that are in no dataset."""
    retention.delete_expired()
