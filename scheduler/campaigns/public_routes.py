"""Public API of the dataset swarm: campaigns, their progress and contributors."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from ninja import Router
from typing_extensions import TypedDict

from scheduler.campaigns import dataset_files, publishing, statistics
from scheduler.campaigns.models import Campaign
from scheduler.campaigns.views import get_started_campaign

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
    """Created so far; more may follow while the source is being read."""
    over: int
    """Packets that are done or set aside."""
    texts: int
    tokens: int
    volunteers: int
    page: str


class CampaignsDict(TypedDict):
    items: list[CampaignDict]


class VolunteerDict(TypedDict):
    name: str
    """Of volunteers with an account; a number for others."""
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
    """URL on the Hub; empty before the first shard is there."""
    progress: statistics.CampaignProgress
    volunteers: list[VolunteerDict]
    """Most tokens first; at most fifty."""
    rejections: list[RejectionDict]


@router.get("/campaigns", response=CampaignsDict)
def campaigns(request: HttpRequest) -> CampaignsDict:
    """List the campaigns that have started, newest first."""
    return {"items": [build_campaign_dict(**row) for row in statistics.list_campaigns()]}


def build_campaign_dict(campaign: Campaign, **counts: Any) -> CampaignDict:
    return {
        "slug": campaign.slug,
        "name": campaign.name,
        "state": campaign.state,
        "source": campaign.dataset,
        "model": campaign.model,
        "styles": campaign.styles,
        "licence": campaign.license,
        **counts,  # type: ignore[typeddict-item]
        "page": f"{settings.SITE_URL}{campaign.get_absolute_url()}",
    }


@router.get("/campaigns/{slug:slug}", response=CampaignDetail)
def campaign(request: HttpRequest, slug: str) -> dict[str, Any]:
    """Show one campaign: settings, progress, contributors, rejections."""
    found = get_started_campaign(slug)
    names = ("slug", "name", "state", "reason", "model", "sampling", "styles", "prompt_version", "language")
    return {
        **{name: getattr(found, name) for name in (*names, "needs_gigabytes")},
        "source": ", ".join(value for value in dataset_files.get_source_fields(found).values() if value),
        "revision": found.model_revision,
        "licence": found.license,
        "left_out": found.dropped_counts,
        "started_at": format_time(found.started_at),
        "finished_at": format_time(found.finished_at),
        "dataset": publishing.get_hub_url(found),
        "progress": asdict(statistics.compute_progress(found)),
        "volunteers": statistics.list_contributors(found),
        "rejections": statistics.list_rejections(found),
    }


def format_time(time: datetime | None) -> str | None:
    return time.isoformat() if time else None
