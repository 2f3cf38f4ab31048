"""Who asks for a run: whoever has a token that a maintainer made, or a job of GitHub Actions with GitHub's word."""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib.auth.models import AbstractUser
from django.http import HttpRequest
from django.utils import timezone
from ninja.errors import HttpError
from ninja.security import HttpBearer

from leaderboard import permissions
from leaderboard.integrations.github import oidc
from leaderboard.models import ApiToken


@dataclass(frozen=True)
class Asker:
    pk: str
    """Whose calls are counted together."""
    name: str
    """The entry's author."""
    actor: str
    """In the audit log."""
    user: AbstractUser | None
    job: oidc.Job | None = None

    def may_ask_for(self, repository: str, sha: str) -> None:
        """Raise 403 unless he may ask for this commit: a job asks for its own."""
        if self.job is None:
            return
        try:
            oidc.vouches_for(self.job, repository, sha)
        except oidc.NotBelieved as error:
            raise HttpError(403, str(error)) from error


class Bearer(HttpBearer):
    """`Authorization: Bearer <token>`: one made in the admin, or GitHub's for a job (docs/ci.md)."""

    def authenticate(self, request: HttpRequest, token: str) -> Asker | None:
        return of_job(token) if oidc.looks_like(token) else of_token(token)


def of_token(token: str) -> Asker | None:
    """Return whose token it is; raise 403 unless it may ask for runs."""
    found = ApiToken.objects.with_secret(token)
    if found is None or found.revoked:
        return None
    if found.scope != ApiToken.Scope.CREATE_RUNS:
        raise HttpError(403, f"This token may not ask for runs: its scope is {found.scope}.")
    if not found.owner.is_active:
        raise HttpError(403, "The account that this token belongs to is closed.")
    ApiToken.objects.filter(pk=found.pk).update(last_used_at=timezone.now())
    name = found.owner.get_username()
    return Asker(str(found.pk), name, name, found.owner)


def of_job(token: str) -> Asker:
    """Return the job that GitHub vouches for; raise 401 with what is wrong, 503 while that cannot be known."""
    try:
        job = oidc.believed(token)
    except oidc.NotBelieved as error:
        raise HttpError(401, str(error)) from error
    except oidc.Unavailable as error:
        raise HttpError(503, f"{error} Nothing was entered: ask again in a minute.") from error
    user = permissions.known_on_github(int(job.actor_id)) if job.actor_id.isdecimal() else None
    name = user.get_username() if user else job.actor
    return Asker(f"github-{job.repository_id}", name, f"github:{job.actor}"[:120], user, job)
