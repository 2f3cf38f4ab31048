"""Jobs per day of an untrusted node: halved by a result that disagrees with others, doubled by one that agrees.

This is BOINC's daily quota per host, which keeps a broken machine from consuming the queue (Anderson, "BOINC: A
Platform for Volunteer Computing", 2019, section 3.2). Trusted nodes have no quota: their results are not compared.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from scheduler.models import Lease, Node

FULL_QUOTA = 1024
"""Jobs per day: practically no limit."""
FIRST_REDUCED_QUOTA = 16
"""The quota after the first result that disagrees."""
DAY = timedelta(days=1)


def adjust_quota(quota: int, valid: bool) -> int:
    """Return the quota after another compared result."""
    if valid:
        return FULL_QUOTA if quota >= FIRST_REDUCED_QUOTA else quota * 2
    return FIRST_REDUCED_QUOTA if quota > FIRST_REDUCED_QUOTA else max(quota // 2, 1)


def get_quota_reset(node: Node, now: datetime) -> datetime | None:
    """Return when the node gets its next job; None for now. One query if its quota is reduced."""
    if node.trusted or node.quota >= FULL_QUOTA:
        return None
    times = list_recent_lease_times(node, now)
    return times[node.quota - 1] + DAY if len(times) >= node.quota else None


def list_recent_lease_times(node: Node, now: datetime) -> list[datetime]:
    """Return the start times of the node's leases of the last day, latest first, at most its quota."""
    recent = Lease.objects.filter(node=node, started_at__gt=now - DAY).order_by("-started_at")
    return list(recent.values_list("started_at", flat=True)[: node.quota])


def describe_quota(node: Node, until: datetime) -> str:
    jobs = "one job" if node.quota == 1 else f"{node.quota} jobs"
    return (
        f"Results of this node disagreed with others. It gets {jobs} a day until they agree again, "
        f"the next at {until:%H:%M} UTC."
    )
