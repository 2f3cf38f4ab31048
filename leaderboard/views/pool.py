"""The queue and the nodes."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from leaderboard.job_handlers.background_jobs import list_background_jobs
from leaderboard.models import Run
from leaderboard.pool_nodes import find_working_nodes
from leaderboard.pool_totals import get_totals
from leaderboard.schedule.start_estimates import estimate_starts
from leaderboard.views.board import FAILURES
from leaderboard.views.live import IDLE_SECONDS, LIVE_SECONDS, render_live
from scheduler import job_kinds
from scheduler.estimates import QueueEstimates
from scheduler.models import Event, Job, Lease, Node
from scheduler.page_cache import cache_by_etag

LATEST_RESULTS = 8
QUEUE_LIVE_RUNS = 50


def build_timetable() -> dict[str, Any]:
    now = timezone.now()
    queue_estimates = QueueEstimates(now) if Job.objects.filter(state=Job.State.QUEUED).exists() else None
    waiting = list(Run.objects.waiting().with_job())
    live = Run.objects.live().with_job()
    shown = list(live[:QUEUE_LIVE_RUNS])
    return {
        "live": shown,
        "more_live": max(0, live.count() - len(shown)) if len(shown) == QUEUE_LIVE_RUNS else 0,
        "start_estimates": estimate_starts(waiting, now, queue_estimates),
        "background_jobs": list_background_jobs(queue_estimates),
        "online": Node.objects.filter(state__in=[Node.State.ONLINE, Node.State.DRAINING]).count(),
    }


@require_safe
def queue(request: HttpRequest) -> HttpResponse:
    context = {
        **build_timetable(),
        "finished": Run.objects.with_entry().filter(state=Run.State.FINISHED).order_by("-finished_at")[:LATEST_RESULTS],
        "failures": Run.objects.failed()[:FAILURES],
        "totals": get_totals(),
        "revision": Event.get_latest_id(),
    }
    return render(request, "leaderboard/queue.html", context)


def queue_etag(request: HttpRequest) -> str:
    return f'"{Run.objects.live().version()}-{Event.get_latest_id()}"'


@require_safe
@cache_by_etag(queue_etag)
def queue_live(request: HttpRequest) -> JsonResponse:
    context = build_timetable()
    parts = ["departures", "background-jobs"]
    wait = LIVE_SECONDS if context["live"] else IDLE_SECONDS
    return render_live("leaderboard/queue.html", parts, context, revision=Event.get_latest_id(), wait=wait)


def list_working_nodes() -> list[tuple[Node, list[tuple[Lease, job_kinds.JobSummary]]]]:
    """Return the nodes with their leases and jobs, busy ones first."""
    nodes = list(find_working_nodes())
    about = job_kinds.summarize_jobs(lease.job for node in nodes for lease in node.now)  # type: ignore[attr-defined]
    rows = [(node, [(lease, about[lease.job_id]) for lease in node.now]) for node in nodes]  # type: ignore[attr-defined]
    return sorted(rows, key=lambda row: (not row[1], row[0].state != Node.State.ONLINE, row[0].name))


@require_safe
def nodes(request: HttpRequest) -> HttpResponse:
    shown = {"nodes": list_working_nodes(), "totals": get_totals()}
    context = {**shown, "site_url": settings.SITE_URL, "revision": Event.get_latest_id()}
    return render(request, "leaderboard/nodes.html", context)


@require_safe
def nodes_live(request: HttpRequest) -> JsonResponse:
    context = {"nodes": list_working_nodes()}
    return render_live("leaderboard/nodes.html", ["nodes"], context, revision=Event.get_latest_id(), wait=IDLE_SECONDS)
