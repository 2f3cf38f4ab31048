"""The site's JSON: the public record for machines, under `/api/v1/`."""

from __future__ import annotations

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import NinjaAPI

from leaderboard.models import Run, Track
from leaderboard.models.runs import RunDict
from leaderboard.models.seasons import TrackDict

api = NinjaAPI(title="The Daily Train", version="1", urls_namespace="api", description="Runs, curves and scores.")


@api.get("/tracks", response=list[TrackDict])
def tracks(request: HttpRequest) -> list[TrackDict]:
    return [track.to_dict() for track in Track.objects.select_related("season")]


@api.get("/tracks/{slug}/board", response=list[RunDict])
def board(request: HttpRequest, slug: str) -> list[RunDict]:
    """The track's judged runs of its present season, best first."""
    return [run.to_dict() for run in Run.objects.on_board(get_object_or_404(Track, slug=slug))]


@api.get("/runs/{run_id}", response=RunDict)
def run(request: HttpRequest, run_id: int) -> RunDict:
    return get_object_or_404(Run.objects.with_entry(), pk=run_id).to_dict()
