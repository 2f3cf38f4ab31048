"""The page of a run: its curves, its log, its verdict, and what it takes to do it again."""

from __future__ import annotations

from functools import cache
from pathlib import PurePosixPath
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.template.loader import render_to_string
from django.urls import reverse
from django.views.decorators.http import condition, require_POST, require_safe

from leaderboard import actions, lineage, permissions, reproduction, run_logs
from leaderboard.charts import curve_svg
from leaderboard.charts.panels import SMOOTHINGS, Shown, View, evaluations, panels, script_columns, table
from leaderboard.initial_weights import RUN_FILE
from leaderboard.models import Entry, Run, Sample, Score
from leaderboard.models.publications import FINAL
from leaderboard.publishing import publications, releases
from leaderboard.publishing.weights import CHECKPOINT_FILES
from leaderboard.rankings import standings
from leaderboard.rankings.standings import Standings
from leaderboard.reference_runs import Beside, numbers, offered
from leaderboard.runs import RunError
from leaderboard.schedule.start_estimates import departure_of, in_queue
from leaderboard.views import notebooks
from leaderboard.views.live import (
    LIVE_SECONDS,
    MOST,
    NUMBER,
    about,
    any_of,
    latest_event,
    named,
    revision_of,
    with_job,
)
from scheduler.models import Lease
from scheduler.prepared import Prepared
from scheduler.rate_limits import build_rate_limit_response

SAMPLES = Prepared(lambda: Sample.objects.filter(run=NUMBER))
SCORES = Prepared(lambda: Score.objects.filter(run=NUMBER))
REVISION = Prepared(lambda: Run.objects.filter(pk=NUMBER).order_by().values_list("revision"))
LOGGED = Prepared(lambda: Lease.objects.filter(job__run=NUMBER).order_by("-pk").values_list("pk", "log_received")[:1])
SAMPLED = 8
"""Checkpoints whose samples a page shows."""
X_LABELS = {"tokens": "tokens", "flops": "FLOPs", "seconds": "time", "step": "steps"}


SECOND_STEP_MISSING = (
    "You act on runs of others only after the second step. "
    "Sign in with a code from your authenticator app. To set one up, open the admin."
)


@require_safe
def run(request: HttpRequest, run_id: int) -> HttpResponse:
    """One run, whole. `?x=flops&smooth=strong&log=x&log=y&over=12` is how its curves are drawn, `?find=` what is looked
    for in its log."""
    over = [number for number in numbers(request.GET.getlist("over")) if number != run_id]
    runs = wanted(run_id, *over)
    if (error := check_log_search_rate(request)) is not None:
        return error
    found = runs[run_id]
    if found.entry.kind == Entry.Kind.NOTEBOOK:
        return notebooks.page(request, found)
    others = [runs[number] for number in over if number in runs]
    place = standings_of(found)
    context = {
        "run": found,
        "samples": newest_first(SAMPLES.rows(number=found.pk)),
        **scores_of(found),
        "events": about(found),
        "log": run_logs.shown(found, request.GET.get("find", "")),
        "weights": weight_files(found),
        "publications": publications.shown(found),
        "publishing": publications.rule() if publications.is_connected() and found.is_over else "",
        "way": releases.way(found),
        "departure": departure_of(found),
        "actions": list_actions(request, found),
        **curves(request, found, others, offered(found, place)),
        **({"standings": place, "row": place.row(found.entry_id)} if place and is_judged(found) else {}),
        "revision": revision_of(request, place),
    }
    return render(request, "leaderboard/run.html", context)


def wanted(run_id: int, *others: int) -> dict[int, Run]:
    """Return a run, and others that there are, by their numbers; there is no page where it is none."""
    asked = [number for number in (run_id, *others) if number < MOST]
    found = {run.pk: run for run in several(len(asked)).rows(**named(asked))} if asked else {}
    if run_id not in found:
        raise Http404
    return found


@cache
def several(count: int) -> Prepared[Run]:
    chosen = with_job(Run.objects.filter(any_of("pk", count))).select_related("checkpoint").order_by()
    return Prepared(lambda: chosen)


def curves(request: HttpRequest, run: Run, others: list[Run], beside: list[Beside]) -> dict[str, Any]:
    """Return the pictures of a run with others over it, and what can be chosen about them."""
    view = View.asked(request.GET)
    stages = lineage.of(run)
    curves = curve_svg.curves_of([run, *others, *(stage.run for stage in stages)])
    since = lineage.end_of(stages)
    own = lineage.moved(curves[run.pk], since)
    shown = [Shown(run, own, f"run {run.pk}", "ink", is_alone=True, since=since), *lineage.shown(stages, curves)]
    shown += [over(other, curves[other.pk], beside, number) for number, other in enumerate(others)]
    known = {other.run for other in beside}
    beside = [*beside, *(asked_for(other, n) for n, other in enumerate(others) if other.pk not in known)]
    drawn = panels(shown, view)
    return {
        "view": view,
        "stages": stages,
        "tokens_before": since.tokens,
        "abscissae": [(name, X_LABELS[name], address(request, x=name)) for name in curve_svg.ABSCISSAE],
        "smoothings": SMOOTHINGS,
        "beside": beside,
        "over": {other.pk for other in others},
        "main_panel": drawn[0] if drawn else None,
        "small_panels": drawn[1:],
        "evaluations": evaluations(curves[run.pk]),
        "numbers": table(curves[run.pk]),
    }


def over(run: Run, curve: curve_svg.Curve, beside: list[Beside], number: int) -> Shown:
    known = next((other for other in beside if other.run == run.pk), asked_for(run, number))
    return Shown(run, curve, known.label, known.colour)


def asked_for(run: Run, number: int) -> Beside:
    """A run that is not offered, but in the address."""
    return Beside(run.pk, f"run {run.pk}", str(number), run.entry.title)


def address(request: HttpRequest, **changed: str) -> str:
    """Return the query of this page with something else in it."""
    asked = request.GET.copy()
    for name, value in changed.items():
        asked[name] = value
    return f"?{asked.urlencode()}"


def scores_of(run: Run) -> dict[str, Any]:
    """Return the held-out numbers, and those of the lm-eval tasks, which have a `/` in their names."""
    scores = sorted(SCORES.rows(number=run.pk), key=lambda score: score.name) if is_judged(run) else []
    return {
        "held_out": [score for score in scores if "/" not in score.name],
        "suite": [score for score in scores if "/" in score.name],
    }


def weight_files(run: Run) -> list[dict[str, Any]]:
    """Return what a judged run leaves of itself, as its checkpoint's manifest and its own files say. No query."""
    if not is_judged(run) or run.checkpoint is None:
        return []
    sizes = {PurePosixPath(str(file["path"])).name: file["size"] for file in run.checkpoint.manifest.get("files", [])}
    folder = f"checkpoints/step-{run.checkpoint.step:08d}"
    files = [(f"{folder}/{name}", sizes[name]) for name in CHECKPOINT_FILES if name in sizes]
    return [
        {"name": PurePosixPath(path).name, "size": size, "url": reverse("run-weights", args=[run.pk, FINAL, path])}
        for path, size in [*files, (RUN_FILE, None)]
    ]


def is_judged(run: Run) -> bool:
    return run.state == Run.State.FINISHED


def standings_of(run: Run) -> Standings | None:
    """Return the board that the run is compared on: of its own season, and once there is something to compare."""
    if run.season_id != run.track.season_id or not run.step or in_queue(run):
        return None
    run.track.season = run.season  # the same row: no second query for it
    return standings.of(run.track, may_lag=True)


def list_actions(request: HttpRequest, run: Run) -> list[actions.RunAction]:
    return actions.list_run_actions(request.user, run, is_maintainer=permissions.is_verified_maintainer(request))


@require_POST
def perform_action(request: HttpRequest, run_id: int, action: str) -> HttpResponse:
    """Perform an action of the run's author, or of a maintainer after the second step."""
    found = get_object_or_404(with_job(Run.objects.all()), pk=run_id)
    if action not in actions.RUN_ACTIONS:
        raise Http404
    is_maintainer = permissions.is_verified_maintainer(request)
    if not is_maintainer and not actions.is_author(request.user, found):
        raise PermissionDenied(SECOND_STEP_MISSING if permissions.is_maintainer(request.user) else "")
    try:
        given = request.POST.get("step", "")
        step = int(given) if given.isdecimal() and len(given) < 19 else None
        done = actions.perform_run_action(found, action, request.user, step, is_maintainer=is_maintainer)
        messages.success(request, done)
    except RunError as error:
        messages.error(request, str(error))
    return redirect(found)


def newest_first(samples: list[Any]) -> list[tuple[int, list[Any]]]:
    """Return (step, samples) pairs, the last step first; of many steps some, evenly spread."""
    steps = sorted({sample.step for sample in samples}, reverse=True)
    kept = {round(i * (len(steps) - 1) / (SAMPLED - 1)) for i in range(SAMPLED)} if len(steps) > SAMPLED else None
    steps = steps if kept is None else [steps[i] for i in sorted(kept)]
    return [(step, [sample for sample in samples if sample.step == step]) for step in steps]


def run_etag(request: HttpRequest, run_id: int) -> str:
    asked = {"number": min(run_id, MOST - 1)}
    return f'"{REVISION.tuples(**asked)}-{LOGGED.tuples(**asked)}-{latest_event()}"'


def check_log_search_rate(request: HttpRequest) -> HttpResponse | None:
    """Return a 429 response after too many searches in logs; pages of runs have no limit."""
    return build_rate_limit_response(request, "log") if request.GET.get("find", "").strip() else None


@require_safe
@condition(etag_func=run_etag)
def run_live(request: HttpRequest, run_id: int) -> HttpResponse:
    if (error := check_log_search_rate(request)) is not None:
        return error
    found = wanted(run_id)[run_id]
    is_notebook = found.entry.kind == Entry.Kind.NOTEBOOK
    head = f"leaderboard/parts/{'notebook' if is_notebook else 'run'}_head.html"
    context = {
        "run": found,
        "departure": departure_of(found),
        "log": run_logs.shown(found, request.GET.get("find", "")),
    }
    return JsonResponse(
        {
            "parts": {
                "head": render_to_string(head, context),
                "log": render_to_string("leaderboard/parts/log.html", context),
            },
            **({} if is_notebook else {"curve": own_columns(found)}),
            "revision": latest_event(),
            "wait": 0 if found.is_over else LIVE_SECONDS,
        }
    )


def own_columns(run: Run) -> dict[str, Any]:
    """Return its curve for the script, beginning where the run before it was left."""
    since = lineage.end_of(lineage.of(run))
    return script_columns(run, lineage.moved(curve_svg.curve_of(run), since), since=since)


@require_safe
@condition(etag_func=run_etag)
def run_lineage(request: HttpRequest, run_id: int) -> JsonResponse:
    """The runs before this one, as stretches for the script, which asks once."""
    stages = lineage.of(get_object_or_404(Run.objects.with_entry(), pk=run_id))
    curves = curve_svg.curves_of([stage.run for stage in stages])
    branches = [
        {"label": one.label, "colour": one.colour, "columns": script_columns(one.run, one.curve)}
        for one in lineage.shown(stages, curves)
    ]
    for branch in branches:  # a run that still goes on has no rest in this picture
        columns: dict[str, Any] = branch["columns"]  # type: ignore[assignment]
        columns["end"] = {name: columns["train"][name][-1] for name in curve_svg.ABSCISSAE}
    return JsonResponse({"branches": branches})


@require_safe
@condition(etag_func=run_etag)
def run_log(request: HttpRequest, run_id: int) -> HttpResponse:
    """The whole log, as a file."""
    if (error := build_rate_limit_response(request, "log")) is not None:
        return error
    found = get_object_or_404(Run, pk=run_id)
    return attached(run_logs.whole(found), f"run-{found.pk}-log.txt", "text/plain")


@require_safe
def run_toml(request: HttpRequest, run_id: int) -> HttpResponse:
    """The recipe, for `dailytrain train --config`."""
    found = get_object_or_404(Run.objects.with_entry(), pk=run_id)
    return attached(reproduction.toml(found), f"run-{found.pk}.toml", "application/toml")


def attached(text: str, name: str, kind: str) -> HttpResponse:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return HttpResponse(text, content_type=f"{kind}; charset=utf-8", headers=headers)
