"""Runs: their state, curves, samples, scores and events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from django.db.models import Count
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.views.decorators.http import condition
from ninja import Query, Router
from ninja.decorators import decorate_view
from typing_extensions import TypedDict

from leaderboard import lineage
from leaderboard.api.pagination import Cursor, Limit, Page, paginate, parse_states
from leaderboard.charts.curve_svg import MAX_POINTS, load_thinned_points
from leaderboard.graphs import GraphFileDict, list_download_links
from leaderboard.lineage import StageDict
from leaderboard.models import CurvePoint, Run, Sample, Score
from leaderboard.models.curves import PointDict, SampleDict, ScoreDict
from leaderboard.models.runs import LiveDict, RunDict
from scheduler.models import Event

router = Router()


class ScoreValue(TypedDict):
    value: float
    stderr: float | None


class RunWithScores(RunDict):
    scores: dict[str, ScoreValue]


class RunPage(Page):
    items: list[RunWithScores]


class RunDetail(RunDict):
    config: dict[str, Any]
    checks: dict[str, Any]
    stored_bytes: int | None  # this and the next two: of the trained graph; null without one
    constant_bytes: int | None
    graph_files: list[GraphFileDict]
    source_bytes: int | None  # compressed source of the entry beyond main's
    scoring_flops_per_token: float | None
    untrained_bits_per_byte: float | None
    suite_missing: list[str]
    suite_seconds: dict[str, float]  # of the scorer, by benchmark task
    scores: list[ScoreDict]
    dataset_hash: str
    bundle: str | None
    start_run: int | None  # the run whose weights it starts from; null: from scratch
    start_step: int | None  # the checkpoint of that run; null: the final one
    lineage: list[StageDict]  # the runs before it, oldest first, each with the step at which the next one starts


class CurveDict(TypedDict):
    run: int
    revision: int
    points: dict[str, int]  # number of points of each series before thinning
    train: list[PointDict]
    dev: list[PointDict]


class EventDict(TypedDict):
    at: str
    actor: str
    sentence: str


@router.get("/runs", response=RunPage)
def list_runs(
    request: HttpRequest,
    state: str = "",
    track: str = "",
    entry: int | None = None,
    ids: Annotated[str, Query(pattern=r"^([0-9]{1,18}(,[0-9]{1,18})*)?$")] = "",
    cursor: Cursor = None,
    limit: Limit = 50,
) -> RunPage:
    """Runs, newest first. `state` takes several states and `ids` several ids, separated by commas."""
    filters = {
        "state__in": parse_states(state, Run.State),
        "track__slug": track,
        "entry": entry,
        "pk__in": ids.split(",") if ids else [],
    }
    rows = Run.objects.with_entry().filter(**{name: value for name, value in filters.items() if value})
    page, links = paginate(rows, cursor, limit)
    return {"items": add_scores(page), **links}


def add_scores(runs: Iterable[Run]) -> list[RunWithScores]:
    """Return the runs with their scores by name. One query for all scores."""
    rows: dict[int, RunWithScores] = {run.pk: {**run.to_dict(), "scores": {}} for run in runs}
    for score in Score.objects.filter(run__in=list(rows)):
        rows[score.run_id]["scores"][score.name] = {"value": score.value, "stderr": score.stderr}
    return list(rows.values())


def run_etag(request: HttpRequest, run_id: str) -> str | None:
    """Return the ETag of a run; None for a malformed id, which is validated only after this."""
    if not (run_id.isascii() and run_id.isdigit()):
        return None
    revision = Run.objects.filter(pk=run_id).values_list("revision", flat=True).first()
    return None if revision is None else f'"{run_id}.{revision}"'


@router.get("/runs/{run_id}", response=RunDetail)
@decorate_view(condition(etag_func=run_etag))
def get_run(request: HttpRequest, run_id: int) -> RunDetail:
    """One run with its provenance and every score."""
    run = get_object_or_404(Run.objects.with_entry().select_related("graph__job"), pk=run_id)
    summary = run.graph.summary if run.graph else {}
    return {
        **run.to_dict(),
        "config": run.config,
        "checks": run.checks,
        "stored_bytes": summary.get("stored_bytes"),
        "constant_bytes": summary.get("constant_bytes"),
        "graph_files": list_download_links(run.graph),
        "source_bytes": run.entry.source_bytes,
        "scoring_flops_per_token": run.scoring_flops_per_token or summary.get("scoring_flops_per_token"),
        "untrained_bits_per_byte": (run.checks.get("untrained") or {}).get("bits_per_byte"),
        "suite_missing": run.suite_missing,
        "suite_seconds": run.suite_seconds,
        "scores": [score.to_dict() for score in run.scores.all()],
        "dataset_hash": run.season.dataset_hash,
        "bundle": run.entry.bundle_id,
        "start_run": run.start_run_id,
        "start_step": run.start_checkpoint.step if run.start_checkpoint else None,
        "lineage": [stage.to_dict() for stage in lineage.list_stages(run)],
    }


@router.get("/runs/{run_id}/live", response=LiveDict)
@decorate_view(condition(etag_func=run_etag))
def live(request: HttpRequest, run_id: int) -> LiveDict:
    """The fields that change while it trains: a small response to poll."""
    return get_object_or_404(Run.objects.select_related("track"), pk=run_id).live_dict()


@router.get("/runs/{run_id}/scores", response=list[ScoreDict])
@decorate_view(condition(etag_func=run_etag))
def scores(request: HttpRequest, run_id: int) -> list[ScoreDict]:
    """All scores of the trusted scorer with their standard errors; empty until it has finished."""
    run = get_object_or_404(Run.objects.only("pk"), pk=run_id)
    return [score.to_dict() for score in run.scores.all()]


@router.get("/runs/{run_id}/curve", response=CurveDict)
@decorate_view(condition(etag_func=run_etag))
def curve(
    request: HttpRequest, run_id: int, limit: Annotated[int, Query(ge=10, le=MAX_POINTS)] = MAX_POINTS
) -> CurveDict:
    """The run's loss curve on train and dev, each of at most `limit` points, with its extremes."""
    run = get_object_or_404(Run.objects.only("pk", "revision", "step"), pk=run_id)
    counts = dict(run.points.order_by().values_list("series").annotate(Count("pk")))
    train, dev = load_thinned_points(run, limit)
    return {
        "run": run.pk,
        "revision": run.revision,
        "points": {name: counts.get(name, 0) for name in CurvePoint.Series.values},
        "train": [PointDict(**point._asdict()) for point in train],  # type: ignore[typeddict-item]
        "dev": [PointDict(**point._asdict()) for point in dev],  # type: ignore[typeddict-item]
    }


@router.get("/runs/{run_id}/samples", response=list[SampleDict])
@decorate_view(condition(etag_func=run_etag))
def samples(request: HttpRequest, run_id: int) -> list[SampleDict]:
    """Texts that the model generated at its checkpoints. Show them as text, never as HTML."""
    run = get_object_or_404(Run.objects.only("pk"), pk=run_id)
    return [sample.to_dict() for sample in Sample.objects.filter(run=run)]


@router.get("/runs/{run_id}/events", response=list[EventDict])
def events(request: HttpRequest, run_id: int) -> list[EventDict]:
    """The events of the run, oldest first."""
    run = get_object_or_404(Run.objects.only("pk"), pk=run_id)
    return [
        {"at": event.at.isoformat(), "actor": event.actor, "sentence": event.sentence}
        for event in Event.objects.about(run)
    ]
