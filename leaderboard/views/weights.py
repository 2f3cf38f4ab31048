"""Weights to download, from the site itself: for everybody, as the storage gives them, and not too often."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from django.utils.http import content_disposition_header
from django.views.decorators.http import require_safe

from leaderboard.models import Run
from leaderboard.publishing import weights
from scheduler import storage
from scheduler.errors import RangeError
from scheduler.node_api import downloads
from scheduler.rate_limits import build_rate_limit_response


@require_safe
def file(request: HttpRequest, run_id: int, name: str, path: str) -> HttpResponseBase:
    """A file of a run's final weights or of a release; `Range: bytes=<first>-` goes on where a download broke."""
    if (error := build_rate_limit_response(request, "download")) is not None:
        return error
    run = get_object_or_404(Run.objects.select_related("entry__bundle", "checkpoint"), pk=run_id)
    blob = dict(weights.find_weight_blobs(run, name)).get(path)
    if blob is None:
        raise Http404
    if address := storage.get_presigned_url(blob):
        return HttpResponseRedirect(address)
    try:
        answer = downloads.send_blob(request, blob)
    except RangeError as range_error:
        return HttpResponse(f"{range_error}\n", status=range_error.status, content_type="text/plain")
    saved = content_disposition_header(True, f"run-{run.pk}-{path.rsplit('/', 1)[-1]}")
    answer.headers["Content-Disposition"] = saved or "attachment"  # afterwards: Django has a word of its own about it
    return answer
