"""What Celery runs for the board: each task calls one function that is safe to run twice."""

from __future__ import annotations

from datetime import UTC

from celery import shared_task
from django.db import transaction
from django.utils import timezone

from leaderboard import events, outbox
from leaderboard.integrations.github import comments, deliveries
from leaderboard.job_handlers import generation, release_scores, swarm_runs, train
from leaderboard.models import Track
from leaderboard.notifications import delivery
from leaderboard.publishing import datasets, releases
from leaderboard.rankings import confirmations as confirming
from leaderboard.rankings import standings_store
from leaderboard.schedule import ladder, track_hours
from leaderboard.schedule import monthly as months
from leaderboard.schedule import nightly as nights


@shared_task  # type: ignore[untyped-decorator]
def nightly() -> None:
    """Tonight's train."""
    nights.tonight(timezone.now())


@shared_task  # type: ignore[untyped-decorator]
def monthly() -> None:
    """The month's best entries, with seven times the budget."""
    months.depart_all(timezone.now())


@shared_task  # type: ignore[untyped-decorator]
def morning_post() -> None:
    """All aboard: once a day."""
    with transaction.atomic():
        delivery.tell("morning", timezone.now().astimezone(UTC).date().isoformat())


@shared_task  # type: ignore[untyped-decorator]
def keep_hours() -> None:
    """Move jobs on to the next hours of their tracks."""
    track_hours.keep()


@shared_task  # type: ignore[untyped-decorator]
def cut_releases() -> None:
    """Weights of long runs, every ten percent."""
    releases.cut_all()
    release_scores.queue_all()


@shared_task  # type: ignore[untyped-decorator]
def give_up_prompts() -> None:
    """Prompts that no node took, and old ones."""
    generation.give_up_old()


@shared_task  # type: ignore[untyped-decorator]
def keep_seats() -> None:
    """Seats of the swarms that are going on."""
    swarm_runs.top_up_all()


@shared_task  # type: ignore[untyped-decorator]
def queue_scores() -> None:
    """Pick up what a crash left between the end of a training and its scoring."""
    train.catch_up()


@shared_task  # type: ignore[untyped-decorator]
def fill_ladders() -> None:
    """Keep every track's ladder filled, behind everything else."""
    ladder.fill_all()


@shared_task  # type: ignore[untyped-decorator]
def confirmations() -> None:
    """Start, revive and decide the confirmation of record candidates."""
    confirming.process_confirmations()


@shared_task  # type: ignore[untyped-decorator]
def carry_out(effect: int) -> None:
    """One effect outside of the site."""
    outbox.carry_out(effect)


@shared_task  # type: ignore[untyped-decorator]
def carry_out_due() -> None:
    """Effects that no worker was told of."""
    outbox.catch_up()


@shared_task  # type: ignore[untyped-decorator]
def announce() -> None:
    """Tell pull requests and subscribers what has happened."""
    events.announce()


@shared_task  # type: ignore[untyped-decorator]
def tell_progress() -> None:
    """Tell pull requests how far their trainings are."""
    comments.progress()


@shared_task  # type: ignore[untyped-decorator]
def read_deliveries() -> None:
    """What GitHub told the site."""
    deliveries.catch_up()


@shared_task  # type: ignore[untyped-decorator]
def forget_deliveries() -> None:
    """Payloads that nobody needs any more."""
    deliveries.forget_old()


@shared_task  # type: ignore[untyped-decorator]
def publish_datasets() -> None:
    """Queue the datasets of campaigns that the Hub does not have completely."""
    datasets.enqueue_datasets()


@shared_task  # type: ignore[untyped-decorator]
def recompute_standings(track_id: int) -> None:
    """Bring a track's stored standings up to date."""
    if track := Track.objects.select_related("season").filter(pk=track_id).first():
        standings_store.recompute_standings(track)


@shared_task  # type: ignore[untyped-decorator]
def recompute_stale_standings() -> None:
    """Bring the stored standings up to date that no task was enqueued for."""
    standings_store.recompute_stale_standings()
