"""Celery tasks of the leaderboard. `dailytrain.schedule` says when they run; all are safe to run twice."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from typing import Any

from celery import shared_task
from django.db import transaction
from django.utils import timezone

from leaderboard import events, night_nodes, outbox, rulings, track_hours
from leaderboard.integrations.github import comments, deliveries
from leaderboard.job_handlers import generation, score, swarm, train
from leaderboard.models import Track
from leaderboard.notifications import delivery, site_alerts
from leaderboard.publishing import datasets, release_finetunes, releases, test_secrets
from leaderboard.rankings import confirmations, standings_store
from leaderboard.schedule import early_stops, ladder
from leaderboard.schedule import nightly as nightly_runs
from leaderboard.schedule.monthly import start_monthly_runs
from leaderboard.submissions import families, policy, repositories, stations

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
def update_night_needs() -> None:
    night_nodes.update_night_needs(timezone.now())


@shared_task  # type: ignore[untyped-decorator]
def publish_and_score_releases() -> None:
    releases.publish_last_releases()
    score.queue_release_scores()


@shared_task  # type: ignore[untyped-decorator]
def delete_old_milestones() -> None:
    releases.delete_old_milestones(timezone.now())


@shared_task  # type: ignore[untyped-decorator]
def process_due_long_messages() -> None:
    outbox.process_due(are_long=True)


@shared_task  # type: ignore[untyped-decorator]
def publish_datasets() -> None:
    datasets.enqueue_datasets()
    test_secrets.publish_test_secrets()


@shared_task  # type: ignore[untyped-decorator]
def recompute_standings(track_id: int) -> None:
    if track := Track.objects.select_related("season").filter(pk=track_id).first():
        standings_store.recompute_standings(track)
        stations.move_entries_up(track)


@shared_task  # type: ignore[untyped-decorator]
def apply_policies() -> None:
    early_stops.stop_runs_behind()
    for track in Track.objects.filter(season__active=True, next_tracks__isnull=False).distinct():
        stations.move_entries_up(track)
    families.place_entries()
    rulings.apply_rulings()
    policy.decide_entries()


# --- functions of other modules ---------------------------------------------------------------------------------------


def register(name: str, function: Callable[..., object]) -> Any:
    return shared_task(name=f"leaderboard.tasks.{name}")(function)


update_track_hours = register("update_track_hours", track_hours.update_jobs)
finetune_releases = register("finetune_releases", release_finetunes.start_finetunes)
expire_prompts = register("expire_prompts", generation.expire_generations)
fill_seats = register("fill_seats", swarm.fill_all_seats)
store_configurations = register("store_configurations", train.store_configurations)
fill_ladders = register("fill_ladders", ladder.fill_ladders)
update_confirmations = register("update_confirmations", confirmations.process_confirmations)
process_message = register("process_message", outbox.process_message)
process_due_messages = register("process_due_messages", outbox.process_due)
process_long_message = register("process_long_message", outbox.process_message)
announce_events = register("announce_events", events.announce_events)
report_progress = register("report_progress", comments.report_progress)
delete_old_payloads = register("delete_old_payloads", deliveries.delete_old_payloads)
delete_old_mirrors = register("delete_old_mirrors", repositories.delete_old_mirrors)
recompute_stale_standings = register("recompute_stale_standings", standings_store.recompute_stale_standings)
