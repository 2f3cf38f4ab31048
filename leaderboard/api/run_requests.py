"""The way in for CI jobs: ask for a run of one commit, with a token or with GitHub's word (`asker`)."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest
from ninja import Schema, Status
from ninja.errors import HttpError
from ninja.throttling import BaseThrottle
from pydantic import ConfigDict, Field

from leaderboard import runs
from leaderboard.api.auth import Asker, Bearer
from leaderboard.models import Run, Track
from leaderboard.submissions import intake, repositories
from leaderboard.submissions.intake import IntakeError
from leaderboard.submissions.repositories import RepositoryError
from scheduler import rate_limits


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


class PerToken(BaseThrottle):
    """So many an hour with one token, or from one repository, counted as nodes' calls are."""

    def allow_request(self, request: HttpRequest) -> bool:
        return rate_limits.is_within_rate_limit("ask", str(request.auth.pk))  # type: ignore[attr-defined]

    def wait(self) -> float:
        return rate_limits.get_retry_after("ask")


TERMS: dict[str, Any] = {
    "auth": Bearer(),
    "throttle": [PerToken()],
    "response": {200: Asked, 201: Asked},
    "summary": "Ask for a run",
}
"""On which `ask` is served."""


def ask(request: HttpRequest, wanted: Ask) -> Status[dict[str, Any]]:
    """Ask for a run of one commit. It waits for a maintainer's approval; `page` is where to watch it.

    Asking again for the same commit, architecture and track gives the same run, with 200 instead of 201.
    """
    asker: Asker = request.auth  # type: ignore[attr-defined]
    asker.may_ask_for(wanted.repository, wanted.sha)
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
            author=asker.name,
            hypothesis=wanted.hypothesis,
            url=wanted.url,
            config=wanted.config,
            requested_by=asker.user,
            actor=asker.actor,
        )
    except (IntakeError, RepositoryError) as error:
        raise HttpError(422, str(error)) from error
    before = found.runs.order_by("-pk").first()
    made = before or runs.make_run(found, track, actor=asker.actor)
    return Status(200 if before else 201, asked(made))


def asked(run: Run) -> dict[str, Any]:
    return {
        "entry": run.entry_id,
        "run": run.pk,
        "state": run.state,
        "reason": run.reason,
        "page": f"{settings.SITE_URL}{run.get_absolute_url()}",
    }
