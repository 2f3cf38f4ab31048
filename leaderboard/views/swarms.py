"""The page of a run that many machines train together: who is where, how fast it goes, what has happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db.models import Count, F, Func, IntegerField, QuerySet, Sum, Value
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.template.loader import render_to_string
from django.views.decorators.http import require_safe

from leaderboard.models import Run, Swarm, SwarmEvent
from leaderboard.views.live import LIVE_SECONDS, latest_event

LISTED = 40
"""Happenings that the page lists."""
PAGE = 2000
"""Events of one answer."""
POINTS = 300
"""Steps that a line is drawn through."""
WIDTH, HEIGHT = 600, 96
What = SwarmEvent.What
COUNTED = (What.JOIN, What.LEAVE, What.BAN, What.MOVE, What.ROLLBACK)


@require_safe
def swarm(request: HttpRequest, run_id: int) -> HttpResponse:
    found = get_swarm(run_id)
    context = {"revision": latest_event(), **build_context(found)}
    return render(request, "leaderboard/swarm.html", context)


@require_safe
def swarm_live(request: HttpRequest, run_id: int) -> HttpResponse:
    found = get_swarm(run_id)
    context = build_context(found)
    parts = {
        name: render_to_string(f"leaderboard/parts/swarm_{name}.html", context)
        for name in ("head", "lines", "people", "happened")
    }
    over = found.run.is_over
    return JsonResponse(
        {
            "parts": parts,
            "last": get_latest_event_id(found),
            "revision": latest_event(),
            "wait": 0 if over else LIVE_SECONDS,
        }
    )


@require_safe
def swarm_events(request: HttpRequest, run_id: int) -> HttpResponse:
    """The record, `?since=` an event's number; "next" is where the rest begins, null at its end."""
    found = get_swarm(run_id)
    since = request.GET.get("since", "0")
    number = int(since) if since.isdecimal() and len(since) < 19 else 0
    events = [event.to_dict() for event in found.events.filter(pk__gt=number).order_by("pk")[: PAGE + 1]]
    more = events[PAGE - 1]["id"] if len(events) > PAGE else None
    return JsonResponse({"stages": found.size["stages"], "events": events[:PAGE], "next": more})


def get_swarm(run_id: int) -> Swarm:
    """Return the swarm; 404 for a run of another kind. One that nobody leads yet is thought of, not made."""
    run = get_object_or_404(Run.objects.with_entry().select_related("swarm"), pk=run_id)
    if not run.is_swarm:
        raise Http404
    found: Swarm | None = getattr(run, "swarm", None)
    found = found or Swarm(run=run)
    found.run = run
    return found


def get_latest_event_id(swarm: Swarm) -> int:
    return (list_events(swarm).order_by("-pk").values_list("pk", flat=True).first() or 0) if swarm.pk else 0


def list_events(swarm: Swarm) -> QuerySet[SwarmEvent]:
    return SwarmEvent.objects.filter(swarm=swarm) if swarm.pk else SwarmEvent.objects.none()


# --- what is shown ---------------------------------------------------------------------------------------------------


def build_context(swarm: Swarm) -> dict[str, Any]:
    events = list_events(swarm)
    last = events.filter(what=What.STEP).order_by("-pk").first()
    return {
        "swarm": swarm,
        "run": swarm.run,
        "size": swarm.size,
        "stages": stages(swarm, last),
        "last": last,
        "counts": counts(events),
        "lines": lines(events),
        "people": people(swarm),
        "happened": [Happening(event) for event in list_recent_events(events)],
        "server": settings.SITE_URL,
        "going": swarm.run.state == Run.State.TRAINING,
    }


def stages(swarm: Swarm, last: SwarmEvent | None) -> list[list[dict[str, Any]]]:
    """Return for each stage the machines that are there, with the rows of text that each had in the last step; of a run
    that is over, those that made it."""
    seats = list(swarm.seats.exclude(peer="").order_by("pk")) if swarm.pk else []
    held = (last.data.get("held") or {}) if last else {}
    over = swarm.run.is_over or swarm.run.state == Run.State.SCORING
    found = []
    for number in range(swarm.size["stages"]):
        rows = held.get(str(number), {})
        there = [seat for seat in seats if (seat.peer in rows if over else seat.stage == number)]
        found.append([{"seat": seat, "rows": rows.get(seat.peer, 0)} for seat in there])
    return found


def counts(events: QuerySet[SwarmEvent]) -> dict[str, int]:
    """Return how often each thing has happened."""
    found = dict(events.filter(what__in=COUNTED).order_by().values_list("what").annotate(Count("pk")))
    return {what.value: found.get(what.value, 0) for what in COUNTED}


def people(swarm: Swarm) -> list[dict[str, Any]]:
    """Return what each volunteer's machine has contributed, the most first."""
    if not swarm.pk:
        return []
    sums = {"rows": Sum("rows"), "bytes": Sum(F("bytes_in") + F("bytes_out")), "seats": Count("pk")}
    found: list[dict[str, Any]] = [
        dict(one)
        for one in swarm.seats.exclude(name="").order_by().values("name").annotate(**sums).order_by("-rows", "name")
    ]
    total = sum(one["rows"] for one in found)
    return [{**one, "share": one["rows"] / total if total else 0.0} for one in found]


def list_recent_events(events: QuerySet[SwarmEvent]) -> QuerySet[SwarmEvent]:
    return events.exclude(what__in=[What.STEP, What.ADDRESS, What.CHECKPOINT]).order_by("-pk")[:LISTED]


@dataclass(frozen=True)
class Happening:
    """An event in a sentence."""

    event: SwarmEvent

    @property
    def who(self) -> str:
        return self.event.name or self.event.peer

    @property
    def sentence(self) -> str:
        event = self.event
        stage = (event.stage or 0) + 1
        match event.what:
            case What.JOIN:
                return f"{self.who} took a seat at stage {stage}."
            case What.LEAVE:
                return f"{self.who} left stage {stage}: {event.why}."
            case What.BAN if event.data.get("lasting"):
                return f"{self.who} is banned from this run: {event.why}."
            case What.BAN:
                return f"{self.who} failed and is left alone for half a minute: {event.why}."
            case What.MOVE:
                return f"{self.who} moves from stage {event.data.get('source', 0) + 1} to stage {stage}."
            case What.ROLLBACK:
                return f"A stage had nobody left: back from step {event.data.get('since', 0)} to {event.step}."
            case What.END:
                return "The run has ended."
            case _:
                return "A coordinator is there."


# --- lines -----------------------------------------------------------------------------------------------------------


def lines(events: QuerySet[SwarmEvent]) -> list[dict[str, Any]]:
    """Return the pictures: loss and throughput over the steps, as points of an SVG."""
    steps = events.filter(what=What.STEP)
    most = steps.order_by("-step").values_list("step", flat=True).first() or 0
    stride = max(1, -(-most // POINTS))
    kept = steps.annotate(rest=Func(F("step"), Value(stride), function="MOD", output_field=IntegerField()))
    rows = kept.filter(rest=0).order_by("pk").values_list("step", "data")
    latest = dict(rows)  # a step that was made again counts once
    found = [("loss", "Loss", "nats per token", 3), ("tokens_per_second", "Throughput", "tokens a second", 0)]
    return [picture(latest, name, title, unit, digits) for name, title, unit, digits in found if latest]


def picture(rows: dict[int, dict[str, Any]], name: str, title: str, unit: str, digits: int) -> dict[str, Any]:
    values = {step: float(data[name]) for step, data in sorted(rows.items()) if data.get(name) is not None}
    low, high = min(values.values(), default=0.0), max(values.values(), default=1.0)
    low = 0.0 if name == "tokens_per_second" else low
    first, last = min(values, default=0), max(values, default=1)

    def place(step: int, value: float) -> str:
        x = WIDTH * (step - first) / max(last - first, 1)
        y = 4 + (HEIGHT - 8) * (1 - (value - low) / max(high - low, 1e-12))
        return f"{x:.1f},{y:.1f}"

    return {
        "name": name,
        "title": title,
        "unit": unit,
        "points": " ".join(place(step, value) for step, value in values.items()),
        "now": f"{list(values.values())[-1]:,.{digits}f}" if values else "",
        "low": f"{low:,.{digits}f}",
        "high": f"{high:,.{digits}f}",
        "first": first,
        "last": last,
        "width": WIDTH,
        "height": HEIGHT,
    }
