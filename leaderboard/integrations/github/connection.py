"""GitHub's REST and GraphQL interfaces over HTTP: tokens, pages, ETags, limits, and a sentence for each refusal.

Why httpx and no client library: githubkit 0.16.1 does not import with hishel 2.0, the newest that it allows, and brings
56 MB of schemas for the dozen calls that we make; PyGithub sleeps in the call where an effect is to be put off.
"""

from __future__ import annotations

import functools
import hashlib
import ssl
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
from django.conf import settings
from django.core.cache import caches

from leaderboard.integrations.github.credentials import Credentials
from leaderboard.outbox import PermanentError, RetryLater

API_VERSION = "2022-11-28"
TIMEOUT = httpx.Timeout(20.0, connect=5.0)
OUTAGE_WAIT = timedelta(seconds=10)
SECONDARY_WAIT = timedelta(minutes=1)
"""What GitHub asks for when it names no time of its own."""
MAX_WAIT = timedelta(hours=1)
"""Primary limits begin anew each hour; a clock that is wrong must not put us off for longer."""
CACHE_SECONDS = 3600
MAX_CACHED_BYTES = 200_000


class NotFoundError(PermanentError):
    """GitHub does not have it, or does not show it to us."""


class Page(NamedTuple):
    body: Any
    next: str | None
    """Address of the next page."""


class Connection:
    """What may be asked of GitHub in somebody's name. Raises Later where it helps to wait, Refused where not."""

    def __init__(self, credentials: Credentials) -> None:
        self.credentials = credentials
        self.base: str = settings.GITHUB_API_URL

    def get(self, path: str, **parameters: str | int) -> Any:
        return self.read(self.base + path, parameters).body

    def pages(self, path: str, key: str = "", **parameters: str | int) -> Iterator[Any]:
        """Yield the items of all pages; `key` is where a page that is an object keeps its items."""
        answer = self.read(self.base + path, {"per_page": 100, **parameters})
        while True:
            yield from answer.body[key] if key else answer.body
            if answer.next is None:
                return
            answer = self.read(self.own(answer.next))

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return parse_json(self.ask(method, self.base + path, json=body))

    def graphql(self, query: str, **variables: Any) -> dict[str, Any]:
        # An Enterprise server has REST at /api/v3 and this beside it.
        address = f"{self.base.removesuffix('/v3')}/graphql"
        answer = parse_json(self.ask("POST", address, json={"query": query, "variables": variables}))
        for error in answer.get("errors") or []:
            if error.get("type") == "RATE_LIMITED":
                raise self.pause(SECONDARY_WAIT, "GitHub asks us to wait: its GraphQL limit is used up.")
            kind = NotFoundError if error.get("type") == "NOT_FOUND" else PermanentError
            raise kind(f"GitHub refused: {error.get('message', 'no reason given')}")
        return answer["data"]  # type: ignore[no-any-return]

    # --- one request ------------------------------------------------------------------------------------------------

    def read(self, address: str, parameters: Mapping[str, str | int] | None = None) -> Page:
        """GET. What has not changed since last time costs nothing of the limit: GitHub answers 304."""
        full = str(httpx.URL(address).copy_merge_params(parameters or {}))
        name = hashlib.sha256(f"{self.credentials.identity} {full}".encode()).hexdigest()
        etag, kept = caches["github"].get(name, ("", None))
        response = self.ask("GET", full, headers={"If-None-Match": etag} if etag else {})
        if response.status_code == httpx.codes.NOT_MODIFIED:
            assert isinstance(kept, Page), "only an answer that was kept has an ETag"
            return kept
        answer = Page(parse_json(response), response.links.get("next", {}).get("url"))
        if (etag := response.headers.get("ETag")) and len(response.content) <= MAX_CACHED_BYTES:
            caches["github"].set(name, (etag, answer), CACHE_SECONDS)
        return answer

    def ask(
        self, method: str, address: str, *, headers: Mapping[str, str] | None = None, json: Any = None
    ) -> httpx.Response:
        """Ask once, and once more with another token where GitHub no longer takes ours."""
        self.heed_pause()
        response = self.exchange(method, address, headers or {}, json)
        if response.status_code == httpx.codes.UNAUTHORIZED and self.credentials.renew():
            response = self.exchange(method, address, headers or {}, json)
        self.judge(response)
        return response

    def exchange(self, method: str, address: str, headers: Mapping[str, str], json: Any) -> httpx.Response:
        sent = {
            "Authorization": self.credentials.authorization(),
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": API_VERSION,
            "User-Agent": "dailytrain",
            **headers,
        }
        try:
            with httpx.Client(timeout=TIMEOUT, follow_redirects=True, verify=get_ssl_context()) as client:
                return client.request(method, address, headers=sent, json=json)
        except httpx.TooManyRedirects as error:
            raise PermanentError("GitHub sends us round in circles: check GITHUB_API_URL.") from error
        except httpx.InvalidURL as error:
            raise PermanentError("GITHUB_API_URL is not an address.") from error
        except httpx.TransportError as error:
            reason = f"GitHub cannot be reached: {error or type(error).__name__}"
            self.pause(OUTAGE_WAIT, reason)  # what else is due does not wait for the same timeout, one after another
            raise RetryLater(reason) from error

    def judge(self, response: httpx.Response) -> None:
        """Raise what a caller should know of an answer that is not a success."""
        status = response.status_code
        if response.is_success or status == httpx.codes.NOT_MODIFIED:
            return
        message = extract_message(response)
        if status in (403, 429) and (wait := get_wait_time(response, message)):
            raise self.pause(wait, f"GitHub asks us to wait: {message}")
        if response.is_server_error or status in (408, 409, 429):
            raise RetryLater(f"GitHub answered {status}: {message}")
        if status in (404, 410):
            raise NotFoundError(f"GitHub does not know {urlsplit(str(response.url)).path}, or does not show it to us.")
        raise PermanentError(
            ERROR_MESSAGES.get(status, "GitHub answered {status}: {message}").format(status=status, message=message)
        )

    # --- limits -----------------------------------------------------------------------------------------------------

    def pause(self, wait: timedelta, reason: str) -> RetryLater:
        """Note that nothing is asked for a while: who goes on asking under a limit is shut out."""
        wait = min(wait, MAX_WAIT)
        name = f"pause-{self.credentials.identity}"
        caches["github"].set(name, (time.time() + wait.total_seconds(), reason), wait.total_seconds())
        return RetryLater(reason, wait)

    def heed_pause(self) -> None:
        until, reason = caches["github"].get(f"pause-{self.credentials.identity}", (0.0, ""))
        if (left := until - time.time()) > 0:
            raise RetryLater(reason, timedelta(seconds=left))

    def own(self, address: str) -> str:
        """Return an address that GitHub gave, if it is GitHub's: our token goes nowhere else."""
        if urlsplit(address)[:2] != urlsplit(self.base)[:2]:
            raise PermanentError("GitHub's next page is on another server: check GITHUB_API_URL.")
        return address


ERROR_MESSAGES = {
    401: "GitHub does not take our credentials: {message}. Run manage.py connect_github.",
    403: "GitHub does not allow it: {message}. Run manage.py connect_github to see which permission is missing.",
    422: "GitHub did not accept what we sent: {message}",
    451: "GitHub has closed this repository for legal reasons.",
}


def get_wait_time(response: httpx.Response, message: str) -> timedelta | None:
    """Return how long a limit lasts; None where the answer is not about a limit.

    https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api: `Retry-After`, else the reset of a
    limit that is used up, else a minute. A secondary limit may come with calls left over.
    """
    if (seconds := response.headers.get("Retry-After", "")).isdecimal():
        return timedelta(seconds=max(int(seconds), 1))
    if response.headers.get("X-RateLimit-Remaining") == "0":
        reset = response.headers.get("X-RateLimit-Reset", "")
        return timedelta(seconds=max(int(reset) - time.time(), 1)) if reset.isdecimal() else SECONDARY_WAIT
    return SECONDARY_WAIT if "rate limit" in message.lower() or response.status_code == 429 else None


def extract_message(response: httpx.Response) -> str:
    """Return GitHub's message, with what it says about each field."""
    try:
        answer = response.json()
    except ValueError:
        return response.reason_phrase
    if not isinstance(answer, dict):
        return response.reason_phrase
    details = [text for text in map(format_field_error, answer.get("errors") or []) if text]
    return ": ".join([str(answer.get("message") or response.reason_phrase).rstrip("."), *details])[:400]


def format_field_error(error: Any) -> str:
    if not isinstance(error, dict):
        return str(error)
    return str(error.get("message") or " ".join(str(error[key]) for key in ("field", "code") if key in error))


def parse_json(response: httpx.Response) -> Any:
    """Return the answer's JSON; an answer that is none comes from somebody in between."""
    if not response.content:
        return None
    try:
        return response.json()
    except ValueError as error:
        raise RetryLater(f"GitHub answered {response.status_code} with something that is not JSON.") from error


@functools.cache
def get_ssl_context() -> ssl.SSLContext:
    return httpx.create_ssl_context()
