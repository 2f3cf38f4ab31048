"""The page of a run: its curve, its log, its verdict."""

from __future__ import annotations

import re
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.template.loader import render_to_string
from django.utils import timezone
from django.views.decorators.http import condition, require_POST, require_safe

from leaderboard import asking, charts, standings
from leaderboard.departures import Departure, departures, in_queue
from leaderboard.models import Entry, Run
from leaderboard.runs import RunError
from leaderboard.views import notebooks
from leaderboard.views.live import LIVE_SECONDS, latest_event, with_job
from scheduler.models import Event, Lease, LogChunk

LOG_CHUNKS = 20
LOG_LINES = 200


@require_safe
def run(request: HttpRequest, run_id: int) -> HttpResponse:
    """One run, whole; `?x=tokens|seconds|step` chooses what the curve is drawn over."""
    found = get_object_or_404(with_job(Run.objects.all()), pk=run_id)
    if found.entry.kind == Entry.Kind.NOTEBOOK:
        return notebooks.page(request, found)
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
