"""Publishes the datasets of campaigns on the Hugging Face Hub.

Shards go in batches, one commit each; card and manifest come with the last. Each shard records what the Hub has. If
that record is lost, a retry sends equal files and creates no new commit. So each row is on the Hub once, in its shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from django.conf import settings
from django.db.models import Exists, F, OuterRef, Q, QuerySet

from scheduler import hub, storage
from scheduler.campaigns import dataset_files
from scheduler.campaigns.models import Campaign, Shard
from scheduler.models import SITE_ACTOR, Event

SHARDS_PER_COMMIT = 20
"""A failed upload of a large dataset keeps the batches before it."""


def find_unpublished() -> QuerySet[Campaign]:
    """Return the campaigns with shards, or a state, that the Hub does not have."""
    current = Shard.objects.current().filter(campaign=OuterRef("pk"))
    campaigns = Campaign.objects.started().exclude(hub_name="").filter(Exists(current)).defer("files")
    return campaigns.filter(Exists(current.unpublished()) | ~Q(published_state=F("state")))


def get_repository_name(campaign: Campaign) -> str:
    return f"{settings.HUB_ORGANIZATION}/{campaign.hub_name}"


def get_hub_url(campaign: Campaign) -> str:
    """Return the dataset's URL on the Hub; empty before the first shard is there."""
    is_published = bool(campaign.hub_name) and campaign.shards.exclude(published_sha256="").exists()
    return f"{settings.HUB_ENDPOINT}/datasets/{get_repository_name(campaign)}" if is_published else ""


def publish_dataset(campaign: Campaign, folder: Path) -> str:
    """Upload what the Hub does not have; return the last commit. Raise HubError.

    `folder`: for temporary files.
    """
    name = get_repository_name(campaign)
    repository = hub.Repository(name, endpoint=settings.HUB_ENDPOINT, token=settings.HF_TOKEN, kind="dataset")
    repository.create_if_missing()
    marks = {mark for commit in repository.list_commits() for mark in commit.marks}
    if others := marks - {get_commit_mark(campaign)}:
        raise hub.HubError(f"{name} was published from {min(others)}; nothing was changed.")
    shards = list(campaign.shards.current())
    texts = dataset_files.build_text_files(campaign, shards)
    outdated = [shard for shard in shards if shard.blob and shard.published_sha256 != shard.blob.sha256]
    starts = range(0, len(outdated), SHARDS_PER_COMMIT)
    *batches, last = [outdated[start : start + SHARDS_PER_COMMIT] for start in starts] or [[]]
    for batch in batches:
        title = f"Shards {batch[0].number} to {batch[-1].number}"
        commit_shards(campaign, repository, batch, title, folder)
    title = f"{sum(shard.rows for shard in shards):,} rows"
    additions = [hub.FileAddition(path, content) for path, content in texts.items()]
    commit = commit_shards(campaign, repository, last, title, folder, additions)
    Campaign.objects.filter(pk=campaign.pk).update(published_state=campaign.state)
    return commit


def commit_shards(
    campaign: Campaign,
    repository: hub.Repository,
    batch: Sequence[Shard],
    title: str,
    folder: Path,
    additions: Sequence[hub.FileAddition] = (),
) -> str:
    """Upload shards and other files in one commit, record the shards as published, and return the commit."""
    blobs = {shard: shard.blob for shard in batch if shard.blob}
    files = [hub.FileAddition(shard.name, storage.copy_to_disk(blob, folder)) for shard, blob in blobs.items()]
    commit = repository.publish([*files, *additions], title, get_commit_mark(campaign), repository.list_commits())
    for shard, blob in blobs.items():
        Shard.objects.filter(pk=shard.pk).update(published_sha256=blob.sha256)
    if batch:
        Event.record(
            SITE_ACTOR, campaign, f"{len(batch)} shards of {campaign.name} were published as {repository.name}."
        )
    return commit


def get_commit_mark(campaign: Campaign) -> str:
    return f"{settings.SITE_URL}{campaign.get_absolute_url()}"
