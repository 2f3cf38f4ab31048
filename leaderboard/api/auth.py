"""Throttles, and authentication of run requests: an API token of the site, or an OIDC token of a GitHub Actions job."""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib.auth.models import AbstractUser
from django.http import HttpRequest
from django.utils import timezone
from ninja.errors import HttpError, Throttled
from ninja.security import HttpBearer
from ninja.throttling import BaseThrottle

from leaderboard import permissions
from leaderboard.api.errors import UnavailableError
from leaderboard.integrations.github import oidc
from leaderboard.models import ApiToken
from scheduler import rate_limits


@dataclass(frozen=True)
class Requester:
    pk: str  # requests with the same key share a rate limit
    name: str  # author of the entry
    actor: str  # in the audit log
    user: AbstractUser | None
    job: oidc.ActionsJob | None = None


class Bearer(HttpBearer):
    """`Authorization: Bearer <token>`: a token of a user, or that of a GitHub job (docs/how-to/ci.md)."""

    def authenticate(self, request: HttpRequest, token: str) -> Requester | None:
        if not oidc.is_json_web_token(token):
            return authenticate_token(token)
        # Counted here, since throttles come after the authentication, which may fetch GitHub's keys.
        if not AddressThrottle().allow_request(request):
            raise Throttled(rate_limits.get_retry_after(AddressThrottle.limit))
        return authenticate_job(token)


def authenticate_token(token: str) -> Requester | None:
    """Return the owner of an API token, or None; raise 403 if it may not request runs."""
    api_token = ApiToken.objects.with_secret(token)
    if api_token is None or api_token.revoked:
        return None
    if api_token.scope != ApiToken.Scope.CREATE_RUNS:
        raise HttpError(403, f"This token may not request runs: its scope is {api_token.scope}.")
    if not api_token.owner.is_active:
        raise HttpError(403, "The account of this token is closed.")
    ApiToken.objects.filter(pk=api_token.pk).update(last_used_at=timezone.now())
    return build_user_requester(api_token.owner)


def authenticate_job(token: str) -> Requester:
    """Return the job of a GitHub token; raise 401 if the token is invalid, 503 while GitHub's keys are unavailable."""
    try:
        job = oidc.verify_token(token)
    except oidc.InvalidTokenError as error:
        raise HttpError(401, str(error)) from error
    except oidc.KeysUnavailableError as error:
        raise UnavailableError(f"{error} No run was created. Try again in a minute.") from error
    return build_job_requester(job)


def build_user_requester(user: AbstractUser) -> Requester:
    name = user.get_username()
    return Requester(f"user-{user.pk}", name, name, user)


def build_job_requester(job: oidc.ActionsJob) -> Requester:
    user = permissions.find_github_user(int(job.actor_id)) if job.actor_id.isdecimal() else None
    name = user.get_username() if user else job.actor
    return Requester(f"github-{job.repository_id}", name, f"github:{job.actor}"[:120], user, job)


class AddressThrottle(BaseThrottle):
    """Limits the requests a minute of one IP address. Counts as the pages do: ninja's own stores a list per client."""

    limit = "read"

    def get_client(self, request: HttpRequest) -> str:
        return str(request.META.get("REMOTE_ADDR", ""))

    def allow_request(self, request: HttpRequest) -> bool:
        return rate_limits.is_within_rate_limit(self.limit, self.get_client(request))

    def wait(self) -> float:
        return rate_limits.get_retry_after(self.limit)


class RunRequestThrottle(AddressThrottle):
    """Limits the run requests an hour from one IP address, since one person may have several accounts."""

    limit = "ask-address"


class TokenThrottle(AddressThrottle):
    """Limits the run requests an hour with the tokens of one user, or from one repository."""

    limit = "ask"

    def get_client(self, request: HttpRequest) -> str:
        return str(request.auth.pk)  # type: ignore[attr-defined]
