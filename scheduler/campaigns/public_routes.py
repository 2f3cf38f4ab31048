"""Public API of the dataset swarm: campaigns, their progress and contributors."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from django.conf import settings
from django.http import HttpRequest
from ninja import Router, Schema
from pydantic import BeforeValidator, Field

from scheduler.campaigns import dataset_files, publishing, statistics
from scheduler.campaigns.models import Campaign
from scheduler.campaigns.views import get_started_campaign

router = Router()
MAX_CONTRIBUTORS = 50
Moment = Annotated[str | None, BeforeValidator(lambda at: at.isoformat() if isinstance(at, datetime) else at)]


class CampaignItem(Schema):
    slug: str
    name: str
    state: str = Field(description="running, paused or done.")
    source: str = Field(validation_alias="dataset")
    model: str
    styles: list[str]
    license: str
    packets: int = Field(
        validation_alias="packet_count", description="Created so far; more may follow while the source is being read."
    )
    over: int = Field(validation_alias="finished", description="Packets that are done or set aside.")
    texts: int
    tokens: int
    volunteers: int
    page: str

    @staticmethod
    def resolve_page(campaign: Campaign) -> str:
        return f"{settings.SITE_URL}{campaign.get_absolute_url()}"


class CampaignList(Schema):
    items: list[CampaignItem]


class Contributor(Schema):
    name: str = Field(validation_alias="public_name", description="A number for volunteers without an account.")
    packets: int
    texts: int = Field(validation_alias="accepted")
    tokens: int


class Rejection(Schema):
    reason: str
    sentence: str
    outputs: int


class CampaignDetail(Schema):
    slug: str
    name: str
    state: str
    reason: str
    source: str
    model: str
    revision: str = Field(validation_alias="model_revision")
    sampling: dict[str, float]
    styles: list[str]
    prompt_version: int
    language: str
    license: str
    needs_gigabytes: float
    left_out: dict[str, int] = Field(validation_alias="dropped_counts")
    started_at: Moment
    finished_at: Moment
    dataset: str = Field(description="URL on the Hub; empty before the first shard is there.")
    progress: statistics.CampaignProgress
    volunteers: list[Contributor] = Field(description="Most tokens first; at most fifty.")
    rejections: list[Rejection]

    @staticmethod
    def resolve_source(campaign: Campaign) -> str:
        return ", ".join(value for value in dataset_files.get_source_fields(campaign).values() if value)

    @staticmethod
    def resolve_dataset(campaign: Campaign) -> str:
        return publishing.get_hub_url(campaign)

    @staticmethod
    def resolve_progress(campaign: Campaign) -> statistics.CampaignProgress:
        return statistics.compute_progress(campaign)

    @staticmethod
    def resolve_volunteers(campaign: Campaign) -> list[Any]:
        return list(statistics.list_contributors(campaign)[:MAX_CONTRIBUTORS])

    @staticmethod
    def resolve_rejections(campaign: Campaign) -> list[dict[str, Any]]:
        return statistics.list_rejections(campaign)


@router.get("/campaigns", response=CampaignList)
def campaigns(request: HttpRequest) -> dict[str, Any]:
    """List the campaigns that have started, newest first."""
    return {"items": list(Campaign.objects.started().defer("files").with_counts())}


@router.get("/campaigns/{slug:slug}", response=CampaignDetail)
def campaign(request: HttpRequest, slug: str) -> Campaign:
    """Show one campaign: settings, progress, contributors, rejections."""
    return get_started_campaign(slug)
