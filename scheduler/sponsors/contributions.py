"""What lent nodes have given: hours and credit, by node and by sponsor. Sums of leases, so they add up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Max, Min, QuerySet, Sum
from django.db.models.functions import Coalesce
from django.utils import timezone

from scheduler import credit
from scheduler.models import Lease, Node, Sponsor

CURRENT_FOR = timedelta(days=7)
"""Who has not been heard of for so long counts as a past sponsor. Windows are weekly."""


@dataclass(frozen=True)
class Given:
    """What some leases came to."""

    jobs: int = 0
    gpu_seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Of leases without any GPU: seconds of the machine."""
    credit_hours: float = 0.0
    """H100-equivalent hours."""
    first: datetime | None = None
    last: datetime | None = None
    """When the last lease ended, or began if it has not."""

    def __add__(self, other: Given) -> Given:
        return Given(
            self.jobs + other.jobs,
            self.gpu_seconds + other.gpu_seconds,
            self.cpu_seconds + other.cpu_seconds,
            self.credit_hours + other.credit_hours,
            min(filter(None, (self.first, other.first)), default=None),
            max(filter(None, (self.last, other.last)), default=None),
        )

    @property
    def weight(self) -> tuple[float, float, float]:
        """What a list is ordered by."""
        return (self.credit_hours, self.gpu_seconds, self.cpu_seconds)


def total(parts: Iterable[Given]) -> Given:
    return sum(parts, Given())


def of_leases(leases: QuerySet[Lease]) -> dict[int, Given]:
    """Return what each node gave under these leases, by node id. One query."""
    rows = leases.order_by().values("node_id", "accelerator", "gpus").annotate(
        used=Sum("seconds"),
        jobs=Count("job", distinct=True),
        first=Min("started_at"),
        last=Coalesce(Max("ended_at"), Max("started_at")),
    )  # fmt: skip
    given: dict[int, Given] = {}
    for row in rows:
        given[row["node_id"]] = given.get(row["node_id"], Given()) + of_row(row)
    return given


def of_row(row: Mapping[str, Any]) -> Given:
    seconds = float(row["used"] or 0)
    gpu_seconds = seconds * row["gpus"]
    return Given(
        jobs=row["jobs"],
        gpu_seconds=gpu_seconds,
        cpu_seconds=0.0 if row["gpus"] else seconds,
        credit_hours=credit.convert_to_h100_hours(row["accelerator"], gpu_seconds),
        first=row["first"],
        last=row["last"],
    )


# --- the public list -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Standing:
    """A sponsor on the public list, with what the nodes that are shown gave."""

    sponsor: Sponsor
    given: Given
    current: bool


@dataclass(frozen=True)
class Thanks:
    """All that was lent: who is named, most first, and what those gave who are not."""

    current: list[Standing]
    past: list[Standing]
    anonymous: int
    """Sponsors, not nodes."""
    anonymous_given: Given
    everything: Given


def thanks() -> Thanks:
    """Return the public list. Three queries, however many sponsors, nodes and leases there are."""
    now = timezone.now()
    nodes = list(Node.objects.filter(owner__isnull=False).only("owner_id", "shown", "state", "last_seen", "token_hash"))
    given = of_leases(Lease.objects.filter(node__owner__isnull=False))
    worked = [node for node in nodes if node.pk in given]
    hidden = [node for node in worked if not node.shown]
    shown: dict[int | None, list[Node]] = {}
    for node in worked:
        if node.shown:
            shown.setdefault(node.owner_id, []).append(node)
    standings = [
        Standing(sponsor, total(given[node.pk] for node in own), any(lends(node, now) for node in own))
        for sponsor in Sponsor.objects.filter(user__node__shown=True).distinct()
        if (own := shown.get(sponsor.user_id))
    ]
    standings.sort(key=lambda standing: standing.given.weight, reverse=True)
    return Thanks(
        current=[standing for standing in standings if standing.current],
        past=[standing for standing in standings if not standing.current],
        anonymous=len({node.owner_id for node in hidden}),
        anonymous_given=total(given[node.pk] for node in hidden),
        everything=total(given.values()),
    )


def lends(node: Node, now: datetime) -> bool:
    """Return whether the node is lent these days: a drained or revoked one is not."""
    if node.token_hash is None or node.state in (Node.State.BANNED, Node.State.DRAINING):
        return False
    return node.last_seen is not None and now - node.last_seen < CURRENT_FOR


def of_sponsor(sponsor: Sponsor, *, whole: bool) -> Given:
    """Return what a sponsor gave: by the nodes that are shown, or, for the sponsor's own eyes, by all of them."""
    leases = Lease.objects.filter(node__owner=sponsor.user_id)
    return total(of_leases(leases if whole else leases.filter(node__shown=True)).values())
