"""Run requests of CI jobs and commands: messages of the outbox, since fetching a repository takes up to minutes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse
from ninja import Schema, Status
from ninja.errors import HttpError
from pydantic import ConfigDict, Field, field_validator

from leaderboard import outbox
from leaderboard import runs as run_queue
from leaderboard.api import runs
from leaderboard.api.auth import (
    Bearer,
    Requester,
    RunRequestThrottle,
    TokenThrottle,
    build_job_requester,
    build_user_requester,
)
from leaderboard.api.errors import UnavailableError, describe_error
from leaderboard.integrations.github import oidc
from leaderboard.models import Entry, OutboxMessage, Run, Track
from leaderboard.sanitize import check_storable
from leaderboard.submissions import intake, repositories, smoke_tests
from leaderboard.submissions.intake import IntakeError
from leaderboard.submissions.repositories import RepositoryError, UnreachableError

router = runs.router  # a request has the address of the list
KIND = "run.request"
POLL_SECONDS = 2


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
    based_on: int | None = Field(
        default=None, ge=1, lt=2**63, description="The earlier entry that it builds on, which a record then credits."
    )
    variant: str = Field(
        default="",
        max_length=80,
        description="Any text but `main`. Requests with different values create separate entries.",
    )

    @field_validator("*")
    @classmethod
    def refuse_unstorable(cls, value: Any) -> Any:
        check_storable(value)
        return value


class PendingReply(Schema):
    request: int
    address: str  # where the answer will be


class RunRequestReply(Schema):
    entry: int
    run: int
    state: str
    reason: str
    page: str  # its URL


@router.post(
    "/runs",
    auth=Bearer(),
    throttle=[TokenThrottle(), RunRequestThrottle()],
    response={202: PendingReply},
    summary="Request a run",
)
def request_run(request: HttpRequest, body: RunRequest) -> Status[dict[str, Any]]:
    """Request a run of one commit. The commit is fetched in the background; `address` answers when that is done.

    Repeating a request for the same commit, architecture, track and variant leads to the same run.
    """
    requester: Requester = request.auth  # type: ignore[attr-defined]
    if Track.objects.find(body.track) is None:
        raise HttpError(422, f"track: there is no track {body.track!r}.")
    try:
        if requester.job:
            oidc.check_repository(requester.job, body.repository)
        repositories.check_public(body.repository)
    except oidc.InvalidTokenError as error:
        raise HttpError(403, str(error)) from error
    except RepositoryError as error:
        raise HttpError(422, str(error)) from error
    payload = {
        "body": body.model_dump(exclude_unset=True),
        "requester": requester.pk,
        "job": dataclasses.asdict(requester.job) if requester.job else None,
        "user": requester.user.pk if requester.user else None,
    }
    key = f"{KIND}:{hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()}"
    message = outbox.enqueue_once(KIND, key, payload)
    if message.state == OutboxMessage.State.DONE and "run" not in message.result:  # it was refused: try again
        message = outbox.enqueue(KIND, key, payload)
    return build_pending_reply(message)


def build_pending_reply(message: OutboxMessage) -> Status[dict[str, Any]]:
    address = reverse("api:get_run_request", args=[message.pk])
    return Status(202, {"request": message.pk, "address": f"{settings.SITE_URL}{address}"})


@router.get(
    "/run-requests/{request_id}",
    auth=Bearer(),
    response={200: RunRequestReply, 202: PendingReply},
    summary="The answer to a run request",
    openapi_extra={"responses": {403: describe_error(403), 409: describe_error(409)}},
    url_name="get_run_request",
)
def get_run_request(request: HttpRequest, request_id: int, response: HttpResponse) -> Status[dict[str, Any]]:
    """The run that was created, 202 while the commit is being fetched, or why the request is refused.

    The run waits for a maintainer's approval; `page` shows its progress. 409: it has another `config` or `based_on`.
    """
    requester: Requester = request.auth  # type: ignore[attr-defined]
    messages = OutboxMessage.objects.filter(kind=KIND, payload__requester=requester.pk)
    message = get_object_or_404(messages, pk=request_id)
    if message.state != OutboxMessage.State.DONE:
        response["Retry-After"] = str(POLL_SECONDS)
        return build_pending_reply(message)
    result = message.result
    if result.get("status") == 503:
        raise UnavailableError(result["detail"])
    if "run" not in result:
        raise HttpError(result["status"], result["detail"])
    run = get_object_or_404(Run, pk=result["run"])
    page = f"{settings.SITE_URL}{run.get_absolute_url()}"
    reply = {"entry": run.entry_id, "run": run.pk, "state": run.state, "reason": run.reason, "page": page}
    return Status(200, reply)


class RefusedError(Exception):
    """The request is refused with an HTTP status."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


def process_run_request(message: OutboxMessage) -> Mapping[str, Any]:
    """Create the entry and the run of a request; the handler of `KIND`. A refusal is a result, too."""
    try:
        return {"run": create_run(message.payload).pk}
    except RefusedError as error:
        return {"status": error.status, "detail": str(error)}


def create_run(payload: Mapping[str, Any]) -> Run:
    """Return the run of a request, which exists after a repetition. Raises RefusedError."""
    body, job = RunRequest(**payload["body"]), payload["job"] and oidc.ActionsJob(**payload["job"])
    user = User.objects.filter(pk=payload["user"], is_active=True).first()
    if job:
        requester = build_job_requester(job)
    elif user:
        requester = build_user_requester(user)
    else:
        raise RefusedError(403, "The account of this token is closed.")
    if (track := Track.objects.find(body.track)) is None:
        raise RefusedError(422, f"track: there is no track {body.track!r}.")
    try:
        if job:
            oidc.check_commit(job, body.repository, body.sha)
        entry = intake.submit_entry(
            **body.model_dump(exclude={"track"}),
            track=track,
            author=requester.name,
            requested_by=requester.user,
            actor=requester.actor,
        )
    except oidc.InvalidTokenError as error:
        raise RefusedError(403, str(error)) from error
    except UnreachableError as error:
        raise RefusedError(503, f"{error} No run was created. Try again in a minute.") from error
    except (IntakeError, RepositoryError) as error:
        raise RefusedError(422, str(error)) from error
    if "config" in body.model_fields_set and entry.config != body.config:
        raise RefusedError(409, f"Entry {entry.pk} of this commit has another config. Give this request a variant.")
    if body.based_on not in (None, entry.based_on_id):
        raise RefusedError(409, f"Entry {entry.pk} of this commit has another based_on. A maintainer can change it.")
    if entry.track.approval != Track.Approval.MAINTAINER and not entry.smoke:  # what its policy decides by
        smoke_tests.queue_smoke_test(entry, actor=requester.actor)
    with transaction.atomic():
        Entry.objects.select_for_update(no_key=True).get(pk=entry.pk)  # concurrent requests would both create a run
        run = entry.runs.order_by("-pk").first()
        return run or run_queue.make_run(entry, track, actor=requester.actor)
