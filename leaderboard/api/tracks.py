"""Tracks, their boards and results."""

from __future__ import annotations

from django.db.models import Count, Max, Sum
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.views.decorators.http import condition
from ninja import Router
from ninja.decorators import decorate_view

from leaderboard.api.runs import RunWithScores, add_scores
from leaderboard.models import Run, Season, Track
from leaderboard.models.seasons import SeasonDict
from leaderboard.models.standings import LATEST_COMPUTATION, EstimateDict
from leaderboard.models.tracks import TrackDict
from leaderboard.rankings.standings import ResultsDict
from leaderboard.rankings.standings_store import load_results, load_standings
from trainer.scoring.multiplier import Axis

router = Router()


class BoardRun(RunWithScores):
    estimate: EstimateDict | None  # of its entry, over all seeds; null: the track has no multipliers yet


@router.get("/tracks", response=list[TrackDict])
def tracks(request: HttpRequest) -> list[TrackDict]:
    return [track.to_dict() for track in Track.objects.select_related("season", "qualifier")]


@router.get("/tracks/{slug}", response=TrackDict)
def get_track(request: HttpRequest, slug: str) -> TrackDict:
    """One track and its settings."""
    return get_object_or_404(Track.objects.select_related("season", "qualifier"), slug=slug).to_dict()


@router.get("/seasons", response=list[SeasonDict])
def seasons(request: HttpRequest) -> list[SeasonDict]:
    """All seasons, latest first. The secret of a season is published when it has ended."""
    return [season.to_dict() for season in Season.objects.order_by("-started_at")]


def board_etag(request: HttpRequest, slug: str) -> str:
    runs = Run.objects.filter(track__slug=slug).annotate(computed_at=LATEST_COMPUTATION).order_by()
    found = runs.aggregate(count=Count("pk"), revisions=Sum("revision"), latest=Max("computed_at"))
    return f'"{found["count"]}.{found["revisions"]}.{found["latest"]}"'


@router.get("/tracks/{slug}/board", response=list[BoardRun])
@decorate_view(condition(etag_func=board_etag))
def get_board(request: HttpRequest, slug: str, axis: Axis = "flops") -> list[BoardRun]:
    """The track's eligible runs of the current season, best first, each with the multiplier of its entry.

    `estimate` is what `dailytrain multiplier --json` prints from the track's results.
    """
    track = get_object_or_404(Track.objects.select_related("season"), slug=slug)
    table = load_standings(track, axis)
    rows = table.rows.all() if table.pk else []
    estimates = {row.entry_id: row.estimate_dict(table) for row in rows}
    return [{**run, "estimate": estimates.get(run["entry"])} for run in add_scores(Run.objects.on_board(track))]


@router.get("/tracks/{slug}/results", response=ResultsDict)
@decorate_view(condition(etag_func=board_etag))
def results(request: HttpRequest, slug: str, axis: Axis = "flops") -> ResultsDict:
    """The records behind the board's multipliers: input and output of `dailytrain multiplier`."""
    return load_results(get_object_or_404(Track.objects.select_related("season"), slug=slug), axis)
