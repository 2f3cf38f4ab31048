"""Celery tasks of the leaderboard. `dailytrain.schedule` says when they run; all are safe to run twice."""

from __future__ import annotations

from datetime import UTC

from celery import shared_task
from django.db import transaction
from django.utils import timezone

from leaderboard import events, night_nodes, outbox, track_hours
from leaderboard.integrations.github import comments, deliveries
from leaderboard.job_handlers import generation, score, swarm, train
from leaderboard.models import Track
from leaderboard.notifications import delivery, site_alerts
from leaderboard.publishing import datasets, release_finetunes, releases, season_datasets, test_secrets
from leaderboard.rankings import confirmations, standings_store
from leaderboard.schedule import ladder
from leaderboard.schedule import nightly as nightly_runs
from leaderboard.schedule.monthly import start_monthly_runs
from leaderboard.submissions import repositories

RETRIES = 20
"""Of a task that is due once a night or a month: after 1, 2, 4 and 8 minutes, then every ten, for three hours."""


@shared_task(autoretry_for=(Exception,), retry_backoff=60, max_retries=RETRIES)  # type: ignore[untyped-decorator]
def nightly() -> None:
    nightly_runs.start_nightly_runs(timezone.now())


@shared_task  # type: ignore[untyped-decorator]
def start_late_nights() -> None:
    nightly_runs.start_late_nights(timezone.now())


@shared_task(autoretry_for=(Exception,), retry_backoff=60, max_retries=RETRIES)  # type: ignore[untyped-decorator]
def monthly() -> None:
    start_monthly_runs(timezone.now())


@shared_task  # type: ignore[untyped-decorator]
def send_morning_report() -> None:
    with transaction.atomic():
        delivery.notify_subscribers("morning", timezone.now().astimezone(UTC).date().isoformat())


@shared_task  # type: ignore[untyped-decorator]
def send_alerts() -> None:
    for about in site_alerts.list_due_alerts(timezone.now()):
        with transaction.atomic():
            delivery.notify_subscribers("alert", about)


@shared_task  # type: ignore[untyped-decorator]
def update_track_hours() -> None:
    track_hours.update_jobs()


@shared_task  # type: ignore[untyped-decorator]
def update_night_needs() -> None:
    night_nodes.update_night_needs(timezone.now())


@shared_task  # type: ignore[untyped-decorator]
def publish_and_score_releases() -> None:
    releases.publish_last_releases()
    score.queue_release_scores()


@shared_task  # type: ignore[untyped-decorator]
def finetune_releases() -> None:
    release_finetunes.start_finetunes()


@shared_task  # type: ignore[untyped-decorator]
def delete_old_milestones() -> None:
    releases.delete_old_milestones(timezone.now())


@shared_task  # type: ignore[untyped-decorator]
def expire_prompts() -> None:
    generation.expire_generations()


@shared_task  # type: ignore[untyped-decorator]
def fill_seats() -> None:
    swarm.fill_all_seats()


@shared_task  # type: ignore[untyped-decorator]
def store_configurations() -> None:
    train.store_configurations()


@shared_task  # type: ignore[untyped-decorator]
def fill_ladders() -> None:
    ladder.fill_ladders()


@shared_task  # type: ignore[untyped-decorator]
def update_confirmations() -> None:
    confirmations.process_confirmations()


@shared_task  # type: ignore[untyped-decorator]
def process_message(message: int) -> None:
    outbox.process_message(message)


@shared_task  # type: ignore[untyped-decorator]
def process_due_messages() -> None:
    outbox.process_due()


@shared_task  # type: ignore[untyped-decorator]
def process_long_message(message: int) -> None:
    outbox.process_message(message)


@shared_task  # type: ignore[untyped-decorator]
def process_due_long_messages() -> None:
    outbox.process_due(are_long=True)


@shared_task  # type: ignore[untyped-decorator]
def announce_events() -> None:
    events.announce_events()


@shared_task  # type: ignore[untyped-decorator]
def report_progress() -> None:
    comments.report_progress()


@shared_task  # type: ignore[untyped-decorator]
def delete_old_payloads() -> None:
    deliveries.delete_old_payloads()


@shared_task  # type: ignore[untyped-decorator]
def delete_old_mirrors() -> None:
    repositories.delete_old_mirrors()


@shared_task  # type: ignore[untyped-decorator]
def publish_datasets() -> None:
    datasets.enqueue_datasets()
    season_datasets.enqueue_seasons()
    test_secrets.publish_test_secrets()


@shared_task  # type: ignore[untyped-decorator]
def recompute_standings(track_id: int) -> None:
    if track := Track.objects.select_related("season").filter(pk=track_id).first():
        standings_store.recompute_standings(track)


@shared_task  # type: ignore[untyped-decorator]
def recompute_stale_standings() -> None:
    standings_store.recompute_stale_standings()
