"""GitHub's REST and GraphQL APIs over HTTP: credentials, pages, ETags, rate limits and error messages.

Why httpx and no client library: githubkit 0.16.1 does not import with hishel 2.0, the newest that it allows, and brings
56 MB of schemas for a dozen calls; PyGithub sleeps at rate limits, where an outbox message has to be postponed.
"""

from __future__ import annotations

import functools
import hashlib
import ssl
import time
from collections.abc import Generator, Iterator, Mapping
from datetime import timedelta
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import jwt
from django.conf import settings
from django.core.cache import caches
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from leaderboard.outbox import PermanentError, RetryLater

API_VERSION = "2022-11-28"
HEADERS = {
    "Accept": "application/vnd.github+json",
    "X-GitHub-Api-Version": API_VERSION,
    "User-Agent": "dailytrain",
}
TIMEOUT = httpx.Timeout(20.0, connect=5.0)
OUTAGE_WAIT = timedelta(seconds=10)
SECONDARY_WAIT = timedelta(minutes=1)  # GitHub's documented default without a Retry-After
MAX_WAIT = timedelta(hours=1)  # primary limits reset each hour; a wrong clock must not postpone calls for longer
CACHE_SECONDS = 3600
MAX_CACHED_BYTES = 200_000
JWT_LIFE = timedelta(minutes=9)  # GitHub allows ten minutes by its own clock
CLOCK_DRIFT = timedelta(minutes=1)
TOKEN_MARGIN = timedelta(minutes=5)  # an installation's token is valid for an hour

CREDENTIALS_WAIT = timedelta(minutes=10)  # GitHub rejects a token of a clock that is wrong, too


class NotFoundError(PermanentError):
    """GitHub does not have it, or denies access to it."""


class NotConnectedError(PermanentError):
    """The site has no access to this repository on GitHub."""


# --- credentials ------------------------------------------------------------------------------------------------------


class Credentials(httpx.Auth):
    identity: str  # key of rate limits and cached responses
    is_app = False  # whether this is an App's installation, which can create check runs

    def get_token(self) -> str:
        raise NotImplementedError

    def discard_token(self) -> bool:
        """Discard a token that GitHub rejects; return whether there will be another one."""
        return False

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        request.headers["Authorization"] = f"Bearer {self.get_token()}"
        response = yield request
        if response.status_code == httpx.codes.UNAUTHORIZED and self.discard_token():
            request.headers["Authorization"] = f"Bearer {self.get_token()}"
            yield request


class PlainToken(Credentials):
    identity = "token"

    def get_token(self) -> str:
        return settings.GITHUB_TOKEN


class AppToken(Credentials):
    """The App itself, for calls about the App."""

    def __init__(self) -> None:
        self.identity = f"app-{settings.GITHUB_APP_ID}"

    def get_token(self) -> str:
        now = timezone.now()
        claims = {"iat": now - CLOCK_DRIFT, "exp": now - CLOCK_DRIFT + JWT_LIFE, "iss": settings.GITHUB_APP_ID}
        try:
            return jwt.encode(claims, settings.GITHUB_PRIVATE_KEY, algorithm="RS256")
        except (ValueError, TypeError, jwt.PyJWTError) as error:
            raise NotConnectedError("GITHUB_PRIVATE_KEY is not a private key in PEM form.") from error


class InstallationToken(Credentials):
    """The App, installed for an account. Tokens stay in the cache of this process."""

    is_app = True

    def __init__(self, installation: int) -> None:
        self.installation = installation
        self.identity = f"installation-{installation}"

    def get_token(self) -> str:
        token: str | None = caches["github"].get(self.identity)
        if token is None:
            answer = Connection(AppToken()).send("POST", f"/app/installations/{self.installation}/access_tokens")
            token = str(answer["token"])
            expires_at = parse_datetime(answer["expires_at"])
            assert expires_at is not None, "GitHub's times are ISO 8601"
            life = expires_at - timezone.now() - TOKEN_MARGIN
            caches["github"].set(self.identity, token, max(life.total_seconds(), 0))
        return token

    def discard_token(self) -> bool:
        return caches["github"].delete(self.identity)


# --- requests ---------------------------------------------------------------------------------------------------------


class Page(NamedTuple):
    body: Any
    next: str | None  # URL


class Connection:
    """GitHub's API with given credentials. Raises RetryLater if waiting helps, else PermanentError."""

    def __init__(self, credentials: Credentials) -> None:
        self.credentials = credentials
        self.base: str = settings.GITHUB_API_URL

    def get(self, path: str, **parameters: str | int) -> Any:
        return self.get_page(self.base + path, parameters).body

    def iterate_pages(self, path: str, key: str = "", **parameters: str | int) -> Iterator[Any]:
        """Yield the items of all pages. `key`: the key of the items, if a page is an object."""
        answer = self.get_page(self.base + path, {"per_page": 100, **parameters})
        while True:
            yield from answer.body[key] if key else answer.body
            if answer.next is None:
                return
            answer = self.get_page(self.check_host(answer.next))

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return parse_json(self.request(method, self.base + path, json=body))

    def graphql(self, query: str, **variables: Any) -> dict[str, Any]:
        # An Enterprise server has REST at /api/v3 and GraphQL at /api/graphql.
        address = f"{self.base.removesuffix('/v3')}/graphql"
        answer = parse_json(self.request("POST", address, json={"query": query, "variables": variables}))
        for error in answer.get("errors") or []:
            if error.get("type") == "RATE_LIMITED":
                raise self.pause(SECONDARY_WAIT, "GitHub's GraphQL rate limit is used up.")
            kind = NotFoundError if error.get("type") == "NOT_FOUND" else PermanentError
            raise kind(f"GitHub refused: {error.get('message', 'no reason given')}")
        return answer["data"]  # type: ignore[no-any-return]

    # --- one request ------------------------------------------------------------------------------------------------

    def get_page(self, address: str, parameters: Mapping[str, str | int] | None = None) -> Page:
        """GET with ETags: a 304 does not count against the rate limit."""
        full = str(httpx.URL(address).copy_merge_params(parameters or {}))
        name = hashlib.sha256(f"{self.credentials.identity} {full}".encode()).hexdigest()
        etag, cached = caches["github"].get(name, ("", None))
        response = self.request("GET", full, headers={"If-None-Match": etag} if etag else {})
        if response.status_code == httpx.codes.NOT_MODIFIED:
            assert isinstance(cached, Page), "only cached answers have an ETag"
            return cached
        answer = Page(parse_json(response), response.links.get("next", {}).get("url"))
        if (etag := response.headers.get("ETag")) and len(response.content) <= MAX_CACHED_BYTES:
            caches["github"].set(name, (etag, answer), CACHE_SECONDS)
        return answer

    def request(
        self, method: str, address: str, *, headers: Mapping[str, str] | None = None, json: Any = None
    ) -> httpx.Response:
        self.check_pause()
        response = self.send_once(method, address, headers or {}, json)
        self.raise_for_error(response)
        return response

    def send_once(self, method: str, address: str, headers: Mapping[str, str], json: Any) -> httpx.Response:
        all_headers = {**HEADERS, **headers}
        client = httpx.Client(auth=self.credentials, timeout=TIMEOUT, follow_redirects=True, verify=get_ssl_context())
        try:
            with client:
                return client.request(method, address, headers=all_headers, json=json)
        except httpx.TooManyRedirects as error:
            raise PermanentError("GitHub redirects in a loop: check GITHUB_API_URL.") from error
        except httpx.InvalidURL as error:
            raise PermanentError("GITHUB_API_URL is not a valid URL.") from error
        except httpx.TransportError as error:
            reason = f"GitHub cannot be reached: {error or type(error).__name__}"
            self.pause(OUTAGE_WAIT, reason)  # so that other calls do not run into the same timeout
            raise RetryLater(reason) from error

    def raise_for_error(self, response: httpx.Response) -> None:
        status = response.status_code
        if response.is_success or status == httpx.codes.NOT_MODIFIED:
            return
        message = extract_message(response)
        if status in (403, 429) and (wait := get_wait_time(response, message)):
            raise self.pause(wait, f"GitHub's rate limit: {message}")
        if response.is_server_error or status in (408, 409, 429):
            raise RetryLater(f"GitHub answered {status}: {message}")
        if status in (404, 410):
            raise NotFoundError(f"GitHub does not have {urlsplit(str(response.url)).path}, or denies access to it.")
        if status == httpx.codes.UNAUTHORIZED:
            raise RetryLater(ERROR_MESSAGES[status].format(message=message), CREDENTIALS_WAIT)
        raise PermanentError(
            ERROR_MESSAGES.get(status, "GitHub answered {status}: {message}").format(status=status, message=message)
        )

    # --- limits -----------------------------------------------------------------------------------------------------

    def pause(self, wait: timedelta, reason: str) -> RetryLater:
        """Pause all calls for a while: clients that ignore a rate limit are banned."""
        wait = min(wait, MAX_WAIT)
        name = f"pause-{self.credentials.identity}"
        caches["github"].set(name, (time.time() + wait.total_seconds(), reason), wait.total_seconds())
        return RetryLater(reason, wait)

    def check_pause(self) -> None:
        until, reason = caches["github"].get(f"pause-{self.credentials.identity}", (0.0, ""))
        if (left := until - time.time()) > 0:
            raise RetryLater(reason, timedelta(seconds=left))

    def check_host(self, address: str) -> str:
        """Return the address if it is on GitHub's host. The token must not be sent elsewhere."""
        if urlsplit(address)[:2] != urlsplit(self.base)[:2]:
            raise PermanentError("GitHub's next page is on another server: check GITHUB_API_URL.")
        return address


ERROR_MESSAGES = {
    401: "GitHub rejects the site's credentials: {message}. See docs/how-to/github.md.",
    403: "GitHub denies permission: {message}. docs/how-to/github.md lists the permissions.",
    422: "GitHub rejected the request: {message}",
    451: "GitHub has closed this repository for legal reasons.",
}


def get_wait_time(response: httpx.Response, message: str) -> timedelta | None:
    """Return how long a rate limit lasts; None if the response is not about a limit.

    https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api: `Retry-After`, else the reset of a
    limit that is used up, else a minute. Secondary limits can apply while calls are left.
    """
    if (seconds := response.headers.get("Retry-After", "")).isdecimal():
        return timedelta(seconds=max(int(seconds), 1))
    if response.headers.get("X-RateLimit-Remaining") == "0":
        reset = response.headers.get("X-RateLimit-Reset", "")
        return timedelta(seconds=max(int(reset) - time.time(), 1)) if reset.isdecimal() else SECONDARY_WAIT
    return SECONDARY_WAIT if "rate limit" in message.lower() or response.status_code == 429 else None


def extract_message(response: httpx.Response) -> str:
    """Return GitHub's message with its errors about fields."""
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
    """Return the JSON of a response. Anything else comes from a proxy in between: retry later."""
    if not response.content:
        return None
    try:
        return response.json()
    except ValueError as error:
        raise RetryLater(f"GitHub answered {response.status_code} with something that is not JSON.") from error


@functools.cache
def get_ssl_context() -> ssl.SSLContext:
    return httpx.create_ssl_context()
