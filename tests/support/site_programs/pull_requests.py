from __future__ import annotations

from typing import Any

from leaderboard.models import Entry, OutboxMessage, Run
from scheduler.models import Job


def read_entries() -> dict[str, Any]:
    """Return the states of all entries, runs and jobs, and the effects that are not done."""
    return {
        "entries": list(Entry.objects.order_by("pk").values_list("sha", "state")),
        "runs": list(Run.objects.order_by("pk").values_list("state", flat=True)),
        "jobs": list(Job.objects.exclude(kind="self_test").order_by("pk").values_list("kind", "state")),
        "left": list(OutboxMessage.objects.exclude(state="done").values_list("key", "state", "problem")),
    }
