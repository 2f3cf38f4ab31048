"""The check of the nightly run on a commit of `main`; a commit status if the site has only a plain token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.conf import settings
from django.urls import reverse

from leaderboard import outbox
from leaderboard.integrations.github import client
from leaderboard.models import Night, OutboxMessage, Run
from scheduler.models import Event

KIND = "github.commit"
NAME = "Daily Train, nightly"
NOT_STARTED_STATES = (Run.State.WAITING, Run.State.QUEUED)


def update_nightly_checks(events: Sequence[Event]) -> None:
    """Listener of Events: of a track when its night begins, of a nightly run afterwards."""
    runs = {event.target_id for event in events if event.target_kind == "run"}
    tracks = {event.target_id for event in events if event.target_kind == "track"}
    nightly = Run.objects.filter(pk__in=runs, purpose=Run.Purpose.NIGHTLY)
    nights = [Night.objects.filter(track=track).first() for track in tracks]
    for sha in sorted({*nightly.values_list("entry__sha", flat=True), *(night.sha for night in nights if night)}):
        if sha and client.get_main_repository():
            outbox.enqueue(KIND, f"{KIND}:{sha}", {"sha": sha})


def update_status(message: OutboxMessage) -> Mapping[str, Any]:
    """Handle `github.commit`."""
    sha = message.payload["sha"]
    check = describe_commit(sha)
    if check is None:
        return dict(message.result)
    github = client.get_client(client.get_main_repository())
    return {"check": github.update_check(sha, NAME, check_id=message.result.get("check"), **check)}


def describe_commit(sha: str) -> dict[str, Any] | None:
    """Return the arguments of `Client.update_check`; None if the commit has no nightly run."""
    night = Night.objects.filter(sha=sha).select_related("track").order_by("-date", "-pk").first()
    run = Run.objects.filter(entry__sha=sha, purpose=Run.Purpose.NIGHTLY).order_by("-pk").first()
    if run is not None:
        return {**describe_run(run), "url": settings.SITE_URL + run.get_absolute_url()}
    if night is not None and night.problem:
        title = f"It cannot be trained: {night.problem}"
        url = settings.SITE_URL + reverse("calendar")
        return {"status": "completed", "conclusion": "failure", "title": title, "url": url}
    return None


def describe_run(run: Run) -> dict[str, Any]:
    if run.state in NOT_STARTED_STATES:
        return {"status": "queued", "title": "Tonight's run waits for a node."}
    if run.state == Run.State.FINISHED:
        return {"status": "completed", "conclusion": "success", "title": f"{run.bits_per_byte:.4f} bits per byte"}
    if run.state == Run.State.FAILED:
        if run.cause == "model":
            return {"status": "completed", "conclusion": "failure", "title": f"main is broken: {run.reason}"}
        title = f"The infrastructure failed, not main: {run.reason}"
        return {"status": "completed", "conclusion": "neutral", "title": title}
    if run.state == Run.State.CANCELLED:
        return {"status": "completed", "conclusion": "cancelled", "title": f"Cancelled: {run.reason}"}
    scoring = run.state == Run.State.SCORING
    return {"status": "in_progress", "title": "Trained; being scored." if scoring else "Tonight's run trains."}
