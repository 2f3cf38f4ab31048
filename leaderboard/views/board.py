"""The board: a track's table, with tonight's run on top."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.conf import settings
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.utils import timezone
from django.views.decorators.http import condition, require_safe

from leaderboard.board.query import BoardQuery, load_board_rows, parse_axis
from leaderboard.board.table import build_board_table
from leaderboard.charts import panels
from leaderboard.charts.frontier import build_frontier, build_records, get_leader
from leaderboard.charts.multiplier_charts import draw_ladder
from leaderboard.markdown import render_markdown
from leaderboard.models import Run, StandingsTable, Track
from leaderboard.models.runs import RunQuerySet
from leaderboard.models.standings import LATEST_COMPUTATION
from leaderboard.pool_totals import get_totals
from leaderboard.publishing.release_finetunes import list_finetunes
from leaderboard.rankings.standings_store import load_results
from leaderboard.schedule.calendar import get_next_nightly
from leaderboard.schedule.scorers import describe_missing_scorer
from leaderboard.views.live import (
    IDLE_SECONDS,
    LATEST_EVENT,
    LIVE_SECONDS,
    format_revision,
    get_standings_revision,
    render_live,
)
from scheduler.models import Event
from scheduler.page_cache import cache_by_etag
from trainer.scoring.multiplier import AXES

BOARD_LIVE_RUNS = 10
"""Live runs shown per track: the nightly run and the oldest ones. Tables of runs list the others."""
FAILURES = 5
WAITING = 5


@require_safe
def board(request: HttpRequest) -> HttpResponse:
    query = BoardQuery.from_address(request.GET)
    tracks = list_tracks(query)
    default = min(tracks, key=lambda track: not track.is_default, default=None)
    return render_track(request, query, default, tracks) if default else render(request, "leaderboard/empty.html")


@require_safe
def track(request: HttpRequest, slug: str) -> HttpResponse:
    query = BoardQuery.from_address(request.GET)
    tracks = list_tracks(query)
    found = next((track for track in tracks if track.slug == slug), None)
    if found is None:
        raise Http404
    return render_track(request, query, found, tracks)


def list_tracks(query: BoardQuery) -> list[Track]:
    """Return all tracks with their standings and the page's revision. One query."""
    tracks = Track.objects.in_order().with_standings(query.axis)
    return list(tracks.annotate(latest_event_id=LATEST_EVENT, latest_standings=LATEST_COMPUTATION))


def render_track(request: HttpRequest, query: BoardQuery, track: Any, tracks: list[Track]) -> HttpResponse:
    now = timezone.now()
    table = getattr(track, "standings", None) or StandingsTable.build_empty(track, query.axis)
    table.track = track
    rows = load_board_rows(table, query)
    runs = list_runs(track)
    context = {
        "track": track,
        "tracks": tracks,
        "axes": [(axis, query.address(axis=axis)) for axis in AXES],
        "standings": table,
        "table": build_board_table(table, query, rows),
        "frontier": build_frontier(table, build_records(rows.records), now),
        "leader": get_leader(rows.leader),
        "ladder": draw_ladder(table),
        **build_train_context(runs["live"]),
        "also": runs["live"][1:],
        "more_live": count_omitted_live_runs(track, len(runs["live"])),
        "waiting": runs["waiting"],
        "next_night": None if runs["live"] else get_next_nightly(now),
        "failures": runs["failed"],
        "finetunes": list_finetunes(track),
        "missing_scorer": describe_missing_scorer(track, now),
        "revision": format_revision(track.latest_event_id, track.latest_standings),
    }
    return render(request, "leaderboard/board.html", context)


def list_runs(track: Track) -> dict[str, list[Run]]:
    """Return the track's first live runs, the next waiting ones and the last failures. One query."""
    own = Run.objects.filter(track=track)
    live = own.live().order_nightly_first()[:BOARD_LIVE_RUNS]
    waiting, failed = own.waiting()[:WAITING], own.failed()[:FAILURES]
    runs = list(
        own.in_queue_order()
        .with_job()
        .filter(Q(pk__in=live.values("pk")) | Q(pk__in=waiting.values("pk")) | Q(pk__in=failed.values("pk")))
    )
    return {
        "live": sort_live_runs([run for run in runs if run.state in Run.LIVE]),
        "waiting": [run for run in runs if run.state in Run.NOT_STARTED],
        "failed": sorted(
            (run for run in runs if run.is_over), key=lambda run: run.finished_at or run.created_at, reverse=True
        ),
    }


def count_omitted_live_runs(track: Track, shown: int) -> int:
    """Return the number of the track's live runs that its page does not list."""
    return Run.objects.filter(track=track).live().count() - shown if shown == BOARD_LIVE_RUNS else 0


def sort_live_runs(runs: list[Run]) -> list[Run]:
    """Return the runs in the order of `RunQuerySet.order_nightly_first`."""

    def get_rank(run: Run) -> tuple[bool, bool, datetime, int]:
        is_paused, is_other = run.state == Run.State.PAUSED, run.purpose != Run.Purpose.NIGHTLY
        return is_paused, is_other, run.started_at or timezone.now(), run.pk

    return sorted(runs, key=get_rank)


def build_train_context(live: list[Run]) -> dict[str, Any]:
    """Return the context of the part `train`."""
    if not live:
        return {"run": None}
    return {"run": live[0], "picture": panels.draw_run(live[0])}


def filter_shown_run(slug: str) -> RunQuerySet:
    """Return the live run that the track's page draws: one or none."""
    return Run.objects.live().filter(track__slug=slug).order_nightly_first()[:1]


def track_etag(request: HttpRequest, slug: str) -> str:
    shown = filter_shown_run(slug).values_list("pk", "revision").first() or ()
    return f'"{"-".join(map(str, shown))}-{get_standings_revision()}"'


@require_safe
@cache_by_etag(track_etag)
def track_live(request: HttpRequest, slug: str) -> JsonResponse:
    context = build_train_context(list(filter_shown_run(slug)))
    parts = ["train"] if context["run"] else []
    wait = LIVE_SECONDS if context["run"] else IDLE_SECONDS
    return render_live("leaderboard/board.html", parts, context, revision=get_standings_revision(), wait=wait)


def results_etag(request: HttpRequest, **where: Any) -> str:
    revision = Run.objects.filter(state=Run.State.FINISHED).version()
    return f'"{parse_axis(request.GET)}-{revision}-{Event.get_latest_id()}"'


@require_safe
@condition(etag_func=results_etag)
def track_results(request: HttpRequest, slug: str) -> JsonResponse:
    """The records behind a track's multipliers, as `dailytrain multiplier` reads them."""
    track = get_object_or_404(Track.objects.select_related("season"), slug=slug)
    return build_results_response({**load_results(track, parse_axis(request.GET))})


def build_results_response(content: dict[str, Any]) -> JsonResponse:
    return JsonResponse(content, json_dumps_params={"indent": 1, "allow_nan": False})


@require_safe
def acknowledgements(request: HttpRequest) -> HttpResponse:
    """Projects, papers and libraries: the page of the documentation, as HTML."""
    page = settings.BASE_DIR / "docs" / "explanation" / "acknowledgements.md"
    text = page.read_text(encoding="utf-8")
    return render(request, "leaderboard/acknowledgements.html", {"text": render_markdown(text)})


@require_safe
def about(request: HttpRequest) -> HttpResponse:
    """How the board's numbers are computed."""
    return render(request, "leaderboard/about.html", {"track": Track.objects.default(), "totals": get_totals()})
