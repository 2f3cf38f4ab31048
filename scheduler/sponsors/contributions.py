"""Lent hours and credit by node and by sponsor: sums over leases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Max, Min, QuerySet, Sum
from django.db.models.functions import Coalesce
from django.utils import timezone

from scheduler import credit, job_kinds
from scheduler.job_kinds import JobSummary
from scheduler.matching import SELF_TEST_KIND
from scheduler.models import Job, Lease, Node, Sponsor

CURRENT_SPONSOR_PERIOD = timedelta(days=7)
"""A sponsor whose nodes were silent for longer is a past sponsor. Windows are weekly."""
SHOWN_RESULTS, CONSIDERED_LEASES = 12, 100


@dataclass(frozen=True)
class LentTotals:
    """Totals of some leases."""

    jobs: int = 0
    gpu_seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Seconds of leases without a GPU."""
    credit_hours: float = 0.0
    """H100-equivalent hours."""
    first: datetime | None = None
    last: datetime | None = None
    """End of the last lease, or its start if it is active."""

    def __add__(self, other: LentTotals) -> LentTotals:
        return LentTotals(
            self.jobs + other.jobs,
            self.gpu_seconds + other.gpu_seconds,
            self.cpu_seconds + other.cpu_seconds,
            self.credit_hours + other.credit_hours,
            min(filter(None, (self.first, other.first)), default=None),
            max(filter(None, (self.last, other.last)), default=None),
        )

    @property
    def weight(self) -> tuple[float, float, float]:
        """The key by which sponsors are sorted."""
        return (self.credit_hours, self.gpu_seconds, self.cpu_seconds)


def add_totals(parts: Iterable[LentTotals]) -> LentTotals:
    return sum(parts, LentTotals())


def sum_leases_by_node(leases: QuerySet[Lease]) -> dict[int, LentTotals]:
    """Return the totals of these leases by node id, without self-tests and faults of the node. One query."""
    served = leases.exclude(machine_fault=True).exclude(job__kind=SELF_TEST_KIND)
    rows = served.order_by().values("node_id", "accelerator", "gpus").annotate(
        used=Sum("seconds"),
        jobs=Count("job", distinct=True),
        first=Min("started_at"),
        last=Max(Coalesce("ended_at", "started_at")),
    )  # fmt: skip
    given: dict[int, LentTotals] = {}
    for row in rows:
        given[row["node_id"]] = given.get(row["node_id"], LentTotals()) + build_totals(row)
    return given


def sum_leases(leases: QuerySet[Lease]) -> LentTotals:
    return add_totals(sum_leases_by_node(leases).values())


def build_totals(row: Mapping[str, Any]) -> LentTotals:
    seconds = float(row["used"] or 0)
    gpu_seconds = seconds * row["gpus"]
    return LentTotals(
        jobs=row["jobs"],
        gpu_seconds=gpu_seconds,
        cpu_seconds=0.0 if row["gpus"] else seconds,
        credit_hours=credit.convert_to_h100_hours(row["accelerator"], gpu_seconds),
        first=row["first"],
        last=row["last"],
    )


# --- the public list -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SponsorTotals:
    """A sponsor on the public list, with the totals of the nodes that are shown by name."""

    sponsor: Sponsor
    given: LentTotals
    current: bool


@dataclass(frozen=True)
class SponsorList:
    """The public list: named sponsors by their totals, and the totals of anonymous ones."""

    current: list[SponsorTotals]
    past: list[SponsorTotals]
    anonymous: int
    """Sponsors, not nodes."""
    anonymous_given: LentTotals
    everything: LentTotals


def load_sponsor_list() -> SponsorList:
    """Return the public list. Three queries for any size."""
    now = timezone.now()
    nodes = list(Node.objects.filter(owner__isnull=False).only("owner_id", "shown", "state", "last_seen", "token_hash"))
    given = sum_leases_by_node(Lease.objects.filter(node__owner__isnull=False))
    worked = [node for node in nodes if node.pk in given]
    hidden = [node for node in worked if not node.shown]
    shown: dict[int | None, list[Node]] = {}
    for node in worked:
        if node.shown:
            shown.setdefault(node.owner_id, []).append(node)
    standings = [
        SponsorTotals(sponsor, add_totals(given[node.pk] for node in own), any(is_lent_now(node, now) for node in own))
        for sponsor in Sponsor.objects.filter(user__node__shown=True).distinct()
        if (own := shown.get(sponsor.user_id))
    ]
    standings.sort(key=lambda standing: standing.given.weight, reverse=True)
    return SponsorList(
        current=[standing for standing in standings if standing.current],
        past=[standing for standing in standings if not standing.current],
        anonymous=len({node.owner_id for node in hidden}),
        anonymous_given=add_totals(given[node.pk] for node in hidden),
        everything=add_totals(given.values()),
    )


def is_lent_now(node: Node, now: datetime) -> bool:
    """Return whether the node is currently lent. A drained, failing or revoked node is not."""
    if node.token_hash is None or node.state in (Node.State.BANNED, Node.State.DRAINING, Node.State.FAILING):
        return False
    return node.last_seen is not None and now - node.last_seen < CURRENT_SPONSOR_PERIOD


def select_leases(sponsor: Sponsor, *, include_hidden: bool) -> QuerySet[Lease]:
    """Return a sponsor's leases: of the nodes shown by name, or of all nodes for the sponsor."""
    leases = Lease.objects.filter(node__owner=sponsor.user_id)
    return leases if include_hidden else leases.filter(node__shown=True)


def list_results(leases: QuerySet[Lease]) -> list[JobSummary]:
    """Return the outcomes of the latest jobs that these leases worked on, one for each page, latest first."""
    done = leases.filter(job__state=Job.State.DONE, machine_fault=False).select_related("job").order_by("-pk")
    jobs = {lease.job_id: lease.job for lease in done.defer("spec")[:CONSIDERED_LEASES]}
    found = job_kinds.summarize_jobs(jobs.values())
    results = {about.url: about for pk in jobs if (about := found[pk]).url and about.outcome}
    return list(results.values())[:SHOWN_RESULTS]
