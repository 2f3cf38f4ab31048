"""Authentication of GitHub Actions jobs by OpenID Connect tokens, instead of secrets in repositories.

GitHub signs the repository, commit and event of a job; the job requests the token with the site as its audience
(https://docs.github.com/en/actions/reference/security/oidc). The issuer's keys are cached for an hour. Tokens are valid
for minutes. A replayed token requests the same run again and gets the same answer.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import jwt
from django.conf import settings
from django.core.cache import caches

from leaderboard.integrations.github import client
from leaderboard.integrations.github.connection import TIMEOUT, get_ssl_context
from leaderboard.submissions import repositories
from leaderboard.submissions.repositories import RepositoryError, UnreachableError

# Not `pull_request_target`: it runs with the rights of `main` on untrusted pull requests.
EVENTS = ("push", "pull_request", "workflow_dispatch")
ALGORITHM = "RS256"
CLAIMS = ("iss", "aud", "exp", "iat", "repository", "repository_id", "sha", "event_name", "actor", "actor_id")
TOKEN_LENGTH = 16_000
LEEWAY_SECONDS = 60
KEYS_SECONDS = 3600
REFETCH_SECONDS = 60  # between two fetches because of unknown keys, which may be new, and after a failed fetch
KEYS_BYTES = 200_000


class InvalidTokenError(ValueError):
    """The token is invalid; the message is for the author of the workflow."""


class KeysUnavailableError(Exception):
    """The issuer's keys cannot be fetched now."""


@dataclass(frozen=True)
class ActionsJob:
    """The claims of a job. `sha` of a pull request is GitHub's merge of its head."""

    repository: str  # owner/name
    repository_id: str
    sha: str
    event: str
    actor: str  # login
    actor_id: str


def is_json_web_token(token: str) -> bool:
    return token.count(".") == 2


def verify_token(token: str) -> ActionsJob:
    """Return the job of a valid token whose repository and event are allowed.

    Raises InvalidTokenError or KeysUnavailableError.
    """
    if not settings.GITHUB_OIDC_ISSUER:
        raise InvalidTokenError("This site takes no tokens of GitHub Actions: create one at /accounts/tokens/.")
    claims = decode_token(token)
    if absent := [name for name in CLAIMS if not isinstance(claims.get(name), str | int | float | list)]:
        raise InvalidTokenError(f"The token does not say its {absent[0]}: it is none of GitHub Actions'.")
    names = ("repository", "repository_id", "sha", "event_name", "actor", "actor_id")
    job = ActionsJob(*(str(claims[name]) for name in names))
    if not is_allowed_repository(job.repository):
        hint = "a maintainer can add it to GITHUB_OIDC_REPOSITORIES. Or use a token of /accounts/tokens/."
        raise InvalidTokenError(f"Jobs of {job.repository} may not ask here: {hint}")
    if job.event not in EVENTS:
        raise InvalidTokenError(f"A job of the event {job.event} may not ask for runs: use one of {', '.join(EVENTS)}.")
    return job


def decode_token(token: str) -> dict[str, Any]:
    if len(token) > TOKEN_LENGTH:
        raise InvalidTokenError("The token is longer than any of GitHub's.")
    try:
        key_id = jwt.get_unverified_header(token).get("kid")
        key = find_signing_key(key_id) if isinstance(key_id, str) else None
        if key is None:
            raise InvalidTokenError("The token is not signed by GitHub: its key is not known there.")
        return jwt.decode(
            token,
            key,
            algorithms=[ALGORITHM],
            issuer=settings.GITHUB_OIDC_ISSUER,
            audience=settings.GITHUB_OIDC_AUDIENCE,
            leeway=LEEWAY_SECONDS,
            options={"require": ["exp", "iat", "iss", "aud"]},
        )
    except jwt.ExpiredSignatureError as error:
        raise InvalidTokenError("The token has expired: ask GitHub for it right before you ask here.") from error
    except jwt.InvalidAudienceError as error:
        audience = settings.GITHUB_OIDC_AUDIENCE
        raise InvalidTokenError(f"The token has another audience: request one with the audience {audience}.") from error
    except jwt.InvalidIssuerError as error:
        raise InvalidTokenError(f"The token is not of {settings.GITHUB_OIDC_ISSUER}.") from error
    except jwt.InvalidSignatureError as error:
        raise InvalidTokenError("The token's signature is not GitHub's.") from error
    except jwt.PyJWTError as error:
        raise InvalidTokenError(f"The token cannot be read: {error}.") from error


def is_allowed_repository(repository: str) -> bool:
    allowed = settings.GITHUB_OIDC_REPOSITORIES or [client.get_main_repository()]
    owner = repository.partition("/")[0]
    return any(name.lower() in ("*", f"{owner}/*".lower(), repository.lower()) for name in allowed if name)


def check_repository(job: ActionsJob, repository: str) -> None:
    """Raise InvalidTokenError unless this is the job's repository."""
    if not is_repository_url(repository, job.repository):
        raise InvalidTokenError(f"The token is of {job.repository}, and the request is for {repository}.")


def check_commit(job: ActionsJob, repository: str, sha: str) -> None:
    """Raise InvalidTokenError unless this is the job's commit.

    Raises UnreachableError if the repository cannot be fetched now.
    The commit of a pull request's job is GitHub's merge; then its head is allowed, too.
    """
    if sha == job.sha:
        return
    try:
        if job.event == "pull_request" and sha in repositories.open_mirror(repository).list_merged_heads(job.sha):
            return
    except UnreachableError:
        raise
    except RepositoryError as error:
        raise InvalidTokenError(f"What was merged into {job.sha[:8]} cannot be found out: {error}") from error
    raise InvalidTokenError(f"The token is of commit {job.sha[:8]}, and the request is for {sha[:8]}.")


def is_repository_url(address: str, repository: str) -> bool:
    """Whether this is the address of a repository on the issuer's GitHub."""
    if address == settings.MAIN_REPOSITORY and repository.lower() == client.get_main_repository().lower():
        return True
    parts = urlsplit(address)
    path = parts.path.strip("/").removesuffix(".git")
    return (parts.scheme, parts.netloc.lower(), path.lower()) == ("https", get_host(), repository.lower())


def get_host() -> str:
    """Return the host of the issuer's repositories: github.com or an Enterprise server."""
    host = urlsplit(settings.GITHUB_OIDC_ISSUER).netloc.lower()
    return "github.com" if host.endswith(".githubusercontent.com") else host


# --- the issuer's keys ------------------------------------------------------------------------------------------------


def find_signing_key(key_id: str) -> jwt.PyJWK | None:
    cache = caches["github"]
    name = f"oidc-{settings.GITHUB_OIDC_ISSUER}"
    keys, fetched_at = cache.get(name, ({}, 0.0))
    if key_id not in keys and time.time() - fetched_at > REFETCH_SECONDS:
        if problem := cache.get(f"{name}-problem"):
            raise KeysUnavailableError(problem)
        try:
            keys = fetch_keys()
        except KeysUnavailableError as error:
            cache.set(f"{name}-problem", str(error), REFETCH_SECONDS)
            raise
        cache.set(name, (keys, time.time()), KEYS_SECONDS)
    return jwt.PyJWK(keys[key_id], algorithm=ALGORITHM) if key_id in keys else None


def fetch_keys() -> dict[str, dict[str, Any]]:
    issuer = settings.GITHUB_OIDC_ISSUER
    configuration = fetch_json(f"{issuer}/.well-known/openid-configuration")
    address = str(configuration.get("jwks_uri", ""))
    if configuration.get("issuer") != issuer or urlsplit(address)[:2] != urlsplit(issuer)[:2]:
        raise KeysUnavailableError(f"{issuer} does not say what it should about its keys: check GITHUB_OIDC_ISSUER.")
    found = fetch_json(address).get("keys")
    keys = [key for key in found if isinstance(key, dict)] if isinstance(found, list) else []
    return {str(key["kid"]): key for key in keys if key.get("kty") == "RSA" and key.get("kid")}


def fetch_json(address: str) -> dict[str, Any]:
    try:
        with httpx.Client(timeout=TIMEOUT, verify=get_ssl_context()) as web:
            response = web.get(address, headers={"User-Agent": "dailytrain"})
        answer = response.raise_for_status().json() if len(response.content) <= KEYS_BYTES else None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise KeysUnavailableError(f"GitHub's signing keys are unavailable: {error}") from error
    if not isinstance(answer, dict):
        raise KeysUnavailableError("GitHub's signing keys are unavailable: the reply is invalid.")
    return answer
