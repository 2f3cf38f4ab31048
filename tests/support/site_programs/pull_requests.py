from __future__ import annotations

from typing import Any

from django.core.management import call_command
from django_celery_beat.models import IntervalSchedule, PeriodicTask

from leaderboard.models import Entry, OutboxMessage, Run, Season, Track
from scheduler import node_tokens
from scheduler.models import Job, Node

FAST_TASKS = ("process_deliveries", "process_due_messages", "announce_events", "queue_scores")


def create_small_track() -> str:
    """Create a site with a small track, whose periodic tasks run every second; return a trusted node's token."""
    call_command("migrate", verbosity=0)
    call_command("install_schedule", verbosity=0)
    season = Season.objects.create(name="Test", corpus="python-library", tokenizer="bpe:512", dataset_hash="d" * 64)
    Track.objects.create(
        slug="small", name="Small", season=season, budget="20steps", expected_seconds=10, is_default=True,
        is_traced=False,
    )  # fmt: skip
    every_second, _ = IntervalSchedule.objects.get_or_create(every=1, period=IntervalSchedule.SECONDS)
    tasks = PeriodicTask.objects.filter(task__regex=f"({'|'.join(FAST_TASKS)})$")
    assert tasks.update(interval=every_second) == len(FAST_TASKS)
    token = node_tokens.generate_token("node")
    Node.objects.create(name="cellar", token_hash=node_tokens.hash_token(token), trusted=True)
    return token


def read_entries() -> dict[str, Any]:
    """Return the states of all entries, runs and jobs, and the effects that are not done."""
    return {
        "entries": list(Entry.objects.order_by("pk").values_list("sha", "state")),
        "runs": list(Run.objects.order_by("pk").values_list("state", flat=True)),
        "jobs": list(Job.objects.order_by("pk").values_list("kind", "state")),
        "left": list(OutboxMessage.objects.exclude(state="done").values_list("key", "state", "problem")),
    }
