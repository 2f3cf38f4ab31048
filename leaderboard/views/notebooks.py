"""The page of a notebook run: what ran, what it said, and what it left to download."""

from __future__ import annotations

from django.http import FileResponse, Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils.http import content_disposition_header
from django.views.decorators.http import require_safe

from leaderboard import actions, permissions, run_logs
from leaderboard.job_handlers import notebooks
from leaderboard.models import Entry, Run
from leaderboard.schedule.start_estimates import estimate_run_start
from leaderboard.views.live import latest_event
from scheduler import storage
from scheduler.models import Event, JobFile


def page(request: HttpRequest, run: Run) -> HttpResponse:
    """One notebook run, whole; `leaderboard.views.runs.run` leads here."""
    begun = notebooks.list_part_views(run)
    context = {
        "run": run,
        "parts": begun,
        "coming": notebooks.get_notebook_files(run.entry)[len(begun) :],
        "executed": notebooks.EXECUTED,
        "model": notebooks.MODEL,
        "events": Event.objects.about(run),
        "actions": actions.list_run_actions(
            request.user, run, is_maintainer=permissions.is_verified_maintainer(request)
        ),
        "departure": estimate_run_start(run),
        "log": run_logs.get_log(run),
        "revision": latest_event(),
    }
    return render(request, "leaderboard/notebook_run.html", context)


@require_safe
def file(request: HttpRequest, run_id: int, part: int, path: str) -> HttpResponseBase:
    """A file that a part of a notebook run left: always to be saved, never to be opened here."""
    found = JobFile.objects.select_related("blob").filter(
        job__notebook_part__run=run_id, job__notebook_part__number=part, path=path
    )
    kept = found.filter(job__notebook_part__run__entry__kind=Entry.Kind.NOTEBOOK).first()
    if kept is None:
        raise Http404
    if address := storage.get_presigned_url(kept.blob):
        return HttpResponseRedirect(address)
    answer = FileResponse(storage.open_blob(kept.blob), content_type="application/octet-stream")
    saved = content_disposition_header(True, path.rsplit("/", 1)[-1])
    answer.headers["Content-Disposition"] = saved or "attachment"  # afterwards: Django has a word of its own about it
    return answer
