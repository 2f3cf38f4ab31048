"""The board: a track's table, with tonight's train on top."""

from __future__ import annotations

from typing import Any

from django.db.models import BigIntegerField
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.template.loader import render_to_string
from django.utils import timezone
from django.views.decorators.http import condition, require_safe

from leaderboard.board import query, table
from leaderboard.board.frontier import frontier, leader
from leaderboard.charts import curve_svg
from leaderboard.charts import multiplier_charts as pictures
from leaderboard.models import Bounty, Run, Track
from leaderboard.rankings import standings
from leaderboard.schedule.calendar import next_night
from leaderboard.views.live import IDLE_SECONDS, LIVE_SECONDS, latest_event, revision_of, with_job
from leaderboard.views.results import axis_of, results, results_etag
from scheduler.prepared import Later, Prepared
from trainer.scoring.multiplier import AXES

FAILURES = 5
WAITING = 5
BOUNTIES = 5
HERE = Later("track", BigIntegerField())
TRACKS = Prepared(lambda: Track.objects.in_order())
LIVE = Prepared(lambda: Run.objects.live().filter(track=HERE))
QUEUED = Prepared(lambda: with_job(Run.objects.waiting().filter(track=HERE))[:WAITING])
SHOWN = Prepared(lambda: Bounty.objects.shown(HERE)[:BOUNTIES])
FAILED = Prepared(lambda: Run.objects.failed().filter(track=HERE)[:FAILURES])


@require_safe
def board(request: HttpRequest) -> HttpResponse:
    """The default track's table, tonight's train on top; `leaderboard.board.query` says what the address may ask."""
    tracks = TRACKS.rows()
    default = min(tracks, key=lambda track: not track.is_default, default=None)
    return track_page(request, default, tracks) if default else render(request, "leaderboard/empty.html")


@require_safe
def track(request: HttpRequest, slug: str) -> HttpResponse:
    tracks = TRACKS.rows()
    found = next((track for track in tracks if track.slug == slug), None)
    if found is None:
        raise Http404
    return track_page(request, found, tracks)


def track_page(request: HttpRequest, track: Track, tracks: list[Track]) -> HttpResponse:
    wish = query.read(request.GET)
    now = timezone.now()
    here = LIVE.rows(track=track.pk)
    found = standings.of(track, wish.axis, may_lag=True)
    context = {
        "track": track,
        "tracks": tracks,
        "axes": [(axis, wish.address(axis=axis)) for axis in AXES],
        "standings": found,
        "table": table.table(found, wish),
        "frontier": frontier(found, now),
        "leader": leader(found),
        "ladder": found.once("ladder", lambda: pictures.ladder_picture(found)),
        "bounties": SHOWN.rows(track=track.pk),
        **train(here),
        "also": here[1:],
        "waiting": QUEUED.rows(track=track.pk),
        "next_night": None if here else next_night(now),
        "failures": FAILED.rows(track=track.pk),
        "revision": revision_of(request, found),
    }
    return render(request, "leaderboard/board.html", context)


def train(live: list[Run]) -> dict[str, Any]:
    """Return what `parts/train.html` shows of the train that runs; the nightly one goes before others."""
    live.sort(key=lambda run: run.purpose != Run.Purpose.NIGHTLY)
    if not live:
        return {"run": None}
    return {"run": live[0], "picture": curve_svg.picture(live[0], curve_svg.curve_of(live[0]))}


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


@require_safe
@condition(etag_func=results_etag)
def track_results(request: HttpRequest, slug: str) -> JsonResponse:
    """The records behind a track's multipliers, and these: what `dailytrain multiplier` takes."""
    found = get_object_or_404(Track.objects.select_related("season"), slug=slug)
    return results({**standings.of(found, axis_of(request)).to_dict()})
