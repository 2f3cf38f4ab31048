"""A campaign as plain data, for pages and the API: each function a constant number of queries, however large it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Count, Q, Sum
from django.utils import timezone

from scheduler.campaigns import dataset, packet_orders
from scheduler.models import Campaign, Handout, Lease, Packet, Rephrasing, Share, Volunteer
from trainer.rephrase.checks import REASONS

RATE_WINDOW = timedelta(minutes=5)
"""Over which speeds are measured."""


@dataclass(frozen=True)
class Totals:
    """How far a campaign is."""

    documents_read: int
    packets: int
    """Made of them so far."""
    done: int
    waiting: int
    held: int
    aside: int
    texts: int
    """Accepted outputs."""
    tokens: int
    """Of these."""
    rejected: int
    withdrawn: int
    volunteers: int
    """Who have handed something in."""
    volunteers_now: int
    """Who hold packets."""
    tokens_per_second: float
    packets_per_second: float
    seconds_left: float | None
    """At the present speed; None where nobody works, or nobody knows how much there is."""
    share: float | None
    """Of all there is to do, 0 to 1; None where nobody knows."""


def totals(campaign: Campaign, now: datetime | None = None) -> Totals:
    """Six queries."""
    now = now or timezone.now()
    by_state = dict(
        campaign.packets.filter(state__in=[Packet.State.WAITING, Packet.State.HELD, Packet.State.ASIDE])
        .values_list("state")
        .annotate(count=Count("pk"))
        .order_by()
    )
    waiting, held, aside = (by_state.get(state, 0) for state in ("waiting", "held", "aside"))
    done = campaign.packets_made - waiting - held - aside
    sums = campaign.shares.aggregate(
        texts=Sum("accepted", default=0),
        tokens=Sum("tokens", default=0),
        rejected=Sum("rejected", default=0),
        withdrawn=Sum("withdrawn", default=0),
        volunteers=Count("pk", filter=Q(packets__gt=0)),
    )
    tokens_a_second, packets_a_second = speeds(campaign, now)
    share = progress(campaign, done + aside)
    left = None if share is None or not share else (done + aside) / share - (done + aside)
    return Totals(
        documents_read=campaign.rows_read,
        packets=campaign.packets_made,
        done=done,
        waiting=waiting,
        held=held,
        aside=aside,
        volunteers_now=volunteers_now(campaign),
        tokens_per_second=tokens_a_second,
        packets_per_second=packets_a_second,
        seconds_left=left / packets_a_second if left is not None and packets_a_second else None,
        share=share,
        **sums,
    )


def progress(campaign: Campaign, over: int) -> float | None:
    """Return the share that is over: known when all is read, before that a guess by the files that are."""
    if campaign.packets_made == 0:
        return 1.0 if campaign.exhausted else None
    if campaign.exhausted:
        return over / campaign.packets_made
    files = int(campaign.cursor.get("file", 0))
    read = files / len(campaign.files) if campaign.files else 0.0
    return read * over / campaign.packets_made if read else None


def speeds(campaign: Campaign, now: datetime) -> tuple[float, float]:
    """Return accepted tokens and packets a second, of the last minutes."""
    lately = Rephrasing.objects.filter(
        campaign=campaign, at__gt=now - RATE_WINDOW, at__lte=now, state=Rephrasing.State.ACCEPTED
    ).aggregate(tokens=Sum("tokens", default=0), packets=Count("packet", distinct=True))
    begun = campaign.started_at or now
    seconds = max(min((now - begun).total_seconds(), RATE_WINDOW.total_seconds()), 1.0)
    return lately["tokens"] / seconds, lately["packets"] / seconds


def volunteers_now(campaign: Campaign) -> int:
    holding = Handout.objects.filter(state=Handout.State.HELD, lease__state=Lease.State.ACTIVE)
    return holding.filter(lease__job__sitting__campaign=campaign).values("volunteer").distinct().count()


def leaderboard(campaign: Campaign, limit: int = 50) -> list[dict[str, Any]]:
    """Return who wrote most. Who has not signed in is shown by a number. One query."""
    best = campaign.shares.filter(accepted__gt=0).select_related("volunteer__user").order_by("-tokens", "pk")
    good = best.exclude(volunteer__state=Volunteer.State.BARRED)
    return [
        {
            "name": share.volunteer.name if share.volunteer.user_id else f"Volunteer {share.volunteer_id}",
            "signed_in": share.volunteer.user_id is not None,
            "packets": share.packets,
            "texts": share.accepted,
            "tokens": share.tokens,
            "accepted_share": share.accepted / max(share.accepted + share.rejected, 1),
            "known": share.volunteer.state == Volunteer.State.KNOWN,
            "last_at": share.last_at,
        }
        for share in good[:limit]
    ]


def samples(campaign: Campaign, limit: int = 8) -> list[dict[str, Any]]:
    """Return the latest accepted texts, each beside its source. One query."""
    latest = Rephrasing.objects.filter(campaign=campaign, state=Rephrasing.State.ACCEPTED).select_related("packet")
    return [
        {
            "document": row.packet.document,
            "chunk": row.chunk,
            "style": row.style,
            "source": packet_orders.source(row.packet, row.chunk),
            "text": row.text,
        }
        for row in latest.exclude(volunteer__state=Volunteer.State.BARRED).order_by("-at", "-pk")[:limit]
    ]


def rejections(campaign: Campaign) -> list[dict[str, Any]]:
    """Return how often what was wrong, commonest first, each with its sentence. One query."""
    counts: dict[str, int] = {}
    for reasons in campaign.shares.values_list("reasons", flat=True):
        for reason, count in reasons.items():
            counts[reason] = counts.get(reason, 0) + count
    return [
        {"reason": reason, "sentence": REASONS.get(reason, reason), "outputs": count}
        for reason, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]


def files(campaign: Campaign) -> list[dict[str, Any]]:
    """Return what of a campaign can be downloaded from this site, the manifest first; nothing before the first shard.

    Each has its `name` in the dataset and its `address` here; shards have `bytes`, `rows` and `sha256` as well. One
    query.
    """
    shards: list[dict[str, Any]] = [
        {"name": shard.name, "bytes": shard.blob.size, "rows": shard.rows, "sha256": shard.blob.sha256}
        for shard in dataset.shards(campaign)
        if shard.blob
    ]
    beside: list[dict[str, Any]] = (
        [{"name": name} for name in (dataset.MANIFEST, dataset.CARD, dataset.SET_ASIDE)] if shards else []
    )
    root = f"{settings.SITE_URL}{campaign.get_absolute_url()}files/"
    return [{**row, "address": f"{root}{row['name']}"} for row in (*beside, *shards)]


def shelf() -> list[dict[str, Any]]:
    """Return all campaigns that have begun, newest first, each with how far it is. Three queries."""
    begun = list(Campaign.objects.exclude(state=Campaign.State.DRAFT).defer("files"))
    left: Mapping[int, int] = dict(
        Packet.objects.filter(campaign__in=begun, state__in=[Packet.State.WAITING, Packet.State.HELD])
        .values_list("campaign")
        .annotate(count=Count("pk"))
        .order_by()
    )
    shares = Share.objects.filter(campaign__in=begun).order_by().values_list("campaign")
    sums: dict[int, tuple[int, int, int]] = {
        pk: (texts, tokens, volunteers)
        for pk, texts, tokens, volunteers in shares.annotate(Sum("accepted"), Sum("tokens"), Count("pk"))
    }
    return [
        {
            "campaign": one,
            "packets": one.packets_made,
            "over": one.packets_made - left.get(one.pk, 0),
            **dict(zip(("texts", "tokens", "volunteers"), sums.get(one.pk, (0, 0, 0)), strict=True)),
        }
        for one in begun
    ]
