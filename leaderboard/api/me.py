"""What a token's owner may still have approved today, and where the owner's runs are in the queue."""

from __future__ import annotations

from typing import Any

from django.db.models import Q
from django.http import HttpRequest
from django.utils import timezone
from ninja import Router, Schema
from pydantic import Field

from leaderboard.api.auth import Bearer, Requester
from leaderboard.api.pool import Departure
from leaderboard.models import ApprovalLimits, Entry, Run
from leaderboard.models.entries import EntryDict
from leaderboard.schedule.start_estimates import estimate_starts
from leaderboard.submissions import policy

router = Router()
MAX_ENTRIES = 50


class MeReply(Schema):
    name: str
    hours_a_day: float = Field(description="GPU-hours of yours that policies approve within 24 hours.")
    hours_left: float
    site_hours_left: float = Field(description="Of all authors.")
    is_paused: bool = Field(description="Nothing is approved automatically now.")
    waiting: list[Departure] = Field(description="Your runs that have not started.")
    undecided: list[EntryDict] = Field(description="Your entries without an approval, the newest first.")


@router.get("/me", auth=Bearer(), response=MeReply)
def me(request: HttpRequest) -> dict[str, Any]:
    """Your GPU-hours of a day, and your places in the queue; needs a token."""
    requester: Requester = request.auth  # type: ignore[attr-defined]
    number = requester.job.actor_id if requester.job else ""
    author = policy.match_person(number, requester.user.pk if requester.user else None)
    limits, now = ApprovalLimits.load(), timezone.now()
    used = policy.count_hours(author, now) if author else 0.0
    own = Entry.objects.filter(author) if author else Entry.objects.none()
    undecided = own.proposed().select_related("track").order_by("-pk")[:MAX_ENTRIES]
    waiting = Run.objects.waiting().with_job().filter(entry__in=own.values("pk"))
    return {
        "name": requester.name,
        "hours_a_day": limits.author_hours,
        "hours_left": max(limits.author_hours - used, 0.0),
        "site_hours_left": max(limits.site_hours - policy.count_hours(Q(), now), 0.0),
        "is_paused": limits.is_paused,
        "waiting": estimate_starts(list(waiting), now),
        "undecided": [entry.to_dict() for entry in undecided],
    }
