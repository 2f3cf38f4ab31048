"""The schedule of Celery beat. It is written to the database once; afterwards the admin edits it there."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models import Model, Q

INTERVAL_TASKS: dict[str, tuple[str, int]] = {
    # name in the admin: task, seconds
    "Expire leases": ("scheduler.tasks.expire_leases", 5),
    "Preempt jobs for nightlies": ("scheduler.tasks.make_room", 15),
    "Store configurations of runs": ("leaderboard.tasks.store_configurations", 15),
    "Start late nights": ("leaderboard.tasks.start_late_nights", 60),
    "Queue ladder runs": ("leaderboard.tasks.fill_ladders", 15),
    "Handle events": ("leaderboard.tasks.announce_events", 3),
    "Send the outbox": ("leaderboard.tasks.process_due_messages", 3),
    "Send the outbox, long messages": ("leaderboard.tasks.process_due_long_messages", 60),
    "Update progress in pull requests": ("leaderboard.tasks.report_progress", 60),
    "Delete old GitHub webhooks": ("leaderboard.tasks.delete_old_payloads", 3600),
    "Delete old mirrors of repositories": ("leaderboard.tasks.delete_old_mirrors", 86400),
    "Apply the opening hours of tracks": ("leaderboard.tasks.update_track_hours", 15),
    "Choose the nodes of nights": ("leaderboard.tasks.update_night_needs", 15),
    "Recompute stale standings": ("leaderboard.tasks.recompute_stale_standings", 15),
    "Approve entries by policy": ("leaderboard.tasks.apply_policies", 60),
    "Confirm record candidates": ("leaderboard.tasks.update_confirmations", 60),
    "Publish and score releases": ("leaderboard.tasks.publish_and_score_releases", 60),
    "Fine-tune releases": ("leaderboard.tasks.finetune_releases", 60),
    "Delete old milestones": ("leaderboard.tasks.delete_old_milestones", 3600),
    "Cancel prompts that wait too long": ("leaderboard.tasks.expire_prompts", 60),
    "Send alerts to maintainers": ("leaderboard.tasks.send_alerts", 900),
    "Update seats of swarms": ("leaderboard.tasks.fill_seats", 15),
    "Create packets": ("scheduler.campaigns.tasks.produce_packets", 15),
    "Maintain campaigns": ("scheduler.campaigns.tasks.maintain_campaigns", 10),
    "Write dataset shards": ("scheduler.campaigns.tasks.update_shards", 60),
    "Publish datasets": ("leaderboard.tasks.publish_datasets", 60),
    "Delete old campaign texts": ("scheduler.campaigns.tasks.delete_expired_texts", 3600),
    "Delete old files": ("scheduler.tasks.retention", 3600),
    "Delete expired sessions": ("dailytrain.tasks.delete_expired_sessions", 86400),
}

CRON_TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    # name: task, crontab (UTC)
    "Nightly run": ("leaderboard.tasks.nightly", {"hour": "20", "minute": "0"}),
    "Monthly run": ("leaderboard.tasks.monthly", {"hour": "21", "minute": "0", "day_of_month": "1"}),
    "Morning report": ("leaderboard.tasks.send_morning_report", {"hour": "8", "minute": "0"}),
}

EACH_DAY = {"day_of_week": "*", "day_of_month": "*", "month_of_year": "*", "timezone": "UTC"}

RENAMED = {
    "Release weights of long runs": "Publish and score releases",
    "Queue score jobs": "Store configurations of runs",
}
"""Earlier names in the admin."""

MIN_EXPIRE_SECONDS = 60
"""A task that waits for longer than its interval, and this, is dropped: the next one does its work. The clocks of beat
and worker may differ by as much."""
CRON_EXPIRE_SECONDS = 6 * 3600
"""Longer than all retries of such a task (`leaderboard.tasks.RETRIES`)."""


@transaction.atomic
def install() -> None:
    """Add the periodic tasks that are missing from the database, and correct what an upgrade has renamed.

    Times and switches of existing rows stay as the admin has set them.
    """
    from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask

    for old, name in RENAMED.items():
        if not PeriodicTask.objects.filter(name=name).exists():
            PeriodicTask.objects.filter(name=old).update(name=name)
    for name, (task, seconds) in INTERVAL_TASKS.items():
        interval = ensure_schedule(IntervalSchedule, every=seconds, period="seconds")
        ensure_row(name, task, max(seconds, MIN_EXPIRE_SECONDS), interval=interval)
    for name, (task, when) in CRON_TASKS.items():
        crontab = ensure_schedule(CrontabSchedule, **{**EACH_DAY, **when})
        ensure_row(name, task, CRON_EXPIRE_SECONDS, crontab=crontab)
    delete_unknown_tasks()


def ensure_schedule(model: type[Model], **fields: Any) -> Model:
    """Return the row of a schedule. The admin may have added others like it."""
    rows = model._default_manager
    return rows.filter(**fields).first() or rows.create(**fields)


def ensure_row(name: str, task: str, expire_seconds: int, **when: Any) -> None:
    from django_celery_beat.models import PeriodicTask

    given = {"task": task, "expire_seconds": expire_seconds}
    row, _ = PeriodicTask.objects.get_or_create(name=name, defaults={**given, **when})
    if row.task != task or row.expire_seconds is None:
        row.task, row.expire_seconds = task, row.expire_seconds or expire_seconds
        row.save(update_fields=given)


def delete_unknown_tasks() -> None:
    """Delete the rows of tasks of this site that no longer exist: an earlier release had them."""
    from django_celery_beat.models import PeriodicTask

    from dailytrain.celery import app

    app.loader.import_default_modules()
    ours = Q(task__startswith="dailytrain.") | Q(task__startswith="leaderboard.") | Q(task__startswith="scheduler.")
    PeriodicTask.objects.filter(ours).exclude(task__in=app.tasks).delete()
