"""The page of a run: its curves, its log, its verdict, and how to reproduce it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import PurePosixPath
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import condition, require_POST, require_safe

from leaderboard import actions, caps, graphs, lineage, permissions, run_logs
from leaderboard.charts import curve_svg
from leaderboard.charts.panels import (
    Shown,
    build_evaluations_table,
    build_points_table,
    draw_losses,
    list_drawn_metrics,
    script_columns,
)
from leaderboard.job_handlers import notebooks
from leaderboard.models import Entry, Run, StandingsTable, TracedGraph
from leaderboard.models.publications import FINAL
from leaderboard.models.standings import LATEST_COMPUTATION
from leaderboard.publishing import publications, releases
from leaderboard.publishing.weights import is_downloadable
from leaderboard.rankings.standings_store import load_standings
from leaderboard.reference_runs import ReferenceRun, find_reference_runs, parse_run_ids
from leaderboard.run_states import RunError
from leaderboard.schedule.start_estimates import estimate_run_start, is_queued
from leaderboard.views.live import LATEST_EVENT, LIVE_SECONDS, format_revision, get_standings_revision, render_live
from scheduler.models import Event
from scheduler.page_cache import cache_by_etag
from scheduler.rate_limits import build_rate_limit_response
from trainer.protocol.files import RUN_FILE, build_checkpoint_path

SETTLING_TIME = timedelta(minutes=1)
"""How long pages keep polling after a run has ended, since the standings change later."""
MAX_SAMPLED_STEPS = 8
X_LABELS = {"tokens": "tokens", "flops": "FLOPs", "seconds": "time", "step": "steps"}


SECOND_STEP_MISSING = (
    "To manage runs of other users, complete two-factor authentication. "
    "Sign in with a code from your authenticator app. To set one up, open the admin."
)


@require_safe
def run(request: HttpRequest, run_id: int) -> HttpResponse:
    """A run's page. `?x=flops&smooth=strong&log=x&log=y&over=12` sets its charts, `?find=` searches its log."""
    overlay_ids = [number for number in parse_run_ids(request.GET.getlist("over")) if number != run_id]
    runs = load_runs(run_id, *overlay_ids)
    if (error := check_log_search_rate(request)) is not None:
        return error
    run = runs[run_id]
    if run.entry.kind == Entry.Kind.NOTEBOOK:
        return render_notebook(request, run)
    others = [runs[number] for number in overlay_ids if number in runs]
    table = load_run_standings(run)
    context = {
        "run": run,
        "samples": group_samples(list(run.samples.all())),
        **split_scores(run),
        "events": list(Event.objects.about(run)),
        "log": run_logs.get_log(run, request.GET.get("find", "")),
        "weights": list_weight_files(run),
        **load_graph_context(run),
        "publications": publications.list_publications(run),
        "publishing": publications.describe_rules() if publications.is_connected() and run.is_over else "",
        "way": releases.get_release_progress(run),
        "start_estimate": estimate_run_start(run),
        "actions": list_actions(request, run),
        **build_curves_context(request, run, others, find_reference_runs(run, table)),
        **({"standings": table, "row": table.get_row(run.entry_id)} if table and is_finished(run) else {}),
        "revision": format_revision(run.latest_event_id, run.latest_standings),
    }
    return render(request, "leaderboard/run.html", context)


def render_notebook(request: HttpRequest, run: Run) -> HttpResponse:
    parts = notebooks.list_part_views(run)
    context = {
        "run": run,
        "parts": parts,
        "coming": notebooks.get_notebook_files(run.entry)[len(parts) :],
        "executed": notebooks.EXECUTED,
        "model": notebooks.MODEL,
        "publications": [kept for kept in publications.list_publications(run) if kept["hub"]],
        "events": Event.objects.about(run),
        "actions": list_actions(request, run),
        "start_estimate": estimate_run_start(run),
        "log": run_logs.get_log(run),
        "revision": format_revision(run.latest_event_id, run.latest_standings),  # type: ignore[attr-defined]
    }
    return render(request, "leaderboard/notebook_run.html", context)


def load_runs(run_id: int, *others: int) -> dict[int, Any]:
    """Return a run and others that exist by id, with the page's revision. Raises Http404 without the first."""
    runs = Run.objects.with_job().select_related("checkpoint", "graph")
    runs = runs.defer("graph__summary", "graph__config").filter(Q(pk=run_id) | Q(pk__in=others))
    runs = runs.annotate(latest_event_id=LATEST_EVENT, latest_standings=LATEST_COMPUTATION)
    runs_by_id = {run.pk: run for run in runs}
    if run_id not in runs_by_id:
        raise Http404
    return runs_by_id


def build_curves_context(
    request: HttpRequest, run: Run, others: list[Run], references: list[ReferenceRun]
) -> dict[str, Any]:
    stages = lineage.list_stages(run)
    curves = curve_svg.load_curves([run, *others, *(stage.run for stage in stages)])
    since = lineage.find_end(stages)
    own = lineage.shift_curve(curves[run.pk], since)
    offered = {reference.run: reference for reference in references}
    for number, other in enumerate(others):
        offered.setdefault(other.pk, ReferenceRun(other.pk, f"run {other.pk}", str(number), other.entry.title))
    shown = [
        Shown(run, own, f"run {run.pk}", "ink", is_alone=True, since=since),
        *lineage.build_branches(stages, curves),
        *(Shown(other, curves[other.pk], offered[other.pk].label, offered[other.pk].color) for other in others),
    ]
    return {
        **build_panels_context(request, shown),
        "stages": stages,
        "tokens_before": since.tokens,
        "reference_runs": list(offered.values()),
        "over": {other.pk for other in others},
        "evaluations": build_evaluations_table(curves[run.pk]),
        "numbers": build_points_table(curves[run.pk]),
    }


def build_panels_context(request: HttpRequest, shown: Sequence[Shown]) -> dict[str, Any]:
    """Return the picture of the loss over the x axis of the query string, and what a script draws in its place."""
    x = next((name for name in curve_svg.ABSCISSAE if name == request.GET.get("x")), curve_svg.ABSCISSAE[0])
    return {
        "x": x,
        "abscissae": [(name, X_LABELS[name], build_query_string(request, x=name)) for name in curve_svg.ABSCISSAE],
        "smoothings": ("none", "light", "medium", "strong"),
        "smoothing": request.GET.get("smooth", "medium"),
        "log_axes": request.GET.getlist("log"),
        "picture": draw_losses(shown, x),
        "small_panels": list_drawn_metrics(shown),
    }


def build_query_string(request: HttpRequest, **changed: str) -> str:
    """Return the query string of this page with changes."""
    query = request.GET.copy()
    for name, value in changed.items():
        query[name] = value
    return f"?{query.urlencode()}"


def split_scores(run: Run) -> dict[str, Any]:
    """Return the held-out scores and those of the lm-eval tasks, which have a `/` in their names."""
    scores = list(run.scores.all()) if is_finished(run) else []
    return {
        "held_out": [score for score in scores if "/" not in score.name],
        "suite": [score for score in scores if "/" in score.name],
    }


def list_weight_files(run: Run) -> list[dict[str, Any]]:
    """Return the downloads of a finished run's checkpoint. No query."""
    if not is_finished(run) or run.checkpoint is None:
        return []
    sizes = {PurePosixPath(str(file["path"])).name: file["size"] for file in run.checkpoint.manifest.get("files", [])}
    folder = build_checkpoint_path(run.checkpoint.step)
    files = [(f"{folder}/{name}", size) for name, size in sizes.items() if is_downloadable(name)]
    return [
        {"name": PurePosixPath(path).name, "size": size, "url": reverse("run-weights", args=[run.pk, FINAL, path])}
        for path, size in [*files, (RUN_FILE, None)]
    ]


def load_graph_context(run: Run) -> dict[str, Any]:
    """Return size and cost of the graph that the run trains, and its files."""
    if run.graph_id is None:
        return {}
    graph = TracedGraph.objects.select_related("entry", "season", "baseline_graph", "job").get(pk=run.graph_id)
    return {"costs": caps.list_values(graph) if graph.hash else [], "graph_files": graphs.list_download_links(graph)}


def is_finished(run: Run) -> bool:
    return run.state == Run.State.FINISHED


def is_settled(run: Run) -> bool:
    """Return whether nothing of the run changes any more, its standing included."""
    return run.is_over and (run.finished_at is None or run.finished_at < timezone.now() - SETTLING_TIME)


def load_run_standings(run: Run) -> StandingsTable | None:
    """Return the standings of the run's season, once there is something to compare."""
    if run.season_id != run.track.season_id or not run.step or is_queued(run):
        return None
    run.track.season = run.season  # the same row: no second query for it
    return load_standings(run.track)


def list_actions(request: HttpRequest, run: Run) -> list[actions.RunAction]:
    return actions.list_run_actions(request.user, run, is_maintainer=permissions.is_verified_maintainer(request))


@require_POST
def perform_action(request: HttpRequest, run_id: int, action: str) -> HttpResponse:
    run = get_object_or_404(Run.objects.with_job(), pk=run_id)
    if action not in actions.RUN_ACTIONS:
        raise Http404
    is_maintainer = permissions.is_verified_maintainer(request)
    if not is_maintainer and not actions.is_author(request.user, run):
        raise PermissionDenied(SECOND_STEP_MISSING if permissions.is_maintainer(request.user) else "")
    try:
        given = request.POST.get("step", "")
        step = int(given) if given.isdecimal() and len(given) < 19 else None
        run = actions.perform_run_action(run, action, request.user, step, is_maintainer=is_maintainer)
        messages.success(request, actions.RUN_ACTIONS[action].message)
    except RunError as error:
        messages.error(request, str(error))
    return redirect(run)


def group_samples(samples: list[Any]) -> list[tuple[int, list[Any]]]:
    """Return (step, samples) pairs, the last step first; at most eight, evenly spread."""
    steps = sorted({sample.step for sample in samples}, reverse=True)
    if len(steps) > MAX_SAMPLED_STEPS:
        last = MAX_SAMPLED_STEPS - 1
        steps = [steps[round(i * (len(steps) - 1) / last)] for i in range(MAX_SAMPLED_STEPS)]
    return [(step, [sample for sample in samples if sample.step == step]) for step in steps]


def run_etag(request: HttpRequest, run_id: int) -> str:
    facts = Run.objects.filter(pk=run_id).values_list("revision", "job__leases__pk", "job__leases__log_received")
    latest = facts.order_by("-job__leases__pk").first() or ()
    return f'"{"-".join(map(str, latest))}-{get_standings_revision()}"'


def check_log_search_rate(request: HttpRequest) -> HttpResponse | None:
    """Return a 429 response after too many log searches; pages of runs have no limit."""
    return build_rate_limit_response(request, "log") if request.GET.get("find", "").strip() else None


@require_safe
@cache_by_etag(run_etag)
def run_live(request: HttpRequest, run_id: int) -> HttpResponse:
    if (error := check_log_search_rate(request)) is not None:
        return error
    run = load_runs(run_id)[run_id]
    is_notebook = run.entry.kind == Entry.Kind.NOTEBOOK
    context = {
        "run": run,
        "start_estimate": estimate_run_start(run),
        "log": run_logs.get_log(run, request.GET.get("find", "")),
    }
    return render_live(
        "leaderboard/notebook_run.html" if is_notebook else "leaderboard/run.html",
        ["head", "log"],
        context,
        revision=format_revision(run.latest_event_id, run.latest_standings),
        wait=0 if is_settled(run) else LIVE_SECONDS,
        **({} if is_notebook else {"curve": build_script_columns(run)}),
    )


def build_script_columns(run: Run) -> dict[str, Any]:
    """Return its curve for the script, offset by the run that it continues."""
    since = lineage.find_end(lineage.list_stages(run))
    return script_columns(run, lineage.shift_curve(curve_svg.load_curve(run), since), since=since)


@require_safe
@condition(etag_func=run_etag)
def run_lineage(request: HttpRequest, run_id: int) -> JsonResponse:
    """The curves of earlier runs that this one continues, for the script."""
    stages = lineage.list_stages(get_object_or_404(Run.objects.with_entry(), pk=run_id))
    run_curves = curve_svg.load_curves([stage.run for stage in stages])
    branches = [
        {"label": branch.label, "color": branch.color, "columns": script_columns(branch.run, branch.curve)}
        for branch in lineage.build_branches(stages, run_curves)
    ]
    for branch in branches:  # a run that is still training has no remaining part in this picture
        columns: dict[str, Any] = branch["columns"]  # type: ignore[assignment]
        columns["end"] = {name: columns["train"][name][-1] for name in curve_svg.ABSCISSAE}
    return JsonResponse({"branches": branches})
