"""What Celery beat does, in one table. Written to the database once; from then on the admin's word counts."""

from __future__ import annotations

from typing import Any

from django.db import transaction

EVERY: dict[str, tuple[str, int]] = {
    # name: task, seconds
    "Expire leases": ("scheduler.tasks.expire_leases", 5),
    "Make room for nightlies": ("scheduler.tasks.make_room", 15),
    "Queue score jobs": ("leaderboard.tasks.queue_scores", 15),
    "Fill the ladders": ("leaderboard.tasks.fill_ladders", 15),
    "Announce what happened": ("leaderboard.tasks.announce", 3),
    "Carry out effects": ("leaderboard.tasks.carry_out_due", 10),
    "Read what GitHub told": ("leaderboard.tasks.read_deliveries", 3),
    "Tell pull requests how far they are": ("leaderboard.tasks.tell_progress", 60),
    "Forget what GitHub told": ("leaderboard.tasks.forget_deliveries", 3600),
    "Keep the tracks' hours": ("leaderboard.tasks.keep_hours", 15),
    "Confirm record candidates": ("leaderboard.tasks.confirmations", 60),
    "Cut releases of long runs": ("leaderboard.tasks.cut_releases", 60),
    "Give up prompts that wait too long": ("leaderboard.tasks.give_up_prompts", 60),
    "Keep seats of swarms ready": ("leaderboard.tasks.keep_seats", 15),
    "Create packets": ("scheduler.campaigns.tasks.produce_packets", 15),
    "Maintain campaigns": ("scheduler.campaigns.tasks.maintain_campaigns", 10),
    "Write dataset shards": ("scheduler.campaigns.tasks.update_shards", 60),
    "Publish datasets": ("leaderboard.tasks.publish_datasets", 60),
    "Delete old campaign texts": ("scheduler.campaigns.tasks.delete_expired_texts", 3600),
    "Forget old files": ("scheduler.tasks.retention", 3600),
}

AT: dict[str, tuple[str, dict[str, Any]]] = {
    # name: task, crontab (UTC)
    "Tonight's train": ("leaderboard.tasks.nightly", {"hour": "20", "minute": "0"}),
    "The monthly train": ("leaderboard.tasks.monthly", {"hour": "21", "minute": "0", "day_of_month": "1"}),
    "The morning post": ("leaderboard.tasks.morning_post", {"hour": "8", "minute": "0"}),
}


@transaction.atomic
def install() -> None:
    """Add what is missing from the table of periodic tasks; rows that exist are left as they are."""
    from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask

    for name, (task, seconds) in EVERY.items():
        interval, _ = IntervalSchedule.objects.get_or_create(every=seconds, period=IntervalSchedule.SECONDS)
        PeriodicTask.objects.get_or_create(name=name, defaults={"task": task, "interval": interval})
    for name, (task, when) in AT.items():
        crontab, _ = CrontabSchedule.objects.get_or_create(timezone="UTC", **when)
        PeriodicTask.objects.get_or_create(name=name, defaults={"task": task, "crontab": crontab})
