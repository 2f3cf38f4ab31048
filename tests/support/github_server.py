"""A local GitHub server with the part of the REST API, GraphQL API and webhooks that the site uses.

Paths, status codes, messages and rate limits are those of GitHub. `fail_requests` makes the next requests fail; with
`after=True` the request is executed and only its response is lost.
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
from tests.support.http_server import Handler, run_server
from tests.support.waits import WAIT_SECONDS

APP, SLUG, INSTALLATION, TOKEN = "4711", "daily-train", 31_000_000_123, "github_pat_of_mara"
PERMISSIONS = {
    "checks": "write",
    "contents": "read",
    "issues": "write",
    "metadata": "read",
    "pull_requests": "write",
    "statuses": "write",
}
EVENTS = ["check_run", "issue_comment", "pull_request", "push"]
Reply = tuple[int, Any]


@cache
def get_private_key() -> str:
    """Return the private key of the App in PEM form. It is cached because generating it takes 0.1 seconds."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    kind = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption()).decode()


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


@dataclass
class Failure:
    """The response to the next `times` requests that match."""

    status: int
    body: Any
    times: int
    headers: dict[str, str]
    path: str
    method: str
    after: bool


class GitHub:
    """The state of the server: one App, installed for the owners in `installed`, and one personal token."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.repositories: dict[str, Repository] = {}
        self.installed = {"trains": INSTALLATION}
        self.permissions = dict(PERMISSIONS)
        self.events = list(EVENTS)
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
                "created", repository.pulls[number], comment, installation=self.get_installation(full_name)
            )
            self.deliver("issue_comment", payload)
        return comment

    def deliver_pull_request(self, action: str, pull: dict[str, Any], **payload_fields: Any) -> int:
        full_name = pull["base"]["repo"]["full_name"]
        payload = payloads.pull_request(
            action, pull, installation=self.get_installation(full_name), sender=pull["user"], **payload_fields
        )
        return self.deliver("pull_request", payload)

    def get_installation(self, full_name: str) -> int | None:
        return self.installed.get(full_name.partition("/")[0])

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
        """Make the next requests whose path matches fail. Underscores in header names become hyphens."""
        response_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is None:
            body = {"message": message, "documentation_url": "https://docs.github.com/rest"}
        self.failures.append(Failure(status, body, times, response_headers, path, method, after))

    def apply_secondary_limit(self, retry_after: int | None = 60, **request_filter: Any) -> None:
        message = "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."
        headers = {"Retry_After": str(retry_after)} if retry_after else {}
        self.fail_requests(403, message, **request_filter, **headers)

    def take_failure(self, method: str, path: str, *, after: bool) -> Failure | None:
        """Return the failure that applies to this request and count it as used once."""
        with self.lock:
            for failure in self.failures:
                matches = re.search(failure.path, path) and failure.method in ("", method) and failure.after == after
                if failure.times and matches:
                    failure.times -= 1
                    return failure
        return None

    def count_requests(self, method: str, path: str) -> int:
        """Return the number of successful requests whose path matches."""
        return sum(m == method and bool(re.search(path, p)) and status < 300 for m, p, status in self.requests)


def add_second(moment: str) -> str:
    """Return the time one second later in GitHub's format."""
    return (datetime.fromisoformat(moment) + timedelta(seconds=1)).strftime("%Y-%m-%dT%H:%M:%SZ")


def compute_user_id(login: str) -> int:
    """Return the same GitHub user id for the same login."""
    return int(hashlib.sha256(login.encode()).hexdigest()[:7], 16)


class ApiError(Exception):
    """An error response in GitHub's format."""

    def __init__(self, status: int, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"message": message, "documentation_url": "https://docs.github.com/rest", **fields}


# --- requests ---------------------------------------------------------------------------------------------------------


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    body: dict[str, Any]
    headers: Any
    github: GitHub
    authenticated_as: str = ""
    """`app`, `installation` or `token`."""

    def get_repository(self, full_name: str) -> Repository:
        if full_name not in self.github.repositories or self.authenticated_as == "app":
            raise ApiError(404, "Not Found")
        if self.authenticated_as == "installation" and self.github.get_installation(full_name) is None:
            raise ApiError(404, "Not Found")
        return self.github.repositories[full_name]

    def require_permission(self, permission: str, level: str = "write") -> None:
        levels = ("", "read", "write")
        granted = self.github.permissions.get(permission, "") if self.authenticated_as == "installation" else "write"
        if levels.index(granted) < levels.index(level):
            raise ApiError(403, "Resource not accessible by integration")

    def paginate(self, rows: list[Any]) -> list[Any]:
        """Return the requested page of rows and set the `Link` header."""
        size = min(int(self.query.get("per_page", 30)), self.github.largest_page)
        number = int(self.query.get("page", 1))
        if number * size < len(rows):
            next_query = urlencode({**self.query, "page": number + 1})
            last_query = urlencode({**self.query, "page": -(-len(rows) // size)})
            url = f"{self.github.url}{self.path}"
            self.headers["Link"] = f'<{url}?{next_query}>; rel="next", <{url}?{last_query}>; rel="last"'
        return rows[(number - 1) * size : number * size]


def authenticate(github: GitHub, authorization: str) -> str:
    """Return `app`, `installation` or `token`; raise `ApiError` for invalid credentials."""
    kind, _, secret = authorization.partition(" ")
    if kind.lower() not in ("bearer", "token") or not secret:
        raise ApiError(401, "Requires authentication")
    if secret == TOKEN:
        return "token"
    if secret.startswith("ghs_"):
        if github.tokens.get(secret, 0) < time.time():
            raise ApiError(401, "Bad credentials")
        return "installation"
    key = serialization.load_pem_private_key(get_private_key().encode(), None).public_key()
    try:
        claims = jwt.decode(secret, key, algorithms=["RS256"], issuer=APP)  # type: ignore[arg-type]
    except jwt.PyJWTError:
        raise ApiError(401, "A JSON web token could not be decoded") from None
    if claims["exp"] > time.time() + 600:
        raise ApiError(401, "'Expiration time' claim ('exp') is too far in the future")
    return "app"


# --- endpoints --------------------------------------------------------------------------------------------------------

Route = Callable[..., Reply]
ROUTES: list[tuple[str, re.Pattern[str], Route]] = []


def route(method: str, path: str) -> Callable[[Route], Route]:
    pattern = re.compile(path.replace("{repo}", "/repos/([^/]+/[^/]+)"))

    def register_route(function: Route) -> Route:
        ROUTES.append((method, pattern, function))
        return function

    return register_route


def require_app(request: Request) -> None:
    if request.authenticated_as != "app":
        raise ApiError(401, "A JSON web token could not be decoded")


@route("GET", "/app")
def get_app(request: Request) -> Reply:
    require_app(request)
    github = request.github
    app = {"id": int(APP), "slug": SLUG, "name": "The Daily Train", "owner": payloads.user("mara")}
    app |= {"html_url": f"https://github.com/apps/{SLUG}", "external_url": "https://train.example"}
    return 200, {**app, "permissions": github.permissions, "events": github.events, "installations_count": 1}


@route("GET", "{repo}/installation")
def get_repository_installation(request: Request, full_name: str) -> Reply:
    require_app(request)
    owner = full_name.partition("/")[0]
    if owner not in request.github.installed or full_name not in request.github.repositories:
        raise ApiError(404, "Not Found")
    return 200, build_installation(request.github, owner)


def build_installation(github: GitHub, owner: str) -> dict[str, Any]:
    installation = {
        "id": github.installed[owner],
        "account": payloads.user(owner, 9919, "Organization"),
        "app_id": int(APP),
    }
    installation |= {"permissions": github.permissions, "events": github.events, "suspended_at": None}
    return {**installation, "app_slug": SLUG, "repository_selection": "selected", "target_type": "Organization"}


@route("POST", r"/app/installations/(\d+)/access_tokens")
def create_access_token(request: Request, number: str) -> Reply:
    require_app(request)
    if int(number) not in request.github.installed.values():
        raise ApiError(404, "Not Found")
    token = f"ghs_{uuid4().hex}"
    request.github.tokens[token] = time.time() + 3600
    expires_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
    return 201, {"token": token, "expires_at": expires_at, "permissions": request.github.permissions}


@route("GET", "/user")
def get_user(request: Request) -> Reply:
    if request.authenticated_as != "token":
        raise ApiError(403, "Resource not accessible by integration")
    return 200, payloads.user("mara", compute_user_id("mara"))


@route("GET", "{repo}")
def show_repository(request: Request, full_name: str) -> Reply:
    repository = request.get_repository(full_name)
    role = repository.roles.get("mara", "read")
    rights = {"admin": role == "admin", "push": role in ("admin", "maintain", "write"), "pull": True}
    return 200, {**repository.payload, "permissions": rights}


@route("GET", r"{repo}/issues/(\d+)/comments")
def list_comments(request: Request, full_name: str, number: str) -> Reply:
    repository = request.get_repository(full_name)
    if int(number) not in repository.pulls:
        raise ApiError(404, "Not Found")
    return 200, request.paginate(repository.list_comments_on(int(number)))


@route("POST", r"{repo}/issues/(\d+)/comments")
def create_comment(request: Request, full_name: str, number: str) -> Reply:
    request.require_permission("issues" if "issues" in request.github.permissions else "pull_requests")
    repository = request.get_repository(full_name)
    if int(number) not in repository.pulls:
        raise ApiError(404, "Not Found")
    if repository.pulls[int(number)]["locked"]:
        raise ApiError(403, "Unable to create comment because issue is locked.")
    author = (
        payloads.user(f"{SLUG}[bot]", 41898282, "Bot")
        if request.authenticated_as == "installation"
        else payloads.user("mara", compute_user_id("mara"))
    )
    comment = payloads.comment(repository.payload, int(number), author, read_comment_body(request), int(APP))
    repository.comments[comment["id"]] = comment
    return 201, comment


def read_comment_body(request: Request) -> str:
    body = request.body.get("body")
    if not isinstance(body, str) or not body.strip():
        raise ApiError(
            422, "Validation Failed", errors=[{"resource": "IssueComment", "code": "missing_field", "field": "body"}]
        )
    if len(body) > 65_536:
        raise ApiError(422, "Validation Failed", errors=[{"message": "body is too long (maximum is 65536 characters)"}])
    return body


def find_comment(request: Request, full_name: str, number: str) -> dict[str, Any]:
    comment = request.get_repository(full_name).comments.get(int(number))
    if comment is None:
        raise ApiError(404, "Not Found")
    return comment


@route("PATCH", r"{repo}/issues/comments/(\d+)")
def edit_comment(request: Request, full_name: str, number: str) -> Reply:
    request.require_permission("issues")
    comment = find_comment(request, full_name, number)
    if request.authenticated_as == "installation" and comment["user"]["login"] != f"{SLUG}[bot]":
        raise ApiError(403, "Resource not accessible by integration")
    comment.update(body=read_comment_body(request), updated_at=add_second(comment["updated_at"]))
    return 200, comment


@route("POST", r"{repo}/issues/comments/(\d+)/reactions")
def create_reaction(request: Request, full_name: str, number: str) -> Reply:
    find_comment(request, full_name, number)
    content = request.body.get("content")
    if content not in ("+1", "-1", "laugh", "confused", "heart", "hooray", "rocket", "eyes"):
        raise ApiError(422, "Validation Failed", errors=[{"field": "content", "code": "invalid"}])
    reactions, reaction = request.get_repository(full_name).reactions, (int(number), content)
    if reaction in reactions:
        return 200, {"id": 1, "content": content}
    reactions.append(reaction)
    return 201, {"id": 1, "content": content}


@route("POST", "/graphql")
def run_graphql_mutation(request: Request) -> Reply:
    subject = request.body["variables"]["id"]
    comment_ids = {
        row["node_id"] for repository in request.github.repositories.values() for row in repository.comments.values()
    }
    if "minimizeComment" not in request.body["query"]:
        return 200, {"data": None, "errors": [{"message": "Parse error"}]}
    if subject not in comment_ids:
        message = f"Could not resolve to a node with the global id of '{subject}'"
        return 200, {"data": {"minimizeComment": None}, "errors": [{"type": "NOT_FOUND", "message": message}]}
    request.github.minimized_comments.add(subject)
    return 200, {"data": {"minimizeComment": {"minimizedComment": {"isMinimized": True}}}}


@route("POST", "{repo}/check-runs")
def create_check(request: Request, full_name: str) -> Reply:
    if request.authenticated_as != "installation":
        raise ApiError(403, "You must authenticate via a GitHub App.")
    request.require_permission("checks")
    repository, body = request.get_repository(full_name), request.body
    if not body.get("name") or not re.fullmatch("[0-9a-f]{40}", str(body.get("head_sha"))):
        raise ApiError(422, 'Invalid request.\n\nFor \'links/0/schema\', "name", "head_sha" weren\'t supplied.')
    check = {
        "id": new_id(),
        "status": "queued",
        "conclusion": None,
        "external_id": "",
        "app": {"id": int(APP), "slug": SLUG},
    }
    repository.checks[check["id"]] = check
    return 201, update_check_fields(check, body)


@route("PATCH", r"{repo}/check-runs/(\d+)")
def update_check(request: Request, full_name: str, number: str) -> Reply:
    if request.authenticated_as != "installation":
        raise ApiError(403, "You must authenticate via a GitHub App.")
    request.require_permission("checks")
    check = request.get_repository(full_name).checks.get(int(number))
    if check is None:
        raise ApiError(404, "Not Found")
    return 200, update_check_fields(check, request.body)


def update_check_fields(check: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    if body.get("status") == "completed" and not body.get("conclusion"):
        raise ApiError(422, 'Invalid request.\n\n"conclusion" wasn\'t supplied.')
    if len(body.get("output", {}).get("summary", "")) > 65_535:
        raise ApiError(422, "Invalid request.\n\nOnly 65535 characters are allowed; more were supplied.")
    if body.get("status") in ("queued", "in_progress"):
        check["conclusion"] = None
    check.update({name: value for name, value in body.items() if value is not None})
    if body.get("conclusion"):
        check["status"] = "completed"
    return check


@route("GET", r"{repo}/commits/([^/]+)/check-runs")
def list_checks(request: Request, full_name: str, sha: str) -> Reply:
    name, app = request.query.get("check_name"), request.query.get("app_id")
    rows = [row for row in request.get_repository(full_name).checks.values() if row["head_sha"] == sha]
    rows = [row for row in rows if name in (None, row["name"]) and app in (None, str(row["app"]["id"]))]
    if request.query.get("filter", "latest") == "latest":
        rows = list({row["name"]: row for row in rows}.values())
    return 200, {"total_count": len(rows), "check_runs": request.paginate(rows)}


@route("POST", "{repo}/statuses/([0-9a-f]{40})")
def create_status(request: Request, full_name: str, sha: str) -> Reply:
    request.require_permission("statuses")
    repository, body = request.get_repository(full_name), request.body
    if body.get("state") not in ("error", "failure", "pending", "success"):
        raise ApiError(422, "Validation Failed", errors=[{"field": "state", "code": "invalid"}])
    if len(body.get("description") or "") > 140:
        raise ApiError(
            422, "Validation Failed", errors=[{"message": "description is too long (maximum is 140 characters)"}]
        )
    status = {"id": new_id(), "sha": sha, "context": "default", "target_url": None, **body}
    repository.statuses.append(status)
    return 201, status


@route("GET", "{repo}/collaborators/([^/]+)/permission")
def get_permission(request: Request, full_name: str, login: str) -> Reply:
    role = request.get_repository(full_name).roles.get(unquote(login), "read")
    permission = {"maintain": "write", "triage": "read"}.get(role, role)
    return 200, {
        "permission": permission,
        "role_name": role,
        "user": payloads.user(unquote(login), compute_user_id(login)),
    }


@route("GET", r"{repo}/pulls/(\d+)")
def get_pull(request: Request, full_name: str, number: str) -> Reply:
    pull = request.get_repository(full_name).pulls.get(int(number))
    if pull is None:
        raise ApiError(404, "Not Found")
    return 200, pull


# --- HTTP server ------------------------------------------------------------------------------------------------------


def handle_request(
    github: GitHub, method: str, target: str, headers: Any, raw: bytes
) -> tuple[int, Any, dict[str, str]]:
    """Return status, body and headers of the response."""
    parts = urlsplit(target)
    response_headers: dict[str, str] = {}
    if failure := github.take_failure(method, parts.path, after=False):
        return failure.status, failure.body, failure.headers
    try:
        authenticated_as = authenticate(github, headers.get("Authorization", ""))
        if authenticated_as != "app":
            use_rate_limit(github, response_headers)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        request = Request(
            method, parts.path, query, json.loads(raw or b"{}"), response_headers, github, authenticated_as
        )
        for verb, pattern, function in ROUTES:
            if verb == method and (match := pattern.fullmatch(parts.path)):
                with github.lock:
                    status, body = function(request, *match.groups())
                break
        else:
            raise ApiError(404, "Not Found")
    except ApiError as error:
        status, body = error.status, error.body
    except ValueError:
        status, body = 400, {"message": "Problems parsing JSON"}
    if failure := github.take_failure(method, parts.path, after=True):
        return failure.status, failure.body, failure.headers
    return status, body, response_headers


def use_rate_limit(github: GitHub, headers: dict[str, str]) -> None:
    """Count one request against the hourly limit and set the rate-limit headers."""
    with github.lock:
        if time.time() > github.reset:
            github.remaining, github.reset = 5000, int(time.time()) + 3600
        left = github.remaining
        github.remaining = max(left - 1, 0)
    headers.update(
        {"X-RateLimit-Limit": "5000", "X-RateLimit-Reset": str(github.reset), "X-RateLimit-Resource": "core"}
    )
    headers["X-RateLimit-Remaining"] = str(max(left - 1, 0))
    if left <= 0:
        raise ApiError(403, "API rate limit exceeded for installation ID 31000000123.")


class GitHubHandler(Handler):
    github: GitHub

    def serve(self) -> None:
        status, body, headers = handle_request(self.github, self.command, self.path, self.headers, self.read_body())
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        if self.command == "GET" and status == 200:
            headers["ETag"] = f'W/"{hashlib.sha256(content + headers.get("Link", "").encode()).hexdigest()}"'
            if self.headers.get("If-None-Match") == headers["ETag"]:
                status, content = 304, b""
                self.github.remaining += 1  # conditional requests do not count
        self.github.requests.append((self.command, urlsplit(self.path).path, status))
        self.send(status, content, {"Content-Type": "application/json; charset=utf-8", **headers})

    do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = serve


@contextmanager
def run_github_server(port: int = 0) -> Iterator[GitHub]:
    """Run a GitHub server on a port of 127.0.0.1 until the block ends."""
    github = GitHub()
    with run_server(GitHubHandler, port, github=github) as github.url:
        yield github
