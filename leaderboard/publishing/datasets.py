"""Queues the datasets of campaigns for the Hub: one outbox message for each campaign."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from leaderboard import outbox
from leaderboard.models import OutboxMessage
from leaderboard.publishing import hub_files, publications
from scheduler.campaigns import publishing
from scheduler.campaigns.models import Campaign

KIND = "hub.dataset"
BLOCKING_STATES = (OutboxMessage.State.PENDING, OutboxMessage.State.CLAIMED, OutboxMessage.State.FAILED)
"""Already queued, or rejected by the Hub: a rejected message waits for an operator."""


def enqueue_datasets() -> int:
    """Queue the campaigns that the Hub does not have completely; return how many."""
    if not publications.is_connected():
        return 0
    blocked = set(OutboxMessage.objects.filter(kind=KIND, state__in=BLOCKING_STATES).values_list("key", flat=True))
    campaigns = [campaign for campaign in publishing.find_unpublished() if get_key(campaign) not in blocked]
    for campaign in campaigns:
        outbox.enqueue(KIND, get_key(campaign), {"campaign": campaign.pk})
    return len(campaigns)


def get_key(campaign: Campaign) -> str:
    return f"{KIND}:{campaign.pk}"


def publish(queued: OutboxMessage) -> Mapping[str, Any]:
    """Handle a message of kind `KIND`: upload what the Hub does not have."""
    campaign = Campaign.objects.get(pk=queued.payload["campaign"])
    if not publications.is_connected():
        raise outbox.PermanentError(publications.NOT_CONFIGURED)
    if campaign.shards.outdated().exists():
        raise outbox.RetryLater("Shards are being rewritten.", timedelta(minutes=1))
    with hub_files.prepare_upload(queued, f"campaign-{campaign.pk}") as folder:
        commit = publishing.publish_dataset(campaign, folder)
    return {"repository": publishing.get_repository_name(campaign), "commit": commit, "state": campaign.state}
