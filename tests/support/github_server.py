"""A local GitHub server with the part of the REST API, GraphQL API and webhooks that the site uses.

Its objects are GitHub's own examples (`github_payloads`); paths, status codes, messages and rate limits are GitHub's.
`fail_requests` makes the next requests fail; with `after=True` the request is executed and only its response is lost.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit
from uuid import uuid4

import httpx
import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support import github_payloads as payloads
from tests.support.github_payloads import new_id
from tests.support.http_server import Failure, Handler, build_header_names, run_server, take_failure
from tests.support.waits import WAIT_SECONDS

APP, SLUG, INSTALLATION, TOKEN = "4711", "daily-train", 31_000_000_123, "github_pat_of_mara"
OWNER = "trains"
"""The account for which the App is installed."""
REACTIONS = ("+1", "-1", "laugh", "confused", "heart", "hooray", "rocket", "eyes")


@cache
def get_private_key() -> str:
    """Return the private key of the App in PEM form. It is cached because generating it takes 0.1 seconds."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    kind = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption()).decode()


@cache
def get_public_key() -> rsa.RSAPublicKey:
    key = serialization.load_pem_private_key(get_private_key().encode(), None)
    assert isinstance(key, rsa.RSAPrivateKey)
    return key.public_key()


@dataclass
class Repository:
    """A repository with its pull requests, comments, checks and webhooks."""

    payload: dict[str, Any]
    pulls: dict[int, dict[str, Any]] = field(default_factory=dict)
    comments: dict[int, dict[str, Any]] = field(default_factory=dict)
    reactions: list[tuple[int, str]] = field(default_factory=list)
    checks: dict[int, dict[str, Any]] = field(default_factory=dict)
    statuses: list[dict[str, Any]] = field(default_factory=list)
    roles: dict[str, str] = field(default_factory=dict)
    """{login: admin, maintain, write, triage, read}; every user can read a public repository."""

    def list_comments_on(self, number: int) -> list[dict[str, Any]]:
        """Return the comments on a pull request, oldest first."""
        return [row for row in self.comments.values() if row["issue_url"].endswith(f"/issues/{number}")]


class GitHub:
    """The state of the server: one App and one personal token."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.repositories: dict[str, Repository] = {}
        self.hook: dict[str, str] = {"url": "", "secret": ""}
        self.tokens: dict[str, float] = {}
        self.remaining, self.reset = 5000, int(time.time()) + 3600
        self.largest_page = 100
        self.failures: list[Failure] = []
        self.requests: list[tuple[str, str, int]] = []
        """(method, path, status) of every request."""
        self.deliveries: list[dict[str, Any]] = []
        self.minimized_comments: set[str] = set()
        self.url = ""

    # --- repositories and pull requests -------------------------------------------------------------------------------

    def get_or_create_repository(self, full_name: str = "trains/daily", **fields: Any) -> Repository:
        with self.lock:
            if full_name not in self.repositories:
                self.repositories[full_name] = Repository(payloads.repository(full_name, **fields))
            return self.repositories[full_name]

    def rename_repository(self, old: str, new: str) -> None:
        """Rename or transfer a repository, which keeps its id."""
        with self.lock:
            repository = self.repositories[new] = self.repositories.pop(old)
            repository.payload = payloads.repository(new, number=repository.payload["id"])
            for pull in repository.pulls.values():
                pull["base"] = {**pull["base"], "repo": repository.payload}

    def open_pull_request(
        self, full_name: str, number: int, sha: str, *, announce: bool = True, **fields: Any
    ) -> dict[str, Any]:
        """Open a pull request with fields of `github_payloads.pull` and deliver it to the webhook."""
        repository = self.get_or_create_repository(full_name)
        repository.pulls[number] = payloads.pull(repository.payload, number, sha, **fields)
        if announce:
            self.deliver_pull_request("opened", repository.pulls[number])
        return repository.pulls[number]

    def change_pull_request(self, action: str, full_name: str, number: int, **fields: Any) -> dict[str, Any]:
        """Change fields of a pull request (`head_sha` for a push to it) and deliver it to the webhook."""
        pull = self.get_or_create_repository(full_name).pulls[number]
        payload_fields: dict[str, Any] = {}
        if sha := fields.pop("head_sha", None):
            payload_fields = {"before": pull["head"]["sha"], "after": sha}
            pull["head"] = {**pull["head"], "sha": sha}
        pull.update({"updated_at": add_second(pull["updated_at"]), **fields})
        if action == "edited":
            payload_fields["changes"] = {}
        self.deliver_pull_request(action, pull, **payload_fields)
        return pull

    def post_comment(
        self, full_name: str, number: int, login: str, body: str, *, announce: bool = True
    ) -> dict[str, Any]:
        """Create a comment on a pull request and deliver it to the webhook."""
        repository = self.get_or_create_repository(full_name)
        comment = payloads.comment(repository.payload, number, payloads.user(login, compute_user_id(login)), body)
        with self.lock:
            repository.comments[comment["id"]] = comment
        if announce:
            payload = payloads.issue_comment(
                "created", repository.pulls[number], comment, installation=get_installation(full_name)
            )
            self.deliver("issue_comment", payload)
        return comment

    def deliver_pull_request(self, action: str, pull: dict[str, Any], **payload_fields: Any) -> int:
        full_name = pull["base"]["repo"]["full_name"]
        payload = payloads.pull_request(
            action, pull, installation=get_installation(full_name), sender=pull["user"], **payload_fields
        )
        return self.deliver("pull_request", payload)

    # --- webhook ------------------------------------------------------------------------------------------------------

    def deliver(self, event: str, payload: dict[str, Any], *, guid: str = "", redelivery: bool = False) -> int:
        """Send a delivery to the webhook and return the status of the response; 0 if there was none."""
        guid = guid or str(uuid4())
        status = self.send_delivery(event, guid, json.dumps(payload).encode()) if self.hook["url"] else 0
        record = {"id": new_id(), "guid": guid, "delivered_at": payloads.NOW, "redelivery": redelivery, "duration": 0.1}
        record |= {"status": "OK" if 200 <= status < 300 else "Invalid HTTP Response", "status_code": status}
        record |= {"event": event, "action": payload.get("action"), "installation_id": None, "repository_id": None}
        with self.lock:
            self.deliveries.insert(0, {**record, "payload": payload})
        return status

    def build_headers(self, event: str, guid: str, body: bytes) -> dict[str, str]:
        signature = hmac.new(self.hook["secret"].encode(), body, hashlib.sha256).hexdigest()
        return {
            "User-Agent": "GitHub-Hookshot/044aadd",
            "Content-Type": "application/json",
            "X-GitHub-Delivery": guid,
            "X-GitHub-Event": event,
            "X-GitHub-Hook-ID": "292430182",
            "X-GitHub-Hook-Installation-Target-ID": APP,
            "X-GitHub-Hook-Installation-Target-Type": "integration",
            "X-Hub-Signature-256": f"sha256={signature}",
        }

    def send_delivery(self, event: str, guid: str, body: bytes) -> int:
        """Send a delivery over a socket and return the status of the response."""
        headers = self.build_headers(event, guid, body)
        try:
            return httpx.post(self.hook["url"], content=body, headers=headers, timeout=WAIT_SECONDS).status_code
        except httpx.TransportError:
            return 0

    def redeliver(self, number: int) -> int:
        """Send a delivery again with the same guid."""
        delivery = next(row for row in self.deliveries if row["id"] == number)
        return self.deliver(delivery["event"], delivery["payload"], guid=delivery["guid"], redelivery=True)

    # --- failures -----------------------------------------------------------------------------------------------------

    def fail_requests(
        self,
        status: int,
        message: str = "Server Error",
        *,
        times: int = 1,
        path: str = "",
        method: str = "",
        after: bool = False,
        body: Any = None,
        **headers: str,
    ) -> None:
        """Make the next requests whose path matches fail."""
        if body is None:
            body = {"message": message, "documentation_url": "https://docs.github.com/rest"}
        self.failures.append(Failure(method, path, status, times, build_header_names(headers), body, after))

    def apply_secondary_limit(self, retry_after: int | None = 60, **request_filter: Any) -> None:
        message = "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."
        headers: dict[str, Any] = {"Retry_After": str(retry_after)} if retry_after else {}
        self.fail_requests(403, message, **request_filter, **headers)

    def count_requests(self, method: str, path: str) -> int:
        """Return the number of successful requests whose path matches."""
        return sum(m == method and bool(re.search(path, p)) and status < 300 for m, p, status in self.requests)


def add_second(moment: str) -> str:
    """Return the time one second later in GitHub's format."""
    return (datetime.fromisoformat(moment) + timedelta(seconds=1)).strftime("%Y-%m-%dT%H:%M:%SZ")


def get_installation(full_name: str) -> int | None:
    return INSTALLATION if full_name.startswith(f"{OWNER}/") else None


def compute_user_id(login: str) -> int:
    """Return the same GitHub user id for the same login."""
    return int(hashlib.sha256(login.encode()).hexdigest()[:7], 16)


class ApiError(Exception):
    """An error response in GitHub's format."""

    def __init__(self, status: int, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"message": message, "documentation_url": "https://docs.github.com/rest", **fields}


def find(rows: dict[int, dict[str, Any]], number: str) -> dict[str, Any]:
    if int(number) not in rows:
        raise ApiError(404, "Not Found")
    return rows[int(number)]


def check_text(resource: str, field_name: str, value: Any, longest: int) -> None:
    """Refuse a missing text and one that is too long."""
    if not isinstance(value, str) or not value.strip():
        error = {"resource": resource, "code": "missing_field", "field": field_name}
        raise ApiError(422, "Validation Failed", errors=[error])
    if len(value) > longest:
        error = {"message": f"{field_name} is too long (maximum is {longest} characters)"}
        raise ApiError(422, "Validation Failed", errors=[error])


Reply = tuple[int, Any]
ROUTES: list[tuple[str, re.Pattern[str], str, Callable[..., Reply]]] = []
"""(method, path, kind of credentials that it requires, function)"""


def route(method: str, path: str, credentials: str = "") -> Callable[[Callable[..., Reply]], Callable[..., Reply]]:
    def register_route(function: Callable[..., Reply]) -> Callable[..., Reply]:
        pattern = re.compile(path.replace("{repo}", "/repos/([^/]+/[^/]+)"))
        ROUTES.append((method, pattern, credentials, function))
        return function

    return register_route


class GitHubHandler(Handler):
    github: GitHub

    def serve(self) -> None:
        parts = urlsplit(self.path)
        self.query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        self.response_headers: dict[str, str] = {}
        raw = self.read_body()
        failure = take_failure(self.github.failures, self.command, parts.path)
        if failure is None:
            status, body = self.answer(parts.path, raw)
            failure = take_failure(self.github.failures, self.command, parts.path, after=True)
        if failure is not None:
            status, body, self.response_headers = failure.status, failure.body, failure.headers
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        headers = self.response_headers
        if self.command == "GET" and status == 200:
            headers["ETag"] = f'W/"{hashlib.sha256(content + headers.get("Link", "").encode()).hexdigest()}"'
            if self.headers.get("If-None-Match") == headers["ETag"]:
                status, content = 304, b""
                self.github.remaining += 1  # conditional requests do not count
        self.github.requests.append((self.command, parts.path, status))
        self.send(status, content, {"Content-Type": "application/json; charset=utf-8", **headers})

    do_GET = do_POST = do_PATCH = serve

    def answer(self, path: str, raw: bytes) -> Reply:
        try:
            self.credentials = self.authenticate()
            self.body = json.loads(raw or b"{}")
            for method, pattern, credentials, function in ROUTES:
                if method == self.command and (match := pattern.fullmatch(path)):
                    if credentials not in ("", self.credentials):
                        raise ApiError(403, "Resource not accessible by integration")
                    with self.github.lock:
                        return function(self, *match.groups())
            raise ApiError(404, "Not Found")
        except ApiError as error:
            return error.status, error.body

    def authenticate(self) -> str:
        """Return `app`, `installation` or `token`; count the request against the hourly limit."""
        github, (kind, _, secret) = self.github, self.headers.get("Authorization", "").partition(" ")
        if kind.lower() not in ("bearer", "token"):
            raise ApiError(401, "Requires authentication")
        if secret != TOKEN and not secret.startswith("ghs_"):
            try:
                jwt.decode(secret, get_public_key(), algorithms=["RS256"], issuer=APP)
            except jwt.PyJWTError:
                raise ApiError(401, "A JSON web token could not be decoded") from None
            return "app"
        if secret != TOKEN and github.tokens.get(secret, 0) < time.time():
            raise ApiError(401, "Bad credentials")
        with github.lock:
            left, github.remaining = github.remaining, max(github.remaining - 1, 0)
        limits = {"Limit": 5000, "Reset": github.reset, "Resource": "core", "Remaining": github.remaining}
        self.response_headers |= {f"X-RateLimit-{name}": str(value) for name, value in limits.items()}
        if left <= 0:
            raise ApiError(403, f"API rate limit exceeded for installation ID {INSTALLATION}.")
        return "token" if secret == TOKEN else "installation"

    def get_repository(self, full_name: str) -> Repository:
        is_installed = self.credentials == "token" or get_installation(full_name)
        if full_name not in self.github.repositories or not is_installed:
            raise ApiError(404, "Not Found")
        return self.github.repositories[full_name]

    def paginate(self, rows: list[Any]) -> list[Any]:
        """Return the requested page of rows and set the `Link` header."""
        size = min(int(self.query.get("per_page", 30)), self.github.largest_page)
        number = int(self.query.get("page", 1))
        if number * size < len(rows):
            url = f"{self.github.url}{urlsplit(self.path).path}"
            self.response_headers["Link"] = f'<{url}?{urlencode({**self.query, "page": number + 1})}>; rel="next"'
        return rows[(number - 1) * size : number * size]


# --- endpoints --------------------------------------------------------------------------------------------------------


@route("GET", "/app", "app")
def get_app(request: GitHubHandler) -> Reply:
    return 200, {"id": int(APP), "slug": SLUG, "name": "The Daily Train", "owner": payloads.user("mara")}


@route("GET", "/user", "token")
def get_user(request: GitHubHandler) -> Reply:
    return 200, payloads.user("mara", compute_user_id("mara"))


@route("GET", "{repo}/installation", "app")
def get_repository_installation(request: GitHubHandler, full_name: str) -> Reply:
    request.get_repository(full_name)
    return 200, {"id": INSTALLATION, "account": payloads.user(OWNER, 9919, "Organization"), "suspended_at": None}


@route("POST", rf"/app/installations/{INSTALLATION}/access_tokens", "app")
def create_access_token(request: GitHubHandler) -> Reply:
    token = f"ghs_{uuid4().hex}"
    request.github.tokens[token] = time.time() + 3600
    expires_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
    return 201, {"token": token, "expires_at": expires_at}


@route("GET", r"{repo}/issues/(\d+)/comments")
def list_comments(request: GitHubHandler, full_name: str, number: str) -> Reply:
    repository = request.get_repository(full_name)
    find(repository.pulls, number)
    return 200, request.paginate(repository.list_comments_on(int(number)))


@route("POST", r"{repo}/issues/(\d+)/comments")
def create_comment(request: GitHubHandler, full_name: str, number: str) -> Reply:
    repository, text = request.get_repository(full_name), request.body.get("body")
    find(repository.pulls, number)
    check_text("IssueComment", "body", text, 65_536)
    is_bot = request.credentials == "installation"
    bot, mara = payloads.user(f"{SLUG}[bot]", 41898282, "Bot"), payloads.user("mara", compute_user_id("mara"))
    comment = payloads.comment(repository.payload, int(number), bot if is_bot else mara, text, int(APP))
    repository.comments[comment["id"]] = comment
    return 201, comment


@route("PATCH", r"{repo}/issues/comments/(\d+)")
def edit_comment(request: GitHubHandler, full_name: str, number: str) -> Reply:
    comment, text = find(request.get_repository(full_name).comments, number), request.body.get("body")
    check_text("IssueComment", "body", text, 65_536)
    comment.update(body=text, updated_at=add_second(comment["updated_at"]))
    return 200, comment


@route("POST", r"{repo}/issues/comments/(\d+)/reactions")
def create_reaction(request: GitHubHandler, full_name: str, number: str) -> Reply:
    repository, content = request.get_repository(full_name), request.body.get("content")
    find(repository.comments, number)
    if content not in REACTIONS:
        raise ApiError(422, "Validation Failed", errors=[{"field": "content", "code": "invalid"}])
    is_new = (int(number), content) not in repository.reactions
    repository.reactions += [(int(number), content)] if is_new else []
    return 201 if is_new else 200, {"id": 1, "content": content}


@route("POST", "/graphql")
def minimize_comment(request: GitHubHandler) -> Reply:
    subject = request.body["variables"]["id"]
    rows = (row for repository in request.github.repositories.values() for row in repository.comments.values())
    if subject not in {row["node_id"] for row in rows}:
        message = f"Could not resolve to a node with the global id of '{subject}'"
        return 200, {"data": {"minimizeComment": None}, "errors": [{"type": "NOT_FOUND", "message": message}]}
    request.github.minimized_comments.add(subject)
    return 200, {"data": {"minimizeComment": {"minimizedComment": {"isMinimized": True}}}}


@route("POST", "{repo}/check-runs", "installation")
def create_check(request: GitHubHandler, full_name: str) -> Reply:
    check_text("CheckRun", "name", request.body.get("name"), 255)
    assert re.fullmatch("[0-9a-f]{40}", request.body["head_sha"])
    check = {"id": (number := new_id()), "status": "queued", "external_id": "", "app": {"id": int(APP)}}
    request.get_repository(full_name).checks[number] = check
    return 201, update_check_fields(check, request.body)


@route("PATCH", r"{repo}/check-runs/(\d+)", "installation")
def update_check(request: GitHubHandler, full_name: str, number: str) -> Reply:
    return 200, update_check_fields(find(request.get_repository(full_name).checks, number), request.body)


def update_check_fields(check: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    if body.get("status") == "completed" and not body.get("conclusion"):
        raise ApiError(422, 'Invalid request.\n\n"conclusion" wasn\'t supplied.')
    check_text("CheckRun", "summary", body["output"]["summary"], 65_535)
    if body.get("status") in ("queued", "in_progress"):
        check["conclusion"] = None
    check.update({name: value for name, value in body.items() if value is not None})
    return check


@route("GET", r"{repo}/commits/([^/]+)/check-runs")
def list_checks(request: GitHubHandler, full_name: str, sha: str) -> Reply:
    rows = [row for row in request.get_repository(full_name).checks.values() if row["head_sha"] == sha]
    rows = [row for row in rows if request.query.get("check_name") in (None, row["name"])]
    return 200, {"total_count": len(rows), "check_runs": request.paginate(rows)}


@route("POST", "{repo}/statuses/([0-9a-f]{40})")
def create_status(request: GitHubHandler, full_name: str, sha: str) -> Reply:
    assert request.body["state"] in ("error", "failure", "pending", "success")
    check_text("Status", "description", request.body.get("description"), 140)
    status = {"id": new_id(), "sha": sha, "context": "default", "target_url": None, **request.body}
    request.get_repository(full_name).statuses.append(status)
    return 201, status


@route("GET", "{repo}/collaborators/([^/]+)/permission")
def get_permission(request: GitHubHandler, full_name: str, login: str) -> Reply:
    role = request.get_repository(full_name).roles.get(unquote(login), "read")
    return 200, {"permission": {"maintain": "write", "triage": "read"}.get(role, role), "role_name": role}


@route("GET", r"{repo}/pulls/(\d+)")
def get_pull(request: GitHubHandler, full_name: str, number: str) -> Reply:
    return 200, find(request.get_repository(full_name).pulls, number)


@contextmanager
def run_github_server(port: int = 0) -> Iterator[GitHub]:
    """Run a GitHub server on a port of 127.0.0.1 until the block ends."""
    github = GitHub()
    with run_server(GitHubHandler, port, github=github) as github.url:
        yield github
