"""The site's JSON: the public record for machines, and the way in for CI jobs, under `/api/v1/`.

Whatever changes while a run runs carries an ETag: ask again with `If-None-Match` and get 304 until it moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from django.conf import settings
from django.contrib.auth.models import AbstractUser
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.views.decorators.http import condition
from ninja import NinjaAPI, Query, Schema, Status
from ninja.decorators import decorate_view
from ninja.errors import AuthenticationError, HttpError, ValidationError
from ninja.security import HttpBearer
from ninja.throttling import BaseThrottle
from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from leaderboard import estimates, intake, repositories, runs, standings
from leaderboard.charts import thin
from leaderboard.intake import IntakeError
from leaderboard.models import ApiToken, CurvePoint, Entry, Run, Sample, Track
from leaderboard.models.curves import PointDict, SampleDict, ScoreDict
from leaderboard.models.entries import EntryDict
from leaderboard.models.runs import LiveDict, RunDict
from leaderboard.models.seasons import TrackDict
from leaderboard.repositories import RepositoryError
from leaderboard.standings import StandingDict
from scheduler import pace
from trainer.scoring.multiplier import Axis

MAX_POINTS = 2000
"""Per series; a curve is thinned to it, its lowest and highest points kept."""
api = NinjaAPI(title=settings.SITE_NAME, version="1", urls_namespace="api", description="Runs, curves and scores.")

Limit = Annotated[int, Query(ge=1, le=200)]
Before = Annotated[int | None, Query(description="Only what has a smaller id: the `next` of the page before.")]


class Page(TypedDict):
    next: int | None
    """`before` of the next page; null on the last."""


class RunPage(Page):
    items: list[RunDict]


class EntryPage(Page):
    items: list[EntryDict]


class EntryDetail(EntryDict):
    smoke: dict[str, Any]
    smoke_sentence: str
    estimate: dict[str, Any] | None
    runs: list[RunDict]


class EventDict(TypedDict):
    at: str
    actor: str
    sentence: str


class RunDetail(RunDict):
    config: dict[str, Any]
    checks: dict[str, Any]
    suite_missing: list[str]
    scores: list[ScoreDict]
    dataset_hash: str
    bundle: str | None
    start_run: int | None
    """Whose weights it starts from; null: from scratch."""


class BoardRun(RunDict):
    estimate: StandingDict | None
    """Of its entry, over all its seeds; null where the track has no multipliers yet."""


class CurveDict(TypedDict):
    run: int
    revision: int
    points: dict[str, int]
    """How many each series has before thinning."""
    train: list[PointDict]
    dev: list[PointDict]


# --- the record -----------------------------------------------------------------------------------------------------


@api.get("/tracks", response=list[TrackDict])
def tracks(request: HttpRequest) -> list[TrackDict]:
    return [track.to_dict() for track in Track.objects.select_related("season")]


def board_etag(request: HttpRequest, slug: str) -> str:
    return f'"{Run.objects.filter(track__slug=slug).version()}"'


@api.get("/tracks/{slug}/board", response=list[BoardRun])
@decorate_view(condition(etag_func=board_etag))
def board(request: HttpRequest, slug: str, axis: Axis = "flops") -> list[BoardRun]:
    """The track's judged runs of its present season, best first, each with the multiplier of its entry.

    `estimate` is what `dailytrain multiplier --json` prints from the track's `results.json`.
    """
    track = get_object_or_404(Track.objects.select_related("season"), slug=slug)
    table = standings.of(track, axis)
    return [
        {**run.to_dict(), "estimate": standings.estimate_dict(table, run.entry_id)}
        for run in Run.objects.on_board(track)
    ]


@api.get("/entries", response=EntryPage)
def entries(request: HttpRequest, before: Before = None, limit: Limit = 50) -> EntryPage:
    """Entries, newest first."""
    rows = Entry.objects.select_related("track").order_by("-pk")
    found = list((rows.filter(pk__lt=before) if before else rows)[:limit])
    return {"items": [entry.to_dict() for entry in found], "next": next_page(found, limit)}


@api.get("/entries/{entry_id}", response=EntryDetail)
def entry(request: HttpRequest, entry_id: int) -> EntryDetail:
    """An entry, what its smoke run found (as in `wire.Smoked`; empty: none yet), and before it trains an estimate."""
    found = get_object_or_404(Entry.objects.select_related("track__season"), pk=entry_id)
    ahead = estimates.estimate(found) if estimates.is_ahead(found) else None
    return {
        **found.to_dict(),
        "smoke": found.smoke,
        "smoke_sentence": found.smoke_sentence,
        "estimate": ahead.to_dict() if ahead else None,
        "runs": [run.to_dict() for run in Run.objects.with_entry().filter(entry=found)],
    }


@api.get("/runs", response=RunPage)
def list_runs(
    request: HttpRequest, state: str = "", track: str = "", before: Before = None, limit: Limit = 50
) -> RunPage:
    """Runs, newest first; `state` may name several, separated by commas."""
    rows = Run.objects.with_entry().order_by("-pk")
    if state:
        rows = rows.filter(state__in=state.split(","))
    if track:
        rows = rows.filter(track__slug=track)
    found = list((rows.filter(pk__lt=before) if before else rows)[:limit])
    return {"items": [run.to_dict() for run in found], "next": next_page(found, limit)}


def next_page(found: Sequence[Run] | Sequence[Entry], limit: int) -> int | None:
    return found[-1].pk if len(found) == limit else None


def run_etag(request: HttpRequest, run_id: int) -> str | None:
    revision = Run.objects.filter(pk=run_id).values_list("revision", flat=True).first()
    return None if revision is None else f'"{run_id}.{revision}"'


@api.get("/runs/{run_id}", response=RunDetail)
@decorate_view(condition(etag_func=run_etag))
def run(request: HttpRequest, run_id: int) -> RunDetail:
    """One run with its provenance and every score."""
    found = get_object_or_404(Run.objects.with_entry(), pk=run_id)
    return {
        **found.to_dict(),
        "config": found.config,
        "checks": found.checks,
        "suite_missing": found.suite_missing,
        "scores": [score.to_dict() for score in found.scores.all()],
        "dataset_hash": found.season.dataset_hash,
        "bundle": found.entry.bundle_id,
        "start_run": found.start_run_id,
    }


@api.get("/runs/{run_id}/live", response=LiveDict)
@decorate_view(condition(etag_func=run_etag))
def live(request: HttpRequest, run_id: int) -> LiveDict:
    """What changes while it runs; small, to be asked often."""
    return get_object_or_404(Run.objects.select_related("track"), pk=run_id).live_dict()


@api.get("/runs/{run_id}/curve", response=CurveDict)
@decorate_view(condition(etag_func=run_etag))
def curve(
    request: HttpRequest, run_id: int, limit: Annotated[int, Query(ge=10, le=MAX_POINTS)] = MAX_POINTS
) -> CurveDict:
    """The run's loss curve on train and dev, each of at most `limit` points, extremes kept."""
    found = get_object_or_404(Run.objects.only("pk", "revision"), pk=run_id)
    series: dict[str, list[PointDict]] = {name: [] for name in CurvePoint.Series.values}
    columns = list(PointDict.__annotations__)
    for name, *values in found.points.order_by("series", "step").values_list("series", *columns):
        series[name].append(PointDict(**dict(zip(columns, values, strict=True))))  # type: ignore[typeddict-item]
    return {
        "run": found.pk,
        "revision": found.revision,
        "points": {name: len(points) for name, points in series.items()},
        "train": thinned(series["train"], limit),
        "dev": thinned(series["dev"], limit),
    }


def thinned(points: list[PointDict], limit: int) -> list[PointDict]:
    return [points[i] for i in thin([point["loss"] for point in points], limit)]


@api.get("/runs/{run_id}/samples", response=list[SampleDict])
@decorate_view(condition(etag_func=run_etag))
def samples(request: HttpRequest, run_id: int) -> list[SampleDict]:
    """What the model wrote at its checkpoints. A machine's text: show it as text, never as HTML."""
    found = get_object_or_404(Run.objects.only("pk"), pk=run_id)
    return [sample.to_dict() for sample in Sample.objects.filter(run=found)]


# --- the way in -----------------------------------------------------------------------------------------------------


class Ask(Schema):
    """A commit to be trained."""

    model_config = ConfigDict(extra="forbid")

    repository: str = Field(min_length=1, max_length=400, examples=["https://github.com/someone/daily-train"])
    sha: str = Field(pattern=r"^[0-9a-f]{40}$", description="The full SHA: an approval is for exactly this commit.")
    architecture: str = Field(min_length=1, max_length=80, description="A name in the commit's ARCHITECTURES.")
    title: str = Field(min_length=1, max_length=120)
    track: str = Field(default="", description="Slug of a track; the default one if empty.")
    hypothesis: str = Field(default="", max_length=4000)
    url: str = Field(default="", max_length=200, pattern=r"^(https?://\S+)?$", description="Where it is discussed.")
    config: dict[str, Any] = Field(default={}, description="The entry's own part of the configuration.")


class Asked(Schema):
    entry: int
    run: int
    state: str
    reason: str
    page: str
    """Where to watch the run."""


class Bearer(HttpBearer):
    """`Authorization: Bearer <token>`, made in the admin."""

    def authenticate(self, request: HttpRequest, token: str) -> ApiToken | None:
        found = ApiToken.objects.with_secret(token)
        if found is None or found.revoked:
            return None
        ApiToken.objects.filter(pk=found.pk).update(last_used_at=timezone.now())
        return found


class PerToken(BaseThrottle):
    """So many an hour with one token, counted as nodes' calls are."""

    def allow_request(self, request: HttpRequest) -> bool:
        return pace.allows("ask", str(request.auth.pk))  # type: ignore[attr-defined]

    def wait(self) -> float:
        return pace.seconds_left("ask")


@api.post("/runs", auth=Bearer(), throttle=[PerToken()], response={200: Asked, 201: Asked})
def ask(request: HttpRequest, wanted: Ask) -> Status[dict[str, Any]]:
    """Ask for a run of one commit. It waits for a maintainer's approval; `page` is where to watch it.

    Asking again for the same commit, architecture and track gives the same run, with 200 instead of 201.
    """
    owner = allowed(request.auth)  # type: ignore[attr-defined]
    track = Track.objects.default() if not wanted.track else Track.objects.filter(slug=wanted.track).first()
    if track is None:
        raise HttpError(422, f"track: there is no track {wanted.track!r}.")
    try:
        repositories.check_public(wanted.repository)
        found = intake.enter(
            wanted.repository,
            wanted.sha,
            wanted.title,
            wanted.architecture,
            track,
            author=owner.get_username(),
            hypothesis=wanted.hypothesis,
            url=wanted.url,
            config=wanted.config,
            requested_by=owner,
            actor=owner.get_username(),
        )
    except (IntakeError, RepositoryError) as error:
        raise HttpError(422, str(error)) from error
    before = found.runs.order_by("-pk").first()
    made = before or runs.make_run(found, track, actor=owner.get_username())
    return Status(200 if before else 201, asked(made))


def allowed(token: ApiToken) -> AbstractUser:
    """Return whose token it is; raise 403 unless it may ask for runs."""
    if token.scope != ApiToken.Scope.CREATE_RUNS:
        raise HttpError(403, f"This token may not ask for runs: its scope is {token.scope}.")
    if not token.owner.is_active:
        raise HttpError(403, "The account that this token belongs to is closed.")
    return token.owner


def asked(run: Run) -> dict[str, Any]:
    return {
        "entry": run.entry_id,
        "run": run.pk,
        "state": run.state,
        "reason": run.reason,
        "page": f"{settings.SITE_URL}{run.get_absolute_url()}",
    }


# --- errors: one sentence, in `detail` ------------------------------------------------------------------------------


@api.exception_handler(AuthenticationError)
def unknown_token(request: HttpRequest, error: AuthenticationError) -> HttpResponse:
    sentence = "This needs a valid token: Authorization: Bearer <token>. A maintainer makes one in the admin."
    response = api.create_response(request, {"detail": sentence}, status=401)
    response["WWW-Authenticate"] = "Bearer"
    return response


@api.exception_handler(Http404)
def nothing_there(request: HttpRequest, error: Http404) -> HttpResponse:
    return api.create_response(request, {"detail": "There is nothing at this address."}, status=404)


@api.exception_handler(ValidationError)
def not_understood(request: HttpRequest, error: ValidationError) -> HttpResponse:
    said = [
        f"{'.'.join(str(part) for part in fault['loc'][2:] or fault['loc'])}: {fault['msg']}" for fault in error.errors
    ]
    return api.create_response(request, {"detail": "; ".join(said[:5])}, status=422)
