"""The page of hypotheses with their verdicts, including negative results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.paginator import Paginator
from django.db.models import Prefetch, Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from leaderboard.models import Entry, Run, Standing

ENTRIES_PER_PAGE = 50
AXIS = "flops"


@require_safe
def hypotheses(request: HttpRequest) -> HttpResponse:
    """List hypotheses with a verdict, the newest first."""
    is_scored = Q(standings__table__axis=AXIS, standings__is_baseline=False)
    has_failed = Q(runs__state=Run.State.FAILED, runs__cause="model")
    found = Entry.objects.exclude(hypothesis="").exclude(kind=Entry.Kind.MAIN).filter(is_scored | has_failed).distinct()
    standings = Standing.objects.filter(table__axis=AXIS, is_baseline=False)
    failures = Run.objects.filter(state=Run.State.FAILED, cause="model").order_by("-pk")
    rows = found.select_related("track").prefetch_related(
        Prefetch("standings", standings, to_attr="own_standings"), Prefetch("runs", failures, to_attr="failures")
    )
    page = Paginator(rows.order_by("-pk"), ENTRIES_PER_PAGE).get_page(request.GET.get("page"))
    return render(request, "leaderboard/learned.html", {"page": page, "lessons": build_lessons(list(page.object_list))})


def build_lessons(entries: Sequence[Any]) -> list[dict[str, Any]]:
    """Return what the runs of entries with `own_standings` and `failures` say about their hypotheses."""
    lessons = []
    for entry in entries:
        row, failure = (next(iter(found), None) for found in (entry.own_standings, entry.failures))
        lessons.append({"entry": entry, "standing": row, "failure": failure, "verdict": describe_verdict(row)})
    return lessons


def describe_verdict(row: Standing | None) -> str:
    if row is None:
        return "Failed"
    if row.multiplier_low is None or row.multiplier_high is None:
        return "Not compared"
    if row.multiplier_low > 1:
        return "Better than the baseline"
    return "Worse than the baseline" if row.multiplier_high < 1 else "No difference found"
