from __future__ import annotations

from collections import Counter
from typing import Any

from django.core.management import call_command
from django_celery_beat.models import IntervalSchedule, PeriodicTask

from dailytrain import schedule
from scheduler.campaigns import transitions
from scheduler.campaigns.models import Assignment, Campaign, Packet, Rephrasing, Volunteer

FAST_TASKS = (
    *("Expire leases", "Send the outbox", "Create packets", "Maintain campaigns"),
    *("Write dataset shards", "Publish datasets"),
)


def start_campaign(styles: list[str], model: str, target: str) -> None:
    """Create a site with a running campaign, whose periodic tasks run every second; all others are off."""
    call_command("migrate", verbosity=0)
    schedule.install()
    every_second, _ = IntervalSchedule.objects.get_or_create(every=1, period=IntervalSchedule.SECONDS)
    PeriodicTask.objects.update(enabled=False)
    fast = PeriodicTask.objects.filter(name__in=FAST_TASKS)
    assert fast.update(interval=every_second, enabled=True) == len(FAST_TASKS)
    campaign = Campaign.objects.create(
        slug="words",
        name="Words",
        dataset="*.jsonl",
        styles=styles,
        model=model,
        hub_name=target,
        drop_repeated=False,
        low_mark=20,
        high_mark=40,
        chunks_per_packet=4,
        rows_per_shard=50,
        quarantine_minutes=0.05,
        replication_rate=0.3,
        known_answer_rate=0.1,
        max_attempts=4,
    )
    transitions.start_campaign(campaign, "mara")


def read_campaign() -> dict[str, Any]:
    """Return the campaign with its packets, assignments, banned volunteers and number of accepted texts."""
    campaign = Campaign.objects.get()
    return {
        "dropped": campaign.dropped_counts,
        "source_error": campaign.source_error,
        "packets": [[p.row, p.first_chunk, p.state, p.chunks] for p in Packet.objects.order_by("row", "part")],
        "banned": list(Volunteer.objects.filter(state="banned").values_list("name", "reason")),
        "assignments": dict(Counter(Assignment.objects.values_list("state", flat=True))),
        "accepted": Rephrasing.objects.filter(state="accepted").count(),
    }
