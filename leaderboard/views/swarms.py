"""The page of a swarm run: machines, speed and events."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db.models import Count, F, Func, IntegerField, QuerySet, Sum, Value
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_POST, require_safe

from leaderboard.job_handlers import generation, swarm_sample
from leaderboard.models import Run, Swarm, SwarmEvent
from leaderboard.views.generate import INITIAL_VALUES, TextForm, identify_visitor, process_form, read_form_data
from leaderboard.views.live import LIVE_SECONDS, render_live
from leaderboard.views.same_origin import require_same_origin
from scheduler.models import Event

MAX_LISTED_EVENTS = 40
EVENTS_PER_RESPONSE = 2000
MAX_LINE_POINTS = 300
WIDTH, HEIGHT = 600, 96
What = SwarmEvent.What
COUNTED = (What.JOIN, What.LEAVE, What.BAN, What.MOVE, What.ROLLBACK)


@require_safe
def swarm(request: HttpRequest, run_id: int) -> HttpResponse:
    return render_page(request, get_swarm(run_id), TextForm(initial=INITIAL_VALUES))


@require_same_origin
@require_POST
def swarm_write(request: HttpRequest, run_id: int) -> HttpResponse:
    """Queue a prompt for the model that the swarm trains, and redirect to the page of its text."""
    found, form = get_swarm(run_id), TextForm(read_form_data(request))
    return process_form(
        form,
        lambda prompt: swarm_sample.queue_sample(found, prompt, identify_visitor(request)),
        lambda status: render_page(request, found, form, status),
    )


def render_page(request: HttpRequest, swarm: Swarm, form: TextForm, status: int = 200) -> HttpResponse:
    is_open = generation.is_open()
    context = {
        "revision": Event.get_latest_id(),
        "form": form,
        "open": is_open,
        "can_write": is_open and swarm_sample.can_sample(swarm),
        "can_try": is_open and generation.can_generate(swarm.run),
        "kept": generation.RETENTION,
    }
    return render(request, "leaderboard/swarm.html", context | build_context(swarm), status=status)


@require_safe
def swarm_live(request: HttpRequest, run_id: int) -> HttpResponse:
    found = get_swarm(run_id)
    parts = ["head", "lines", "people", "happened"]
    wait = 0 if found.run.is_over else LIVE_SECONDS
    last = list_events(found).order_by("-pk").values_list("pk", flat=True).first() or 0
    return render_live(
        "leaderboard/swarm.html", parts, build_context(found), revision=Event.get_latest_id(), wait=wait, last=last
    )


@require_safe
def swarm_events(request: HttpRequest, run_id: int) -> HttpResponse:
    """The events after `?since=`; "next" is the `since` of the next request, null at the end."""
    swarm = get_swarm(run_id)
    since = request.GET.get("since", "0")
    number = int(since) if since.isdecimal() and len(since) < 19 else 0
    events = [
        event.to_dict() for event in list_events(swarm).filter(pk__gt=number).order_by("pk")[: EVENTS_PER_RESPONSE + 1]
    ]
    more = events[EVENTS_PER_RESPONSE - 1]["id"] if len(events) > EVENTS_PER_RESPONSE else None
    return JsonResponse({"stages": swarm.size["stages"], "events": events[:EVENTS_PER_RESPONSE], "next": more})


def get_swarm(run_id: int) -> Swarm:
    """Return the swarm, unsaved before a coordinator leads it. Raises Http404 for a run of another kind."""
    run = get_object_or_404(Run.objects.with_entry().select_related("swarm"), pk=run_id)
    if not run.is_swarm:
        raise Http404
    found: Swarm = getattr(run, "swarm", None) or Swarm(run=run)
    found.run = run
    return found


def list_events(swarm: Swarm) -> QuerySet[SwarmEvent]:
    return SwarmEvent.objects.filter(swarm=swarm) if swarm.pk else SwarmEvent.objects.none()


# --- what is shown ---------------------------------------------------------------------------------------------------


def build_context(swarm: Swarm) -> dict[str, Any]:
    events = list_events(swarm)
    last = events.filter(what=What.STEP).order_by("-pk").first()
    recent = events.exclude(what__in=[What.STEP, What.ADDRESS, What.CHECKPOINT]).order_by("-pk")[:MAX_LISTED_EVENTS]
    return {
        "swarm": swarm,
        "run": swarm.run,
        "size": swarm.size,
        "stages": build_stages(swarm, last),
        "last": last,
        "counts": count_events(events),
        "lines": build_charts(events),
        "people": list_contributors(swarm),
        "happened": [(event, describe_event(event)) for event in recent],
        "server": settings.SITE_URL,
        "going": swarm.run.state == Run.State.TRAINING,
    }


def build_stages(swarm: Swarm, last: SwarmEvent | None) -> list[list[dict[str, Any]]]:
    """Return each stage's machines with their rows of the last step; of a finished run, those of its last step."""
    seats = list(swarm.seats.exclude(peer="").order_by("pk")) if swarm.pk else []
    held = (last.data.get("held") or {}) if last else {}
    over = swarm.run.is_over or swarm.run.state == Run.State.SCORING
    stages = []
    for number in range(swarm.size["stages"]):
        rows = held.get(str(number), {})
        there = [seat for seat in seats if (seat.peer in rows if over else seat.stage == number)]
        stages.append([{"seat": seat, "rows": rows.get(seat.peer, 0)} for seat in there])
    return stages


def count_events(events: QuerySet[SwarmEvent]) -> dict[str, int]:
    counts = dict(events.filter(what__in=COUNTED).order_by().values_list("what").annotate(Count("pk")))
    return {what.value: counts.get(what.value, 0) for what in COUNTED}


def list_contributors(swarm: Swarm) -> list[dict[str, Any]]:
    if not swarm.pk:
        return []
    sums = {"rows": Sum("rows"), "bytes": Sum(F("bytes_in") + F("bytes_out")), "seats": Count("pk")}
    rows: list[dict[str, Any]] = [
        dict(row)
        for row in swarm.seats.exclude(name="").order_by().values("name").annotate(**sums).order_by("-rows", "name")
    ]
    total = sum(row["rows"] for row in rows)
    return [{**row, "share": row["rows"] / total if total else 0.0} for row in rows]


def describe_event(event: SwarmEvent) -> str:
    """Return an event in a sentence."""
    peer, stage = event.name or event.peer, (event.stage or 0) + 1
    match event.what:
        case What.JOIN:
            return f"{peer} took a seat at stage {stage}."
        case What.LEAVE:
            return f"{peer} left stage {stage}: {event.why}."
        case What.BAN if event.data.get("lasting"):
            return f"{peer} is banned from this run: {event.why}."
        case What.BAN:
            return f"{peer} failed and is left alone for half a minute: {event.why}."
        case What.MOVE:
            return f"{peer} moves from stage {event.data.get('source', 0) + 1} to stage {stage}."
        case What.ROLLBACK:
            return f"A stage lost all its machines: back from step {event.data.get('since', 0)} to {event.step}."
        case What.END:
            return "The run has ended."
        case _:
            return "The coordinator has connected."


# --- lines -----------------------------------------------------------------------------------------------------------


def build_charts(events: QuerySet[SwarmEvent]) -> list[dict[str, Any]]:
    """Return the charts of loss and throughput over the steps."""
    steps = events.filter(what=What.STEP)
    most = steps.order_by("-step").values_list("step", flat=True).first() or 0
    stride = max(1, -(-most // MAX_LINE_POINTS))
    kept = steps.annotate(rest=Func(F("step"), Value(stride), function="MOD", output_field=IntegerField()))
    rows = kept.filter(rest=0).order_by("pk").values_list("step", "data")
    latest = dict(rows)  # a step that was made again counts once
    found = [("loss", "Loss", "nats per token", 3), ("tokens_per_second", "Throughput", "tokens a second", 0)]
    return [build_chart(latest, name, title, unit, digits) for name, title, unit, digits in found if latest]


def build_chart(rows: dict[int, dict[str, Any]], name: str, title: str, unit: str, digits: int) -> dict[str, Any]:
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
