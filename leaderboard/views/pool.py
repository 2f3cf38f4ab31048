"""What runs, what waits and why; the nodes."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.utils import timezone
from django.views.decorators.http import condition, require_safe

from leaderboard.job_handlers.background_jobs import list_background_jobs
from leaderboard.models import Run
from leaderboard.pool_nodes import find_working_nodes
from leaderboard.pool_totals import totals
from leaderboard.schedule.start_estimates import estimate_starts
from leaderboard.views.board import FAILURES
from leaderboard.views.live import IDLE_SECONDS, LIVE_SECONDS, latest_event, online_nodes
from scheduler import job_kinds
from scheduler.estimates import QueueEstimates
from scheduler.models import Lease, Node

ARRIVALS = 8


def timetable() -> dict[str, Any]:
    """Return what runs and what waits, on all tracks, and the background jobs."""
    now = timezone.now()
    queue_estimates = QueueEstimates(now)
    waiting = list(Run.objects.waiting().with_job())
    return {
        "live": list(Run.objects.live().with_job()),
        "departures": estimate_starts(waiting, now, queue_estimates),
        "background_jobs": list_background_jobs(queue_estimates),
        "online": online_nodes(),
    }


@require_safe
def queue(request: HttpRequest) -> HttpResponse:
    """Departures and arrivals of all tracks."""
    context = {
        **timetable(),
        "arrivals": Run.objects.with_entry().filter(state=Run.State.FINISHED).order_by("-finished_at")[:ARRIVALS],
        "failures": Run.objects.failed()[:FAILURES],
        "totals": totals(),
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
            "parts": {
                "departures": render_to_string("leaderboard/parts/timetable.html", context),
                "background-jobs": render_to_string("leaderboard/parts/background_jobs.html", context),
            },
            "revision": latest_event(),
            "wait": LIVE_SECONDS if context["live"] else IDLE_SECONDS,
        }
    )


def at_work() -> list[tuple[Node, list[tuple[Lease, job_kinds.JobSummary]]]]:
    """Return the nodes, each with what it works on: those at work first, then those that could."""
    nodes = list(find_working_nodes())
    about = job_kinds.summarize_jobs(lease.job for node in nodes for lease in node.now)  # type: ignore[attr-defined]
    rows = [(node, [(lease, about[lease.job_id]) for lease in node.now]) for node in nodes]  # type: ignore[attr-defined]
    return sorted(rows, key=lambda row: (not row[1], row[0].state != Node.State.ONLINE, row[0].name))


@require_safe
def nodes(request: HttpRequest) -> HttpResponse:
    return render(
        request,
        "leaderboard/nodes.html",
        {"nodes": at_work(), "totals": totals(), "site_url": settings.SITE_URL, "revision": latest_event()},
    )


@require_safe
def nodes_live(request: HttpRequest) -> JsonResponse:
    parts = {"nodes": render_to_string("leaderboard/parts/nodes.html", {"nodes": at_work()})}
    return JsonResponse({"parts": parts, "revision": latest_event(), "wait": IDLE_SECONDS})
