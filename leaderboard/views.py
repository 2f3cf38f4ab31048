"""The public pages: find, act, render. Each has a small JSON of what moves, which its script asks for."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import Prefetch, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.template.loader import render_to_string
from django.utils import timezone
from django.views.decorators.http import condition, require_POST, require_safe
from django_celery_beat.models import PeriodicTask

from leaderboard import asking, charts, standings
from leaderboard import multiplier_pictures as pictures
from leaderboard.departures import Departure, departures, in_queue
from leaderboard.judged import name_of
from leaderboard.models import Entry, Run, Track
from leaderboard.runs import RunError
from leaderboard.standings import Standings
from scheduler.models import Event, Lease, LogChunk, Node
from trainer.scoring.multiplier import AXES, Axis

LIVE_SECONDS = 2
"""How soon a page asks again while something moves; `IDLE_SECONDS` while nothing does, 0 when it never will again."""
IDLE_SECONDS = 10
FAILURES = 5
ARRIVALS = 8
NIGHTLY = "leaderboard.tasks.nightly"
LOG_CHUNKS = 20
LOG_LINES = 200


def latest_event() -> int:
    """Return the number of the last change of any state: when it grows, a page loads itself anew."""
    return Event.objects.order_by("-pk").values_list("pk", flat=True).first() or 0


def online_nodes() -> int:
    return Node.objects.filter(state__in=[Node.State.ONLINE, Node.State.DRAINING]).count()


def with_job(runs: QuerySet[Run]) -> QuerySet[Run]:
    return runs.select_related("entry", "track", "season", "job")


# --- the board ----------------------------------------------------------------------------------------------------


@require_safe
def board(request: HttpRequest) -> HttpResponse:
    """The default track's table, tonight's train on top; `?axis=seconds` compares what a user waits for."""
    tracks = list(Track.objects.in_order())
    default = min(tracks, key=lambda track: not track.is_default, default=None)
    return track_page(request, default, tracks) if default else render(request, "leaderboard/empty.html")


@require_safe
def track(request: HttpRequest, slug: str) -> HttpResponse:
    tracks = list(Track.objects.in_order())
    found = next((track for track in tracks if track.slug == slug), None)
    if found is None:
        raise Http404
    return track_page(request, found, tracks)


def track_page(request: HttpRequest, track: Track, tracks: list[Track]) -> HttpResponse:
    live = list(Run.objects.live())
    here = [run for run in live if run.track_id == track.pk]
    waiting = list(with_job(Run.objects.waiting()))
    table = standings.of(track, axis_of(request))
    scale = pictures.scale_of(table.rows)
    context = {
        "track": track,
        "tracks": tracks,
        "axes": AXES,
        "standings": table,
        "scale": scale,
        "rows": [(row, pictures.whisker(row, scale)) for row in table.rows],
        "ladder": pictures.ladder_picture(table),
        **train(here),
        "also": here[1:],
        "departures": [line for line in departures(waiting, timezone.now()) if line.run.track_id == track.pk],
        "next_night": None if here else next_night(),
        "failures": Run.objects.failed().filter(track=track)[:FAILURES],
        "revision": latest_event(),
    }
    return render(request, "leaderboard/board.html", context)


def axis_of(request: HttpRequest) -> Axis:
    """Return what compute means on this page: `?axis=`, FLOPs unless another one is named."""
    return next((axis for axis in AXES if axis == request.GET.get("axis")), AXES[0])


def train(live: list[Run]) -> dict[str, Any]:
    """Return what `parts/train.html` shows of the train that runs; the nightly one goes before others."""
    live.sort(key=lambda run: run.purpose != Run.Purpose.NIGHTLY)
    if not live:
        return {"run": None}
    return {"run": live[0], "picture": charts.picture(live[0], charts.curve_of(live[0]))}


def next_night() -> datetime | None:
    """Return when the nightly run is due, as set in the admin; None when it is switched off."""
    task = PeriodicTask.objects.filter(task=NIGHTLY, enabled=True).select_related("crontab").first()
    if task is None or task.crontab is None:
        return None
    now = timezone.now()
    left: timedelta = task.crontab.schedule.remaining_estimate(now)
    return now + left


def track_etag(request: HttpRequest, slug: str) -> str:
    return f'"{Run.objects.live().filter(track__slug=slug).version()}-{latest_event()}"'


@require_safe
@condition(etag_func=track_etag)
def track_live(request: HttpRequest, slug: str) -> JsonResponse:
    context = train(list(Run.objects.live().filter(track__slug=slug)))
    return JsonResponse(
        {
            "parts": {"train": render_to_string("leaderboard/parts/train.html", context)} if context["run"] else {},
            "revision": latest_event(),
            "wait": LIVE_SECONDS if context["run"] else IDLE_SECONDS,
        }
    )


# --- entries and runs ---------------------------------------------------------------------------------------------


@require_safe
def entry(request: HttpRequest, entry_id: int) -> HttpResponse:
    found = get_object_or_404(Entry.objects.select_related("track__season"), pk=entry_id)
    table = standings.of(found.track, axis_of(request))
    context = {
        "entry": found,
        "runs": found.runs.select_related("entry", "track").order_by("-created_at"),
        "axes": AXES,
        "standings": table,
        **row_of(table, found),
        "events": Event.objects.about(found),
        "revision": latest_event(),
    }
    return render(request, "leaderboard/entry.html", context)


def row_of(table: Standings, entry: Entry) -> dict[str, Any]:
    """Return an entry's row with its drawing, for a page that shows it alone."""
    row = table.row(entry.pk)
    scale = pictures.scale_of([row]) if row else None
    return {"row": row, "scale": scale, "whisker": pictures.whisker(row, scale) if row else None}


def results_etag(request: HttpRequest, **where: Any) -> str:
    return f'"{axis_of(request)}-{Run.objects.filter(state=Run.State.FINISHED).version()}-{latest_event()}"'


@require_safe
@condition(etag_func=results_etag)
def track_results(request: HttpRequest, slug: str) -> JsonResponse:
    """The records behind a track's multipliers, and these: what `dailytrain multiplier` takes."""
    found = get_object_or_404(Track.objects.select_related("season"), slug=slug)
    return results({**standings.of(found, axis_of(request)).to_dict()})


@require_safe
@condition(etag_func=results_etag)
def entry_results(request: HttpRequest, entry_id: int) -> JsonResponse:
    """The same, with the entry's own line on top."""
    found = get_object_or_404(Entry.objects.select_related("track__season"), pk=entry_id)
    table = standings.of(found.track, axis_of(request))
    estimate = standings.estimate_dict(table, found.pk)
    return results({"entry": name_of(found.pk), "estimate": estimate, **table.to_dict()})


def results(content: dict[str, Any]) -> JsonResponse:
    return JsonResponse(content, json_dumps_params={"indent": 1, "allow_nan": False})


@require_safe
def run(request: HttpRequest, run_id: int) -> HttpResponse:
    """One run, whole; `?x=tokens|seconds|step` chooses what the curve is drawn over."""
    found = get_object_or_404(with_job(Run.objects.all()), pk=run_id)
    curve = charts.curve_of(found)
    x = next((name for name in charts.ABSCISSAE if name == request.GET.get("x")), charts.ABSCISSAE[0])
    context = {
        "run": found,
        "x": x,
        "abscissae": charts.ABSCISSAE,
        "picture": charts.picture(found, curve, x),
        "evaluations": curve.dev,
        "samples": newest_first(list(found.samples.all())),
        "scores": sorted(found.scores.all(), key=lambda score: ("/" in score.name, score.name)),
        "events": Event.objects.about(found),
        "log": log_tail(found),
        "departure": departure_of(found),
        "wishes": asking.possible(request.user, found),
        **standing_of(found),
        "revision": latest_event(),
    }
    return render(request, "leaderboard/run.html", context)


def departure_of(run: Run) -> Departure | None:
    """Return when a run leaves or goes on that waits for a node, for what it waits, and when it arrives."""
    return departures([run], timezone.now())[0] if in_queue(run) else None


@require_POST
def run_ask(request: HttpRequest, run_id: int, wish: str) -> HttpResponse:
    """Do what its author or a maintainer asks of a run."""
    found = get_object_or_404(with_job(Run.objects.all()), pk=run_id)
    if wish not in asking.WISHES:
        raise Http404
    if not asking.may_ask(request.user, found):
        raise PermissionDenied
    try:
        messages.success(request, asking.ask(found, wish, request.user))
    except RunError as error:
        messages.error(request, str(error))
    return redirect(found)


def standing_of(run: Run) -> dict[str, Any]:
    """Return where a judged run's entry stands; nothing while it is under way."""
    if run.state != Run.State.FINISHED or run.season_id != run.track.season_id:
        return {}
    run.track.season = run.season  # the same row: no second query for it
    table = standings.of(run.track)
    return {"standings": table, "row": table.row(run.entry_id)}


def newest_first(samples: list[Any]) -> list[tuple[int, list[Any]]]:
    """Return (step, samples) pairs, the last step first."""
    steps = sorted({sample.step for sample in samples}, reverse=True)
    return [(step, [sample for sample in samples if sample.step == step]) for step in steps]


def log_tail(run: Run) -> str:
    """Return the last lines of the training process's output, without what only a terminal understands."""
    if run.job_id is None:
        return ""
    chunks = LogChunk.objects.filter(lease__job=run.job_id).order_by("-lease_id", "-offset")[:LOG_CHUNKS]
    text = "".join(reversed([chunk.text for chunk in chunks]))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|[^\n]*\r(?!\n)|[\x00-\x08\x0b-\x1f\x7f]", "", text)
    return "\n".join(text.splitlines()[-LOG_LINES:])


def run_etag(request: HttpRequest, run_id: int) -> str:
    revision = Run.objects.filter(pk=run_id).values_list("revision", flat=True).first()
    log = Lease.objects.filter(job__run=run_id).order_by("-pk").values_list("pk", "log_received").first()
    return f'"{revision}-{log}-{latest_event()}"'


@require_safe
@condition(etag_func=run_etag)
def run_live(request: HttpRequest, run_id: int) -> JsonResponse:
    found = get_object_or_404(with_job(Run.objects.all()), pk=run_id)
    curve = charts.curve_of(found)
    return JsonResponse(
        {
            "parts": {
                "head": render_to_string(
                    "leaderboard/parts/run_head.html", {"run": found, "departure": departure_of(found)}
                ),
                "log": render_to_string("leaderboard/parts/log.html", {"run": found, "log": log_tail(found)}),
            },
            "curve": columns(found, curve),
            "revision": latest_event(),
            "wait": 0 if found.is_over else LIVE_SECONDS,
        }
    )


def columns(run: Run, curve: charts.Curve) -> dict[str, Any]:
    """Return the curve as uPlot wants it: a list per column, and for each x where its axis ends."""
    last = curve.train[-1] if curve.train else None
    return {
        "train": {
            **{name: [getattr(point, name) for point in curve.train] for name in (*charts.ABSCISSAE, "loss")},
            "smooth": [round(value, 5) for value in curve.smooth],
        },
        "dev": {
            name: [getattr(point, name) for point in curve.dev] for name in (*charts.ABSCISSAE, "loss", "bits_per_byte")
        },
        "end": {name: charts.end_of_line(run, float(getattr(last, name))) if last else 0 for name in charts.ABSCISSAE},
    }


# --- queue and nodes ----------------------------------------------------------------------------------------------


def timetable() -> dict[str, Any]:
    """Return what runs and what waits, on all tracks."""
    live, online = list(with_job(Run.objects.live())), online_nodes()
    waiting = list(with_job(Run.objects.waiting()))
    return {"live": live, "departures": departures(waiting, timezone.now()), "online": online}


@require_safe
def queue(request: HttpRequest) -> HttpResponse:
    """Departures and arrivals of all tracks."""
    context = {
        **timetable(),
        "arrivals": Run.objects.with_entry().filter(state=Run.State.FINISHED).order_by("-finished_at")[:ARRIVALS],
        "failures": Run.objects.failed()[:FAILURES],
        "revision": latest_event(),
    }
    return render(request, "leaderboard/queue.html", context)


def queue_etag(request: HttpRequest) -> str:
    return f'"{Run.objects.live().version()}-{latest_event()}"'


@require_safe
@condition(etag_func=queue_etag)
def queue_live(request: HttpRequest) -> JsonResponse:
    context = timetable()
    return JsonResponse(
        {
            "parts": {"departures": render_to_string("leaderboard/parts/timetable.html", context)},
            "revision": latest_event(),
            "wait": LIVE_SECONDS if context["live"] else IDLE_SECONDS,
        }
    )


def nodes_at_work() -> QuerySet[Node]:
    """Return all nodes that may work, with `node.now`: their active leases."""
    active = Lease.objects.filter(state=Lease.State.ACTIVE).select_related(
        "job__run__entry", "job__run__track", "job__scored_run__entry", "job__scored_run__track"
    )
    come = Node.objects.exclude(state=Node.State.BANNED).exclude(token_hash=None, last_seen=None)
    return come.select_related("owner__sponsor").prefetch_related(Prefetch("leases", active, to_attr="now"))


@require_safe
def nodes(request: HttpRequest) -> HttpResponse:
    return render(
        request,
        "leaderboard/nodes.html",
        {"nodes": nodes_at_work(), "site_url": settings.SITE_URL, "revision": latest_event()},
    )


@require_safe
def nodes_live(request: HttpRequest) -> JsonResponse:
    parts = {"nodes": render_to_string("leaderboard/parts/nodes.html", {"nodes": nodes_at_work()})}
    return JsonResponse({"parts": parts, "revision": latest_event(), "wait": IDLE_SECONDS})
