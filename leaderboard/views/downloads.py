"""Files of a run: its curve, its log, its recipe, its weights and what its notebooks left."""

from __future__ import annotations

from django.core.cache import cache
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from django.utils.http import content_disposition_header
from django.views.decorators.http import condition, require_safe

from leaderboard import graphs, reproduction, run_logs
from leaderboard.charts.cards import draw_run_card
from leaderboard.charts.curve_svg import write_curve_csv
from leaderboard.models import Entry, Run
from leaderboard.publishing import weights
from leaderboard.views.runs import run_etag
from scheduler import storage
from scheduler.errors import RangeError
from scheduler.models import Blob, JobFile
from scheduler.node_api import downloads
from scheduler.rate_limits import build_rate_limit_response

PICTURE_CACHE_SECONDS = 3600


def build_file_response(content: str | bytes, name: str, kind: str, *, as_attachment: bool = False) -> HttpResponse:
    headers = {"Content-Disposition": content_disposition_header(as_attachment, name) or "inline"}
    return HttpResponse(content, content_type=kind, headers=headers)


def send_blob(request: HttpRequest, blob: Blob, name: str) -> HttpResponseBase:
    """Send a stored file as an attachment, or redirect to it; `Range: bytes=<first>-` resumes a download."""
    if address := storage.get_presigned_url(blob):
        return HttpResponseRedirect(address)
    try:
        response = downloads.send_blob(request, blob)
    except RangeError as error:
        return HttpResponse(f"{error}\n", status=error.status, content_type="text/plain")
    # FileResponse has set the name of the stored file
    response.headers["Content-Disposition"] = content_disposition_header(True, name) or "attachment"
    return response


def curve_etag(request: HttpRequest, run_id: int) -> str | None:
    revision = Run.objects.filter(pk=run_id).values_list("revision", flat=True).first()
    return None if revision is None else f'"{run_id}.{revision}"'


@require_safe
@condition(etag_func=curve_etag)
def run_picture(request: HttpRequest, run_id: int) -> HttpResponse:
    run = get_object_or_404(Run.objects.with_entry(), pk=run_id)
    key = f"curve:{run.pk}:{run.revision}"
    picture = cache.get_or_set(key, lambda: draw_run_card(run), PICTURE_CACHE_SECONDS)
    return HttpResponse(picture, content_type="image/png")


@require_safe
@condition(etag_func=curve_etag)
def run_csv(request: HttpRequest, run_id: int) -> HttpResponse:
    run = get_object_or_404(Run, pk=run_id)
    return build_file_response(write_curve_csv(run), f"run-{run.pk}.csv", "text/csv; charset=utf-8")


@require_safe
@condition(etag_func=run_etag)
def run_log(request: HttpRequest, run_id: int) -> HttpResponse:
    if (error := build_rate_limit_response(request, "log")) is not None:
        return error
    run = get_object_or_404(Run, pk=run_id)
    text = run_logs.get_full_text(run)
    return build_file_response(text, f"run-{run.pk}-log.txt", "text/plain; charset=utf-8", as_attachment=True)


@require_safe
def run_toml(request: HttpRequest, run_id: int) -> HttpResponse:
    """The recipe, for `dailytrain train --config`."""
    run = get_object_or_404(Run.objects.with_entry(), pk=run_id)
    text = reproduction.write_toml(run)
    return build_file_response(text, f"run-{run.pk}.toml", "application/toml; charset=utf-8", as_attachment=True)


@require_safe
def run_weights(request: HttpRequest, run_id: int, name: str, path: str) -> HttpResponseBase:
    """A file of a run's final weights or of a release."""
    if (error := build_rate_limit_response(request, "download")) is not None:
        return error
    run = get_object_or_404(Run.objects.select_related("entry__bundle", "checkpoint"), pk=run_id)
    blob = dict(weights.find_weight_blobs(run, name)).get(path)
    if blob is None:
        raise Http404
    return send_blob(request, blob, f"run-{run.pk}-{path.rsplit('/', 1)[-1]}")


@require_safe
def graph_file(request: HttpRequest, graph_hash: str, name: str) -> HttpResponseBase:
    """A file of a traced graph."""
    if (error := build_rate_limit_response(request, "download")) is not None:
        return error
    blob = graphs.find_file_blob(graph_hash, name)
    if blob is None:
        raise Http404
    return send_blob(request, blob, f"{graph_hash[:12]}-{name}")


@require_safe
def notebook_file(request: HttpRequest, run_id: int, part: int, path: str) -> HttpResponseBase:
    """A file that a part of a notebook run left. It is untrusted, so browsers save it and never open it here."""
    if (error := build_rate_limit_response(request, "download")) is not None:
        return error
    run = get_object_or_404(Run.objects.only("pk"), pk=run_id)
    files = JobFile.objects.select_related("blob").filter(
        job__notebook_part__run=run,
        job__notebook_part__number=part,
        job__notebook_part__run__entry__kind=Entry.Kind.NOTEBOOK,
        path=path,
    )
    return send_blob(request, get_object_or_404(files).blob, path.rsplit("/", 1)[-1])
