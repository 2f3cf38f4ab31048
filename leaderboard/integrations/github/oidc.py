"""GitHub's word for a job of GitHub Actions: an OpenID Connect token, instead of a secret kept in a repository.

GitHub signs which repository, commit and event a job is of; the job asks for the token with our address as audience
(https://docs.github.com/en/actions/reference/security/oidc). The keys come from the issuer and are kept for an hour.
A token is good for minutes. Who replays one asks for the same run again, and gets the same answer.
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
from leaderboard.submissions.repositories import RepositoryError

EVENTS = ("push", "pull_request", "workflow_dispatch")
"""Of which a job may be. Not `pull_request_target`: that runs beside a stranger's commit, in the name of `main`."""
ALGORITHM = "RS256"
CLAIMS = ("iss", "aud", "exp", "iat", "repository", "repository_id", "sha", "event_name", "actor", "actor_id")
TOKEN_LENGTH = 16_000
LEEWAY_SECONDS = 60
KEYS_SECONDS = 3600
REFETCH_SECONDS = 60
"""A key that is not known may be new: the issuer is asked again, but not more often than this."""
KEYS_BYTES = 200_000


class InvalidTokenError(ValueError):
    """This token is not what it should be; the message is a sentence for whoever wrote the workflow."""


class KeysUnavailableError(Exception):
    """The issuer's keys cannot be had just now."""


@dataclass(frozen=True)
class ActionsJob:
    """What GitHub says of a job that asks."""

    repository: str
    """owner/name."""
    repository_id: str
    sha: str
    """The commit it was checked out at; of a pull request, GitHub's merge of its head."""
    event: str
    actor: str
    """Login of who set it off."""
    actor_id: str


def is_json_web_token(token: str) -> bool:
    """Whether this is a JSON Web Token, and none of our own."""
    return token.count(".") == 2


def verify_token(token: str) -> ActionsJob:
    """Return what a token says if GitHub signed it, for us, just now, of a repository and an event that may ask.

    Raises NotBelieved, or Unavailable.
    """
    if not settings.GITHUB_OIDC_ISSUER:
        raise InvalidTokenError(
            "This site takes no tokens of GitHub Actions: use one that a maintainer made in the admin."
        )
    claims = decode_token(token)
    if absent := [name for name in CLAIMS if not isinstance(claims.get(name), str | int | float | list)]:
        raise InvalidTokenError(f"The token does not say its {absent[0]}: it is none of GitHub Actions'.")
    job = ActionsJob(
        repository=str(claims["repository"]),
        repository_id=str(claims["repository_id"]),
        sha=str(claims["sha"]),
        event=str(claims["event_name"]),
        actor=str(claims["actor"]),
        actor_id=str(claims["actor_id"]),
    )
    if not is_allowed_repository(job.repository):
        raise InvalidTokenError(
            f"Jobs of {job.repository} may not ask here: a maintainer names it in GITHUB_OIDC_REPOSITORIES, or makes "
            "you a token."
        )
    if job.event not in EVENTS:
        raise InvalidTokenError(f"A job of the event {job.event} may not ask for runs: use one of {', '.join(EVENTS)}.")
    return job


def decode_token(token: str) -> dict[str, Any]:
    """Return the claims of a token whose signature, issuer, audience and times are right."""
    if len(token) > TOKEN_LENGTH:
        raise InvalidTokenError("The token is longer than any of GitHub's.")
    try:
        number = jwt.get_unverified_header(token).get("kid")
        key = get_key(number) if isinstance(number, str) else None
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
        said = f"The token is meant for somebody else: ask GitHub for one with the audience {get_audience()}."
        raise InvalidTokenError(said) from error
    except jwt.InvalidIssuerError as error:
        raise InvalidTokenError(f"The token is not of {settings.GITHUB_OIDC_ISSUER}.") from error
    except jwt.InvalidSignatureError as error:
        raise InvalidTokenError("The token's signature is not GitHub's.") from error
    except jwt.PyJWTError as error:
        raise InvalidTokenError(f"The token cannot be read: {error}.") from error


def get_audience() -> str:
    return str(settings.GITHUB_OIDC_AUDIENCE)


def is_allowed_repository(repository: str) -> bool:
    """Whether jobs of this repository may ask: the main one, or those that the settings name."""
    allowed = settings.GITHUB_OIDC_REPOSITORIES or [client.get_main_repository()]
    owner = repository.partition("/")[0]
    return any(name.lower() in ("*", f"{owner}/*".lower(), repository.lower()) for name in allowed if name)


# --- what a job may ask for -------------------------------------------------------------------------------------------


def check_commit(job: ActionsJob, repository: str, sha: str) -> None:
    """Raise NotBelieved unless this is the job's own repository and commit.

    A job of a pull request is of GitHub's merge of its head into its base: then the head is its commit, too.
    """
    if not is_repository_url(repository, job.repository):
        raise InvalidTokenError(f"The token is of {job.repository}, and this asks for {repository}.")
    if sha == job.sha:
        return
    try:
        if job.event == "pull_request" and sha in repositories.open_mirror(repository).heads(job.sha):
            return
    except RepositoryError as error:
        raise InvalidTokenError(f"What was merged into {job.sha[:8]} cannot be found out: {error}") from error
    raise InvalidTokenError(f"The token is of commit {job.sha[:8]}, and this asks for {sha[:8]}.")


def is_repository_url(address: str, repository: str) -> bool:
    """Whether this is the address of a repository on the issuer's GitHub."""
    if address == settings.MAIN_REPOSITORY and repository.lower() == client.get_main_repository().lower():
        return True
    parts = urlsplit(address)
    path = parts.path.strip("/").removesuffix(".git")
    return (parts.scheme, parts.netloc.lower(), path.lower()) == ("https", get_host(), repository.lower())


def get_host() -> str:
    """Return where the issuer's repositories lie: github.com, or the Enterprise server itself."""
    named = urlsplit(settings.GITHUB_OIDC_ISSUER).netloc.lower()
    return "github.com" if named.endswith(".githubusercontent.com") else named


# --- the issuer's keys ------------------------------------------------------------------------------------------------


def get_key(number: str) -> jwt.PyJWK | None:
    """Return the issuer's key of this number."""
    kept = caches["github"]
    name = f"oidc-{settings.GITHUB_OIDC_ISSUER}"
    keys, looked_at = kept.get(name, ({}, 0.0))
    if number not in keys and time.time() - looked_at > REFETCH_SECONDS:
        keys = fetch_keys()
        kept.set(name, (keys, time.time()), KEYS_SECONDS)
    return jwt.PyJWK(keys[number], algorithm=ALGORITHM) if number in keys else None


def fetch_keys() -> dict[str, dict[str, Any]]:
    """Return the issuer's keys by number, as it publishes them now. Raises Unavailable."""
    issuer = settings.GITHUB_OIDC_ISSUER
    about = fetch_json(f"{issuer}/.well-known/openid-configuration")
    address = str(about.get("jwks_uri", ""))
    if about.get("issuer") != issuer or urlsplit(address)[:2] != urlsplit(issuer)[:2]:
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
        raise KeysUnavailableError(f"GitHub's keys cannot be had just now: {error}") from error
    if not isinstance(answer, dict):
        raise KeysUnavailableError("GitHub's keys cannot be had just now: the answer is not what it should be.")
    return answer
