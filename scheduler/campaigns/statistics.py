"""Computes a campaign's progress, contributors, samples and rejections for pages and the API.

Each function makes a constant number of queries, however large the campaign is.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Q, QuerySet, Sum
from django.utils import timezone

from scheduler.campaigns.models import Assignment, Campaign, Contribution, Packet, Rephrasing, Volunteer
from scheduler.models import Lease
from trainer.rephrase.checks import REASONS

RATE_WINDOW = timedelta(minutes=5)
"""Window of the speeds."""


@dataclass(frozen=True)
class CampaignProgress:
    documents_read: int
    packets: int  # created so far
    done: int
    waiting: int
    held: int  # assigned to volunteers
    aside: int  # set aside
    texts: int  # accepted outputs
    tokens: int  # of the accepted outputs
    rejected: int
    withdrawn: int
    volunteers: int  # who have submitted a packet
    volunteers_now: int  # who hold packets
    tokens_per_second: float
    packets_per_second: float
    seconds_left: float | None  # at the current speed; None: unknown
    share: float | None  # of the campaign that is finished, 0 to 1; None: unknown


def compute_progress(campaign: Campaign, now: datetime | None = None) -> CampaignProgress:
    """Return the campaign's progress. Makes five queries."""
    now = now or timezone.now()
    states = [Packet.State.WAITING, Packet.State.ASSIGNED, Packet.State.SET_ASIDE]
    packets = campaign.packets.filter(state__in=states).order_by()
    counts: Counter[str] = Counter(dict(packets.values_list("state").annotate(Count("pk"))))
    finished = campaign.packet_count - counts[Packet.State.WAITING] - counts[Packet.State.ASSIGNED]
    sums = campaign.contributions.aggregate(
        texts=Sum("accepted", default=0),
        tokens=Sum("tokens", default=0),
        rejected=Sum("rejected", default=0),
        withdrawn=Sum("withdrawn", default=0),
        volunteers=Count("pk", filter=Q(packets__gt=0)),
    )
    tokens_per_second, packets_per_second = measure_speed(campaign, now)
    share = compute_finished_share(campaign, finished)
    seconds_left = (finished / share - finished) / packets_per_second if share and packets_per_second else None
    active = Assignment.objects.filter(state=Assignment.State.ACTIVE, lease__state=Lease.State.ACTIVE)
    here = active.filter(lease__job__rephrase_session__campaign=campaign)
    return CampaignProgress(
        documents_read=campaign.rows_read,
        packets=campaign.packet_count,
        done=finished - counts[Packet.State.SET_ASIDE],
        waiting=counts[Packet.State.WAITING],
        held=counts[Packet.State.ASSIGNED],
        aside=counts[Packet.State.SET_ASIDE],
        volunteers_now=here.values("volunteer").distinct().count(),
        tokens_per_second=tokens_per_second,
        packets_per_second=packets_per_second,
        seconds_left=seconds_left,
        share=share,
        **sums,
    )


def compute_finished_share(campaign: Campaign, finished: int) -> float | None:
    """Return the finished share; before the source is read to its end, an estimate by its files."""
    if campaign.packet_count == 0:
        return 1.0 if campaign.is_exhausted else None
    if campaign.is_exhausted:
        return finished / campaign.packet_count
    read = campaign.cursor.get("file", 0) / len(campaign.files) if campaign.files else 0.0
    return read * finished / campaign.packet_count if read else None


def measure_speed(campaign: Campaign, now: datetime) -> tuple[float, float]:
    """Return accepted tokens and packets per second in the last minutes."""
    window = {"created_at__gt": now - RATE_WINDOW, "created_at__lte": now}
    recent = Rephrasing.objects.accepted().filter(campaign=campaign, **window)
    sums = recent.aggregate(tokens=Sum("tokens", default=0), packets=Count("packet", distinct=True))
    seconds = min(now - (campaign.started_at or now), RATE_WINDOW).total_seconds()
    return sums["tokens"] / max(seconds, 1.0), sums["packets"] / max(seconds, 1.0)


def list_contributors(campaign: Campaign) -> QuerySet[Contribution]:
    """Return the contributions with accepted texts, most tokens first."""
    contributions = campaign.contributions.filter(accepted__gt=0).exclude(volunteer__state=Volunteer.State.BANNED)
    return contributions.select_related("volunteer").order_by("-tokens", "pk")


def list_samples(campaign: Campaign) -> QuerySet[Rephrasing]:
    """Return the accepted texts with their packets, latest first."""
    accepted = Rephrasing.objects.accepted().filter(campaign=campaign)
    accepted = accepted.exclude(volunteer__state=Volunteer.State.BANNED)
    return accepted.select_related("packet").order_by("-created_at", "-pk")


def list_rejections(campaign: Campaign) -> list[dict[str, Any]]:
    """Return the reasons of rejected outputs, most frequent first. Makes one query."""
    counts: Counter[str] = Counter()
    for reasons in campaign.contributions.values_list("rejection_reasons", flat=True):
        counts.update(reasons)
    return [
        {"reason": reason, "sentence": REASONS.get(reason, reason), "outputs": count}
        for reason, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
