"""Run requests of CI jobs: train one commit (authentication: `auth`)."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest
from ninja import Schema, Status
from ninja.errors import HttpError
from pydantic import ConfigDict, Field

from leaderboard import runs
from leaderboard.api.auth import Bearer, Requester
from leaderboard.api.throttles import TokenThrottle
from leaderboard.models import Track
from leaderboard.submissions import intake, repositories
from leaderboard.submissions.intake import IntakeError
from leaderboard.submissions.repositories import RepositoryError


class RunRequest(Schema):
    """A commit to train."""

    model_config = ConfigDict(extra="forbid")

    repository: str = Field(min_length=1, max_length=400, examples=["https://github.com/someone/daily-train"])
    sha: str = Field(pattern=r"^[0-9a-f]{40}$", description="The full SHA: an approval holds for exactly this commit.")
    architecture: str = Field(min_length=1, max_length=80, description="A name in the commit's ARCHITECTURES.")
    title: str = Field(min_length=1, max_length=120)
    track: str = Field(default="", description="Slug of a track; the default track if empty.")
    hypothesis: str = Field(default="", max_length=4000)
    url: str = Field(default="", max_length=200, pattern=r"^(https?://\S+)?$", description="Where it is discussed.")
    config: dict[str, Any] = Field(default={}, description="The entry's own part of the configuration.")


class RunRequestReply(Schema):
    entry: int
    run: int
    state: str
    reason: str
    page: str
    """URL of the run's page."""


# Keyword arguments of the route.
OPERATION: dict[str, Any] = {
    "auth": Bearer(),
    "throttle": [TokenThrottle()],
    "response": {200: RunRequestReply, 201: RunRequestReply},
    "summary": "Request a run",
}


def request_run(request: HttpRequest, body: RunRequest) -> Status[dict[str, Any]]:
    """Request a run of one commit. It waits for a maintainer's approval; `page` shows its progress.

    Repeating a request for the same commit, architecture and track returns the same run, with 200 instead of 201.
    """
    requester: Requester = request.auth  # type: ignore[attr-defined]
    requester.check_commit(body.repository, body.sha)
    track = Track.objects.default() if not body.track else Track.objects.filter(slug=body.track).first()
    if track is None:
        raise HttpError(422, f"track: there is no track {body.track!r}.")
    try:
        repositories.check_public(body.repository)
        found = intake.submit_entry(
            body.repository,
            body.sha,
            body.title,
            body.architecture,
            track,
            author=requester.name,
            hypothesis=body.hypothesis,
            url=body.url,
            config=body.config,
            requested_by=requester.user,
            actor=requester.actor,
        )
    except (IntakeError, RepositoryError) as error:
        raise HttpError(422, str(error)) from error
    existing = found.runs.order_by("-pk").first()
    run = existing or runs.make_run(found, track, actor=requester.actor)
    reply = {
        "entry": run.entry_id,
        "run": run.pk,
        "state": run.state,
        "reason": run.reason,
        "page": f"{settings.SITE_URL}{run.get_absolute_url()}",
    }
    return Status(200 if existing else 201, reply)
