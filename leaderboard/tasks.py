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
    nights.start_nightly_runs(timezone.now())


@shared_task  # type: ignore[untyped-decorator]
def monthly() -> None:
    """The month's best entries, with seven times the budget."""
    months.start_monthly_runs(timezone.now())


@shared_task  # type: ignore[untyped-decorator]
def send_morning_report() -> None:
    """All aboard: once a day."""
    with transaction.atomic():
        delivery.notify_subscribers("morning", timezone.now().astimezone(UTC).date().isoformat())


@shared_task  # type: ignore[untyped-decorator]
def update_track_hours() -> None:
    """Move jobs on to the next hours of their tracks."""
    track_hours.update_jobs()


@shared_task  # type: ignore[untyped-decorator]
def cut_releases() -> None:
    """Weights of long runs, every ten percent."""
    releases.cut_releases()
    release_scores.queue_release_scores()


@shared_task  # type: ignore[untyped-decorator]
def expire_prompts() -> None:
    """Prompts that no node took, and old ones."""
    generation.expire_generations()


@shared_task  # type: ignore[untyped-decorator]
def fill_seats() -> None:
    """Seats of the swarms that are going on."""
    swarm_runs.fill_all_seats()


@shared_task  # type: ignore[untyped-decorator]
def queue_scores() -> None:
    """Pick up what a crash left between the end of a training and its scoring."""
    train.recover_unfinished()


@shared_task  # type: ignore[untyped-decorator]
def fill_ladders() -> None:
    """Keep every track's ladder filled, behind everything else."""
    ladder.fill_ladders()


@shared_task  # type: ignore[untyped-decorator]
def update_confirmations() -> None:
    """Start, revive and decide the confirmation of record candidates."""
    confirming.process_confirmations()


@shared_task  # type: ignore[untyped-decorator]
def process_message(effect: int) -> None:
    """One effect outside of the site."""
    outbox.process_message(effect)


@shared_task  # type: ignore[untyped-decorator]
def process_due_messages() -> None:
    """Effects that no worker was told of."""
    outbox.process_due()


@shared_task  # type: ignore[untyped-decorator]
def announce_events() -> None:
    """Tell pull requests and subscribers what has happened."""
    events.announce_events()


@shared_task  # type: ignore[untyped-decorator]
def report_progress() -> None:
    """Tell pull requests how far their trainings are."""
    comments.report_progress()


@shared_task  # type: ignore[untyped-decorator]
def process_deliveries() -> None:
    """What GitHub told the site."""
    deliveries.process_due()


@shared_task  # type: ignore[untyped-decorator]
def delete_old_payloads() -> None:
    """Payloads that nobody needs any more."""
    deliveries.delete_old_payloads()


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
