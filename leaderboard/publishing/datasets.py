"""Campaigns of the dataset swarm go to the Hub: their shards in batches, each batch a commit, and a card that follows.

An effect for each campaign, wanted whenever there is something that the Hub does not have. What it has is noted shard
by shard after each commit; where that note was lost, the same files again make no new commit. So a row is on the Hub
once, in the file of its shard, whatever dies on the way; a shard that lost rows replaces its file. The manifest and the
card come with the last of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db.models import F

from leaderboard import outbox
from leaderboard.models import Effect
from leaderboard.publishing import hub_files, publications
from scheduler import hub
from scheduler.campaigns import dataset
from scheduler.models import Campaign, Event, Shard

KIND = "hub.dataset"
IN_ONE_COMMIT = 20
"""Shards: what has been sent of a large dataset stays when the next batch breaks."""
ON_ITS_WAY = (Effect.State.WANTED, Effect.State.DOING)
SITE = "site"


def publish_all() -> int:
    """Ask for what the Hub does not have yet; return for how many campaigns."""
    if not publications.is_connected():
        return 0
    begun = Campaign.objects.exclude(state=Campaign.State.DRAFT).exclude(target="")
    wanted = [campaign for campaign in begun.defer("files") if is_behind(campaign)]
    for campaign in wanted:
        outbox.want(KIND, key(campaign), {"campaign": campaign.pk})
    return len(wanted)


def is_behind(campaign: Campaign) -> bool:
    """Whether there is something to publish, and nobody is at it."""
    done = Effect.objects.filter(key=key(campaign)).first()
    if done is not None and done.state in (*ON_ITS_WAY, Effect.State.REFUSED):
        return False  # what was refused waits for somebody to look
    written = dataset.shards(campaign)
    if any(shard.blob and shard.published != shard.blob.sha256 for shard in written):
        return True
    return bool(written) and done is not None and done.result.get("state") != campaign.state


def key(campaign: Campaign) -> str:
    return f"hub.dataset:{campaign.pk}"


def repository_name(campaign: Campaign) -> str:
    return f"{settings.HUB_ORGANISATION}/{campaign.target}"


def hub_address(campaign: Campaign) -> str:
    """Return where to find it on the Hub; empty until something is there."""
    there = bool(campaign.target) and campaign.shards.exclude(published="").exists()
    return f"{settings.HUB_ENDPOINT}/datasets/{repository_name(campaign)}" if there else ""


def carry_out(effect: Effect) -> Mapping[str, Any]:
    """Handler of `KIND`: bring what is missing, batch by batch."""
    campaign = Campaign.objects.get(pk=effect.payload["campaign"])
    if not publications.is_connected():
        raise outbox.Refused("The site knows no Hub: set HUB_ORGANISATION and HF_TOKEN, then do this again.")
    if campaign.shards.exclude(written=F("version")).exists():
        raise outbox.Later("Waits for shards that are being written anew.", timedelta(minutes=1))
    name = repository_name(campaign)
    repository = hub.Repository(name, endpoint=settings.HUB_ENDPOINT, token=settings.HF_TOKEN, kind="dataset")
    folder = Path(settings.HOME) / "publishing" / f"campaign-{campaign.pk}"
    try:
        with outbox.held(effect), hub_files.empty(folder):
            commit = brought(campaign, repository, folder)
    except hub.HubBusyError as error:
        raise outbox.Later(str(error), timedelta(seconds=error.after) if error.after else None) from error
    except hub.HubError as error:
        raise outbox.Refused(str(error)) from error
    return {"repository": name, "commit": commit, "state": campaign.state}


def brought(campaign: Campaign, repository: hub.Repository, folder: Path) -> str:
    """Bring what is missing to the Hub, what is said of it last; return the last commit."""
    repository.ensure()
    refuse_others(campaign, repository)
    written = dataset.shards(campaign)
    missing = [shard for shard in written if shard.blob and shard.published != shard.blob.sha256]
    words = [hub.FileAddition(path, content) for path, content in dataset.words(campaign, written).items()]
    rows = sum(shard.rows for shard in written)
    *batches, last = [missing[begin : begin + IN_ONE_COMMIT] for begin in range(0, len(missing), IN_ONE_COMMIT)] or [[]]
    for batch in batches:
        send(campaign, repository, files(batch, folder), f"Shards {batch[0].number} to {batch[-1].number}", batch)
    return send(campaign, repository, [*files(last, folder), *words], f"{rows:,} rows", last)


def files(batch: Sequence[Shard], folder: Path) -> list[hub.FileAddition]:
    return [hub.FileAddition(shard.name, hub_files.on_disk(shard.blob, folder)) for shard in batch if shard.blob]


def send(
    campaign: Campaign,
    repository: hub.Repository,
    additions: Sequence[hub.FileAddition],
    title: str,
    batch: Sequence[Shard],
) -> str:
    """Make one commit, and note which shards are there with it; return it."""
    commit = repository.publish(additions, title, mark(campaign), repository.commits())
    for shard in batch:
        assert shard.blob is not None, "it is written"
        Shard.objects.filter(pk=shard.pk).update(published=shard.blob.sha256)
    if batch:
        Event.record(SITE, campaign, f"{len(batch)} shards of {campaign.name} went to {repository.name}.")
    return commit


def refuse_others(campaign: Campaign, repository: hub.Repository) -> None:
    """Raise HubError where the repository holds what is not this campaign's."""
    marks = {told for commit in repository.commits() for told in commit.marks}
    if others := marks - {mark(campaign)}:
        raise hub.HubError(f"{repository.name} holds what came from {min(others)}: nothing was changed there.")


def mark(campaign: Campaign) -> str:
    return f"{settings.SITE_URL}{campaign.get_absolute_url()}"
