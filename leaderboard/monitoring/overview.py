"""What the admin's first page shows to maintainers: failed runs, failing nodes, the next nights, used hours."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from leaderboard.models import Run
from leaderboard.schedule.calendar import list_next_nightlies, list_recent_nights, list_upcoming
from leaderboard.schedule.night_checks import list_failing_checks
from scheduler.models import Lease, Node
from scheduler.sponsors.contributions import sum_leases

FAILED_DAYS, USED_DAYS = 7, (1, 30)


def collect_overview(now: datetime) -> dict[str, Any]:
    nightlies = list_next_nightlies(list_upcoming(now), list_recent_nights(now), now)
    failed = Run.objects.filter(state=Run.State.FAILED, finished_at__gte=now - timedelta(days=FAILED_DAYS))
    leases = {days: Lease.objects.filter(started_at__gte=now - timedelta(days=days)) for days in USED_DAYS}
    return {
        "nights": [(line, list_failing_checks(line.planned)) for line in nightlies],
        "failed": failed.select_related("entry", "track").order_by("-finished_at")[:10],
        "failing": Node.objects.filter(state=Node.State.FAILING).select_related("owner"),
        "used": [(days, sum_leases(found)) for days, found in leases.items()],
    }
