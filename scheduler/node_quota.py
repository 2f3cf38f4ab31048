"""How many jobs a node is given in a day: fewer after results that did not agree with others, more again with each that
did. BOINC's daily quota per host, which keeps a machine that computes nonsense from eating the queue (Anderson, "BOINC:
A Platform for Volunteer Computing", 2019, section 3.2).

Pure but for `spent`. Whoever is trusted by a maintainer has no quota: his results are not compared.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from scheduler.models import Lease, Node

FULL_QUOTA = 1024
"""Jobs a day that are as good as no limit."""
FIRST_REDUCED_QUOTA = 16
"""What the first result that does not agree leaves of it."""
DAY = timedelta(days=1)


def adjust_quota(quota: int, valid: bool) -> int:
    """Return the quota after one more result was compared: halved or doubled, from 1 to FULL."""
    if valid:
        return FULL_QUOTA if quota >= FIRST_REDUCED_QUOTA else quota * 2
    return FIRST_REDUCED_QUOTA if quota > FIRST_REDUCED_QUOTA else max(quota // 2, 1)


def get_quota_reset(node: Node, now: datetime) -> datetime | None:
    """Return when the node may have its next job; None where it may now. One query where its quota is cut."""
    if node.trusted or node.quota >= FULL_QUOTA:
        return None
    given = list_recent_lease_times(node, now)
    return given[node.quota - 1] + DAY if len(given) >= node.quota else None


def list_recent_lease_times(node: Node, now: datetime) -> list[datetime]:
    """Return when the node was given its jobs of the last day, latest first, as many as its quota allows."""
    lately = Lease.objects.filter(node=node, started_at__gt=now - DAY).order_by("-started_at")
    return list(lately.values_list("started_at", flat=True)[: node.quota])


def describe_quota(node: Node, until: datetime) -> str:
    jobs = "one job" if node.quota == 1 else f"{node.quota} jobs"
    return (
        f"Results of this node did not agree with others: it gets {jobs} a day until they do again, "
        f"the next at {until:%H:%M} UTC."
    )
