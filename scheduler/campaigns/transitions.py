"""Changes the state of campaigns: draft -> running <-> paused -> done, by conditional UPDATE, with an event."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.utils import timezone

from scheduler.campaigns import quality, sessions
from scheduler.campaigns.models import Assignment, Campaign, Packet, Rephrasing, Volunteer
from scheduler.models import SITE_ACTOR
from scheduler.transitions import transition
from trainer.rephrase import checks, prompts

State = Campaign.State


class CampaignError(ValueError):
    """The campaign's settings are invalid; the message is a sentence."""


def validate_campaign(campaign: Campaign) -> None:
    """Raise CampaignError if the settings are invalid."""
    styles, buckets = campaign.styles, campaign.quality_buckets
    is_list = isinstance(styles, list) and all(isinstance(style, str) for style in styles)
    if not is_list or not styles or len(set(styles)) < len(styles):
        raise CampaignError(f"Styles must be a list without repeats, of: {', '.join(prompts.STYLES)}.")
    if unknown := [style for style in styles if style not in prompts.STYLES]:
        raise CampaignError(f"Unknown style {unknown[0]!r}; choose from {', '.join(prompts.STYLES)}.")
    if not isinstance(buckets, list) or any(bucket not in quality.BUCKETS for bucket in buckets):
        raise CampaignError(f"Quality buckets must be a list of: {', '.join(quality.BUCKETS)}; or empty.")
    if campaign.low_mark > campaign.high_mark:
        raise CampaignError("The low mark is above the high mark.")
    try:
        for style in styles:
            prompts.get_instructions(style, campaign.prompt_version)
        checks.merge_thresholds(campaign.thresholds)
    except (ValueError, TypeError, AttributeError) as error:
        raise CampaignError(str(error)) from error


def start_campaign(campaign: Campaign, actor: str) -> bool:
    """Start or resume a campaign, also one finished early; return whether the state changed.

    Raise CampaignError if its settings are invalid.
    """
    validate_campaign(campaign)
    message = f"{campaign.name} was {'resumed' if campaign.started_at else 'started'}."
    started_at = campaign.started_at or timezone.now()
    fields: dict[str, Any] = {"reason": "", "started_at": started_at, "finished_at": None}
    since = [State.DRAFT, State.PAUSED, *([State.DONE] if is_finished_early(campaign) else [])]
    return transition(campaign, State.RUNNING, since=since, actor=actor, message=message, **fields)


@transaction.atomic
def pause_campaign(campaign: Campaign, actor: str, reason: str = "Paused by a maintainer.") -> bool:
    """Stop creating and assigning packets; assigned ones are still accepted. Return whether the state changed."""
    message = f"{campaign.name} was paused: {reason}"
    paused = transition(campaign, State.PAUSED, since=[State.RUNNING], actor=actor, message=message, reason=reason)
    if paused:
        sessions.cancel_sessions(campaign, actor, f"{campaign.name} is paused.")
    return paused


@transaction.atomic
def finish_campaign(campaign: Campaign, actor: str, reason: str = "Finished by a maintainer.") -> bool:
    """Finish a campaign; waiting packets are left out. Return whether the state changed."""
    fields: dict[str, Any] = {"reason": reason, "finished_at": timezone.now()}
    message = f"{campaign.name} is done: {reason}"
    since = [State.RUNNING, State.PAUSED]
    done = transition(campaign, State.DONE, since=since, actor=actor, message=message, **fields)
    if done:
        sessions.cancel_sessions(campaign, actor, f"{campaign.name} is done.")
    return done


def reopen_campaign(campaign: Campaign) -> bool:
    """Resume a finished campaign that has packets to write again; return whether the state changed."""
    if campaign.state != State.DONE or not campaign.packets.filter(state=Packet.State.WAITING).exists():
        return False
    fields: dict[str, Any] = {"reason": "", "finished_at": None}
    message = f"{campaign.name} was resumed: texts were withdrawn."
    return transition(campaign, State.RUNNING, since=[State.DONE], actor=SITE_ACTOR, message=message, **fields)


def is_finished_early(campaign: Campaign) -> bool:
    """Whether a maintainer finished the campaign before every packet was written. Only a maintainer resumes it."""
    return campaign.state == State.DONE and not is_written(campaign)


# --- completion ------------------------------------------------------------------------------------------------------


def is_written(campaign: Campaign) -> bool:
    """Whether the source is exhausted and every packet is done or set aside."""
    unfinished = campaign.packets.filter(state__in=Packet.UNFINISHED)
    return campaign.is_exhausted and not unfinished.exists()


def finish_complete_campaigns() -> int:
    """Finish the campaigns whose every text is in a shard; return how many."""
    running = Campaign.objects.running().filter(is_exhausted=True)
    reason = "Every chunk is written or set aside."
    return sum(finish_campaign(campaign, SITE_ACTOR, reason) for campaign in running if is_complete(campaign))


def is_complete(campaign: Campaign) -> bool:
    """Whether all texts are in current shards and none awaits withdrawal."""
    unsharded = Rephrasing.objects.unsharded().filter(campaign=campaign)
    submitted = Assignment.objects.filter(packet__campaign=campaign, state=Assignment.State.SUBMITTED)
    banned = submitted.filter(volunteer__state=Volunteer.State.BANNED)
    outdated = campaign.shards.outdated()
    # Packets last: a concurrent withdrawal reopens them.
    return not (banned.exists() or unsharded.exists() or outdated.exists()) and is_written(campaign)
