"""What runs, what waits and why; the nodes."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db.models import Prefetch, QuerySet
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.utils import timezone
from django.views.decorators.http import condition, require_safe

from leaderboard.departures import departures
from leaderboard.models import Run
from leaderboard.views.board import FAILURES
from leaderboard.views.live import IDLE_SECONDS, LIVE_SECONDS, latest_event, online_nodes, with_job
from scheduler.models import Lease, Node

ARRIVALS = 8


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
