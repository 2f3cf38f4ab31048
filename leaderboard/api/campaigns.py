"""The dataset swarm: campaigns, how far they are, who writes for them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.views.decorators.http import conditional_page
from ninja import Router
from ninja.decorators import decorate_view
from typing_extensions import TypedDict

from leaderboard.api.pool import moment
from leaderboard.publishing.datasets import hub_address
from scheduler.campaigns import dataset, statistics
from scheduler.models import Campaign

router = Router()


class CampaignDict(TypedDict):
    slug: str
    name: str
    state: str
    """running, paused or done."""
    source: str
    model: str
    styles: list[str]
    licence: str
    packets: int
    """Made so far; more may come while the source is being read."""
    over: int
    """Of these: done, or set aside."""
    texts: int
    tokens: int
    volunteers: int
    page: str


class CampaignsDict(TypedDict):
    items: list[CampaignDict]


class VolunteerDict(TypedDict):
    name: str
    """Of who has signed in; otherwise a number."""
    packets: int
    texts: int
    tokens: int


class RejectionDict(TypedDict):
    reason: str
    sentence: str
    outputs: int


class CampaignDetail(TypedDict):
    slug: str
    name: str
    state: str
    reason: str
    source: str
    model: str
    revision: str
    sampling: dict[str, float]
    styles: list[str]
    prompt_version: int
    language: str
    licence: str
    needs_gigabytes: float
    left_out: dict[str, int]
    started_at: str | None
    finished_at: str | None
    dataset: str
    """Its address on the Hub; empty until something is there."""
    progress: statistics.Totals
    volunteers: list[VolunteerDict]
    """Most tokens first, fifty at most."""
    rejections: list[RejectionDict]


@router.get("/campaigns", response=CampaignsDict)
@decorate_view(conditional_page)
def campaigns(request: HttpRequest) -> CampaignsDict:
    """Campaigns that have begun, newest first."""
    return {"items": [campaign_dict(row) for row in statistics.shelf()]}


def campaign_dict(row: dict[str, Any]) -> CampaignDict:
    found: Campaign = row["campaign"]
    return {
        "slug": found.slug,
        "name": found.name,
        "state": found.state,
        "source": found.dataset,
        "model": found.model,
        "styles": found.styles,
        "licence": found.licence,
        "packets": row["packets"],
        "over": row["over"],
        "texts": row["texts"],
        "tokens": row["tokens"],
        "volunteers": row["volunteers"],
        "page": f"{settings.SITE_URL}{found.get_absolute_url()}",
    }


@router.get("/campaigns/{slug:slug}", response=CampaignDetail)
@decorate_view(conditional_page)
def campaign(request: HttpRequest, slug: str) -> dict[str, Any]:
    """One campaign: what it is made with, how far it is, who writes, what the checks refused."""
    found = get_object_or_404(Campaign.objects.exclude(state=Campaign.State.DRAFT), slug=slug)
    same = ("slug", "name", "state", "reason", "model", "sampling", "styles", "prompt_version", "language", "licence")
    return {
        **{name: getattr(found, name) for name in (*same, "needs_gigabytes")},
        "source": ", ".join(str(value) for value in dataset.source(found).values() if value),
        "revision": found.model_revision,
        "left_out": found.dropped,
        "started_at": moment(found.started_at),
        "finished_at": moment(found.finished_at),
        "dataset": hub_address(found),
        "progress": asdict(statistics.totals(found)),
        "volunteers": statistics.leaderboard(found),
        "rejections": statistics.rejections(found),
    }
