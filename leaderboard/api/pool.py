"""The pool: nodes, sponsors, the queue and the calendar."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from django.db.models import Q
from django.http import HttpRequest
from django.utils import timezone
from ninja import Router, Schema
from ninja.errors import HttpError
from pydantic import BeforeValidator, Field

from leaderboard.api.auth import Bearer, Requester
from leaderboard.api.pagination import Cursor, Limit, paginate
from leaderboard.models import ApprovalLimits, Entry, Run
from leaderboard.models.runs import RunDict
from leaderboard.pool_nodes import find_working_nodes
from leaderboard.schedule import calendar
from leaderboard.schedule.start_estimates import RunStart, estimate_starts
from leaderboard.submissions import policy
from scheduler.models import Lease, Node
from scheduler.sponsors import contributions

router = Router()


def format_moment(at: datetime | None) -> str | None:
    return at.isoformat() if at else None


def format_minute(at: datetime | None) -> str | None:
    """Round an estimate down to the minute: more digits would change every response."""
    return format_moment(at.replace(second=0, microsecond=0)) if at else None


def convert_to_hours(seconds: float) -> float:
    return seconds / 3600


Moment = Annotated[str, BeforeValidator(format_moment)]
MomentOrNull = Annotated[str | None, BeforeValidator(format_moment)]
MinuteOrNull = Annotated[str | None, BeforeValidator(format_minute)]
Hours = Annotated[float, BeforeValidator(convert_to_hours)]


class Work(Schema):
    kind: str = Field(validation_alias="job.kind", description="train, score, ...")
    run: int | None
    since: Moment = Field(validation_alias="started_at")

    @staticmethod
    def resolve_run(lease: Lease) -> int | None:
        run = getattr(lease.job, "run", None) or getattr(lease.job, "scored_run", None)
        return run.pk if run else None


class PoolNode(Schema):
    id: int
    name: str
    state: str
    fault: str = Field(description="Why it is failing: self_test, job or outdated. Empty if it is not.")
    trusted: bool
    labels: list[str]
    gpus: list[str] = Field([], validation_alias="hardware.gpus")
    cpus: int | None = Field(None, validation_alias="hardware.cpus")
    memory_bytes: int | None = Field(None, validation_alias="hardware.memory_bytes")
    lanes: int = Field(validation_alias="slots")
    serves: str
    available: str
    sponsor: str = Field(description="Empty without a sponsor, or if it is anonymous.")
    last_seen: MomentOrNull
    now: list[Work]

    @staticmethod
    def resolve_sponsor(node: Node) -> str:
        sponsor = getattr(node.owner, "sponsor", None) if node.shown else None
        return sponsor.name if sponsor else ""


class NodePage(Schema):
    cursor: int | None
    items: list[PoolNode]


@router.get("/nodes", response=NodePage)
def nodes(request: HttpRequest, cursor: Cursor = None, limit: Limit = 50) -> dict[str, Any]:
    """Nodes and their work, newest node first."""
    found, links = paginate(find_working_nodes(), cursor, limit)
    return {"items": found, **links}


class Lent(Schema):
    jobs: int
    gpu_hours: Hours = Field(validation_alias="gpu_seconds")
    cpu_hours: Hours = Field(validation_alias="cpu_seconds", description="Of jobs without a GPU.")
    h100_hours: float = Field(validation_alias="credit_hours", description="GPU-hours weighted by FLOP/s.")
    first: MomentOrNull
    last: MomentOrNull


class SponsorItem(Lent):
    id: int
    name: str
    link: str
    current: bool


class SponsorsReply(Schema):
    items: list[SponsorItem] = Field(description="By name, most hours first: current sponsors, then past ones.")
    anonymous: int
    anonymous_given: Lent
    everything: Lent


@router.get("/sponsors", response=SponsorsReply)
def sponsors(request: HttpRequest) -> dict[str, Any]:
    """Sponsors and what they have lent."""
    listed = contributions.load_sponsor_list()
    items = [
        {
            **vars(one.given),
            **{name: getattr(one.sponsor, name) for name in ("id", "name", "link")},
            "current": one.current,
        }
        for one in (*listed.current, *listed.past)
    ]
    return {**vars(listed), "items": items}


class Departure(Schema):
    run: RunDict
    position: int | None = Field(description="In the queue; null if it is not queued or far back.")
    reason: str
    leaves_at: MinuteOrNull = Field(validation_alias="begins_at", description="An estimate; null: unknown.")
    arrives_at: MinuteOrNull = Field(validation_alias="ends_at")

    @staticmethod
    def resolve_run(start: RunStart) -> RunDict:
        return start.run.to_dict()


class QueueReply(Schema):
    live: list[RunDict]
    waiting: list[Departure]


@router.get("/queue", response=QueueReply)
def queue(request: HttpRequest) -> dict[str, Any]:
    """Live runs and waiting runs, in the order of the queue, each with its reason."""
    waiting = estimate_starts(list(Run.objects.waiting().with_job()), timezone.now())
    return {"live": [run.to_dict() for run in Run.objects.live().with_job()], "waiting": waiting}


class MeReply(Schema):
    name: str
    hours_a_day: float = Field(description="GPU-hours of yours that policies approve within 24 hours.")
    hours_left: float
    site_hours_left: float = Field(description="Of all authors.")
    is_paused: bool = Field(description="Nothing is approved automatically now.")
    waiting: list[Departure]


@router.get("/me", auth=Bearer(), response=MeReply)
def me(request: HttpRequest) -> dict[str, Any]:
    """Your GPU-hours of a day, and the places of your runs in the queue; needs a token."""
    requester: Requester = request.auth  # type: ignore[attr-defined]
    number = requester.job.actor_id if requester.job and requester.job.actor_id.isdecimal() else ""
    author = policy.match_person(number, requester.user.pk if requester.user else None)
    if author is None:
        raise HttpError(403, "This token names no account.")
    limits, now = ApprovalLimits.load(), timezone.now()
    waiting = Run.objects.waiting().with_job().filter(entry__in=Entry.objects.filter(author))
    return {
        "name": requester.name,
        "hours_a_day": limits.author_hours,
        "hours_left": max(limits.author_hours - policy.count_hours(author, now), 0.0),
        "site_hours_left": max(limits.site_hours - policy.count_hours(Q(), now), 0.0),
        "is_paused": limits.is_paused,
        "waiting": estimate_starts(list(waiting), now),
    }


class Due(Schema):
    what: str = Field(description="nightly, monthly, or hours: when jobs of the track may start.")
    track: str = Field(validation_alias="track.slug")
    begins: Moment
    ends: Moment


class NightItem(Schema):
    date: Moment
    track: str = Field(validation_alias="track.slug")
    sha: str
    run: int | None = Field(validation_alias="run_id")
    sentence: str


class CalendarReply(Schema):
    due: list[Due]
    nights: list[NightItem]


@router.get("/calendar", response=CalendarReply)
def due(request: HttpRequest) -> dict[str, Any]:
    """What is due in the next weeks, soonest first, and the results of the last nights. Also: `/calendar.ics`."""
    now = timezone.now()
    return {"due": calendar.list_upcoming(now), "nights": calendar.list_recent_nights(now)}
