"""The pool: nodes, who lends them, what waits for them, and what is due."""

from __future__ import annotations

from datetime import datetime

from django.http import HttpRequest
from django.utils import timezone
from django.views.decorators.http import conditional_page
from ninja import Router
from ninja.decorators import decorate_view
from typing_extensions import TypedDict

from leaderboard.api.pagination import Before, Cursor, Limit, Page, paginate
from leaderboard.models import Run
from leaderboard.models.runs import RunDict
from leaderboard.pool_nodes import find_working_nodes
from leaderboard.schedule import calendar
from leaderboard.schedule.start_estimates import RunStart, estimate_starts
from scheduler.models import Lease, Node
from scheduler.sponsors import contributions
from scheduler.sponsors.contributions import LentTotals, SponsorTotals

router = Router()
HOUR = 3600


def moment(at: datetime | None) -> str | None:
    return at.isoformat() if at else None


def about(at: datetime | None) -> str | None:
    """Return an estimate to the minute: more would be another answer each time."""
    return moment(at.replace(second=0, microsecond=0)) if at else None


class WorkDict(TypedDict):
    kind: str
    """train, score, ..."""
    run: int | None
    since: str


class NodeDict(TypedDict):
    id: int
    name: str
    state: str
    trusted: bool
    labels: list[str]
    gpus: list[str]
    cpus: int | None
    memory_bytes: int | None
    lanes: int
    serves: str
    available: str
    sponsor: str
    """Empty where nobody lends it, or its sponsor stays anonymous."""
    last_seen: str | None
    now: list[WorkDict]


class NodePage(Page):
    items: list[NodeDict]


@router.get("/nodes", response=NodePage)
@decorate_view(conditional_page)
def nodes(request: HttpRequest, cursor: Cursor = "", before: Before = None, limit: Limit = 50) -> NodePage:
    """Machines that have come to work, and what they do now; the latest to come first."""
    found, links = paginate(find_working_nodes(), cursor, before, limit)
    return {"items": [node_dict(node) for node in found], **links}


def node_dict(node: Node) -> NodeDict:
    sponsor = getattr(node.owner, "sponsor", None) if node.shown else None
    return {
        "id": node.pk,
        "name": node.name,
        "state": node.state,
        "trusted": node.trusted,
        "labels": node.labels,
        "gpus": node.hardware.get("gpus", []),
        "cpus": node.hardware.get("cpus"),
        "memory_bytes": node.hardware.get("memory_bytes"),
        "lanes": node.slots,
        "serves": node.serves,
        "available": node.available,
        "sponsor": sponsor.name if sponsor else "",
        "last_seen": moment(node.last_seen),
        "now": [work_dict(lease) for lease in node.now],  # type: ignore[attr-defined]
    }


def work_dict(lease: Lease) -> WorkDict:
    run = getattr(lease.job, "run", None) or getattr(lease.job, "scored_run", None)
    return {"kind": lease.job.kind, "run": run.pk if run else None, "since": lease.started_at.isoformat()}


class GivenDict(TypedDict):
    jobs: int
    gpu_hours: float
    cpu_hours: float
    """Of jobs without any GPU."""
    h100_hours: float
    """GPU-hours weighed by FLOP/s."""
    first: str | None
    last: str | None


class SponsorDict(GivenDict):
    id: int
    name: str
    link: str
    current: bool


class SponsorsDict(TypedDict):
    items: list[SponsorDict]
    """Who is named, most first: those who lend these days, then those before."""
    anonymous: int
    anonymous_given: GivenDict
    everything: GivenDict


@router.get("/sponsors", response=SponsorsDict)
@decorate_view(conditional_page)
def sponsors(request: HttpRequest) -> SponsorsDict:
    """Who lends the machines, and what they gave."""
    thanks = contributions.load_sponsor_list()
    return {
        "items": [sponsor_dict(standing) for standing in (*thanks.current, *thanks.past)],
        "anonymous": thanks.anonymous,
        "anonymous_given": given_dict(thanks.anonymous_given),
        "everything": given_dict(thanks.everything),
    }


def sponsor_dict(standing: SponsorTotals) -> SponsorDict:
    sponsor = standing.sponsor
    known: SponsorDict = {
        "id": sponsor.pk,
        "name": sponsor.name,
        "link": sponsor.link,
        "current": standing.current,
        **given_dict(standing.given),
    }
    return known


def given_dict(given: LentTotals) -> GivenDict:
    return {
        "jobs": given.jobs,
        "gpu_hours": given.gpu_seconds / HOUR,
        "cpu_hours": given.cpu_seconds / HOUR,
        "h100_hours": given.credit_hours,
        "first": moment(given.first),
        "last": moment(given.last),
    }


class DepartureDict(TypedDict):
    run: RunDict
    position: int | None
    """Among all that waits for a node; null where it does not wait there, or far back."""
    reason: str
    leaves_at: str | None
    """About; null where nobody can say."""
    arrives_at: str | None


class QueueDict(TypedDict):
    live: list[RunDict]
    waiting: list[DepartureDict]


@router.get("/queue", response=QueueDict)
@decorate_view(conditional_page)
def queue(request: HttpRequest) -> QueueDict:
    """What runs and what waits, in the order of the queue, with the reason."""
    waiting = estimate_starts(list(Run.objects.waiting().with_job()), timezone.now())
    return {
        "live": [run.to_dict() for run in Run.objects.live().with_job()],
        "waiting": [departure_dict(line) for line in waiting],
    }


def departure_dict(line: RunStart) -> DepartureDict:
    return {
        "run": line.run.to_dict(),
        "position": line.position,
        "reason": line.reason,
        "leaves_at": about(line.leaves_at),
        "arrives_at": about(line.arrives_at),
    }


class DueDict(TypedDict):
    what: str
    """nightly, monthly, or hours: when jobs of the track may start."""
    track: str
    begins: str
    ends: str


class NightDict(TypedDict):
    date: str
    track: str
    sha: str
    run: int | None
    sentence: str


class CalendarDict(TypedDict):
    due: list[DueDict]
    nights: list[NightDict]


@router.get("/calendar", response=CalendarDict)
@decorate_view(conditional_page)
def due(request: HttpRequest) -> CalendarDict:
    """What is due in the next weeks, soonest first, and what the last nights brought. Also: `/calendar.ics`."""
    now = timezone.now()
    return {
        "due": [
            {"what": one.what, "track": one.track.slug, "begins": one.begins.isoformat(), "ends": one.ends.isoformat()}
            for one in calendar.list_upcoming(now)
        ],
        "nights": [
            {
                "date": night.date.isoformat(),
                "track": night.track.slug,
                "sha": night.sha,
                "run": night.run_id,
                "sentence": night.sentence,
            }
            for night in calendar.list_recent_nights(now)
        ],
    }
