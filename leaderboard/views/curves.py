"""A run's curve as files."""

from __future__ import annotations

from django.core.cache import cache
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import condition, require_safe

from leaderboard.charts import curve_files
from leaderboard.models import Run

KEPT_SECONDS = 3600
"""Of a drawn picture, by the site; a change of the run makes another at once."""


def etag(request: HttpRequest, run_id: int) -> str | None:
    revision = Run.objects.filter(pk=run_id).values_list("revision", flat=True).first()
    return None if revision is None else f'"{run_id}.{revision}"'


@require_safe
@condition(etag_func=etag)
def run_picture(request: HttpRequest, run_id: int) -> HttpResponse:
    run = get_object_or_404(Run.objects.with_entry(), pk=run_id)
    drawn = cache.get_or_set(f"curve:{run.pk}:{run.revision}", lambda: curve_files.png(run), KEPT_SECONDS)
    return HttpResponse(drawn, content_type="image/png")


@require_safe
@condition(etag_func=etag)
def run_csv(request: HttpRequest, run_id: int) -> HttpResponse:
    run = get_object_or_404(Run, pk=run_id)
    name = {"Content-Disposition": f'inline; filename="run-{run.pk}.csv"'}
    return HttpResponse(curve_files.csv(run), content_type="text/csv; charset=utf-8", headers=name)
