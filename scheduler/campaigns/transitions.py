"""Campaigns change state: draft -> running <-> paused -> done, by conditional UPDATE, with an Event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from scheduler.campaigns import quality, sessions
from scheduler.models import Campaign, Event, Handout, Packet, Rephrasing, Volunteer
from trainer.rephrase import checks, prompts

SITE = "site"
State = Campaign.State
ON_THE_WAY = (Packet.State.WAITING, Packet.State.HELD)


class CampaignError(ValueError):
    """The campaign cannot begin; the message is a sentence."""


def check(campaign: Campaign) -> None:
    """Raise CampaignError where a campaign could only go wrong."""
    styles, buckets = campaign.styles, campaign.buckets
    if not isinstance(styles, list) or not styles or len(set(styles)) < len(styles):
        raise CampaignError("Its styles have to be a list, each once: " + ", ".join(prompts.STYLES) + ".")
    if unknown := [style for style in styles if style not in prompts.STYLES]:
        raise CampaignError(f"There is no style {unknown[0]!r}; there are {', '.join(prompts.STYLES)}.")
    if not isinstance(buckets, list) or any(bucket not in quality.BUCKETS for bucket in buckets):
        raise CampaignError(f"Its buckets have to be a list of {', '.join(quality.BUCKETS)}, or empty.")
    if campaign.low_mark > campaign.high_mark:
        raise CampaignError("Its low mark is above its high mark.")
    try:
        prompts.get_instructions(styles[0], campaign.prompt_version)
        checks.merge_thresholds(campaign.thresholds)
    except (ValueError, TypeError, AttributeError) as error:
        raise CampaignError(str(error)) from error


@transaction.atomic
def start(campaign: Campaign, by: str) -> bool:
    """Begin, or go on after a pause. Raise CampaignError where it could only go wrong."""
    check(campaign)
    first = {} if campaign.started_at else {"started_at": timezone.now()}
    sentence = f"{campaign.name} goes on." if campaign.started_at else f"{campaign.name} has begun."
    return change(campaign, State.RUNNING, [State.DRAFT, State.PAUSED], by, sentence, **first)


@transaction.atomic
def pause(campaign: Campaign, by: str, why: str = "") -> bool:
    """Read and hand out nothing more for now; what volunteers have in hand is still taken."""
    reason = why or "It was paused."
    paused = change(campaign, State.PAUSED, [State.RUNNING], by, f"{campaign.name} is paused: {reason}", reason=reason)
    if paused:
        sessions.call_off(campaign, by, f"{campaign.name} is paused.")
    return paused


@transaction.atomic
def finish(campaign: Campaign, by: str, why: str = "") -> bool:
    """End it, whatever still waits: that is left out."""
    reason = why or "It was ended by hand."
    fields: dict[str, Any] = {"reason": reason, "finished_at": timezone.now()}
    done = change(
        campaign, State.DONE, [State.RUNNING, State.PAUSED], by, f"{campaign.name} is done: {reason}", **fields
    )
    if done:
        sessions.call_off(campaign, by, f"{campaign.name} is done.")
    return done


@transaction.atomic
def reopen(campaign: Campaign) -> bool:
    """Go on with a campaign that was done, where there is something to write again."""
    if campaign.state != State.DONE or not campaign.packets.filter(state=Packet.State.WAITING).exists():
        return False
    sentence = f"{campaign.name} goes on: texts were withdrawn."
    return change(campaign, State.RUNNING, [State.DONE], SITE, sentence, finished_at=None)


@transaction.atomic
def change(campaign: Campaign, to: State, since: Sequence[State], by: str, sentence: str, **fields: Any) -> bool:
    values = {"state": to, "reason": "", **fields}
    changed = Campaign.objects.filter(pk=campaign.pk, state__in=since).update(**values)
    campaign.refresh_from_db()
    if changed:
        Event.record(by, campaign, sentence)
    return changed == 1


# --- the end ---------------------------------------------------------------------------------------------------------


def is_written(campaign: Campaign) -> bool:
    """Whether nothing more can come: all is read, and every packet is done or set aside."""
    return campaign.exhausted and not campaign.packets.filter(state__in=ON_THE_WAY).exists()


def close_all() -> int:
    """End the campaigns whose every text is in a shard; return how many."""
    running = Campaign.objects.filter(state=State.RUNNING, exhausted=True)
    return sum(finish(one, SITE, "Every chunk is written, or set aside.") for one in running if is_collated(one))


def is_collated(campaign: Campaign) -> bool:
    """Whether nothing more can come or go. Packets last: a withdrawal in between has opened some of them again."""
    loose = Rephrasing.objects.filter(campaign=campaign, state=Rephrasing.State.ACCEPTED, shard=None)
    bad = Handout.objects.filter(
        packet__campaign=campaign, volunteer__state=Volunteer.State.BARRED, state=Handout.State.TAKEN
    )
    stale = campaign.shards.exclude(written=F("version"))
    return not (bad.exists() or loose.exists() or stale.exists()) and is_written(campaign)
