"""A GitHub on a socket of this machine: what the site uses of its REST, GraphQL and webhooks, refusals and limits too.

Answers have GitHub's paths, status codes and messages. `fail` makes the next requests go wrong; with `after=True` what
was asked is done first and only the answer is lost.
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
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit
from uuid import uuid4

import httpx
import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support import github_payloads as payloads
from tests.support.github_payloads import new_id

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
def private_key() -> str:
    """The App's, in PEM form. Made once: it takes a tenth of a second."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    kind = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption()).decode()


@dataclass
class Repository:
    """One repository, as GitHub keeps it."""

    shown: dict[str, Any]
    pulls: dict[int, dict[str, Any]] = field(default_factory=dict)
    files: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    comments: dict[int, dict[str, Any]] = field(default_factory=dict)
    reactions: list[tuple[int, str]] = field(default_factory=list)
    checks: dict[int, dict[str, Any]] = field(default_factory=dict)
    statuses: list[dict[str, Any]] = field(default_factory=list)
    roles: dict[str, str] = field(default_factory=dict)
    """{login: admin, maintain, write, triage, read}; everybody reads a public repository."""
    hooks: dict[int, dict[str, Any]] = field(default_factory=dict)

    def about(self, number: int) -> list[dict[str, Any]]:
        """The comments on a pull request, oldest first."""
        return [row for row in self.comments.values() if row["issue_url"].endswith(f"/issues/{number}")]


@dataclass
class Failure:
    """How the next `times` requests that match go wrong."""

    status: int
    body: Any
    times: int
    headers: dict[str, str]
    path: str
    method: str
    after: bool


class GitHub:
    """The server. One App, installed for the owners in `installed`; one plain token."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.repositories: dict[str, Repository] = {}
        self.installed = {"trains": INSTALLATION}
        self.permissions = dict(PERMISSIONS)
        self.events = list(EVENTS)
        self.hook: dict[str, str] = {"url": "", "content_type": "json", "insecure_ssl": "0", "secret": ""}
        self.tokens: dict[str, float] = {}
        self.remaining, self.reset = 5000, int(time.time()) + 3600
        self.largest_page = 100
        self.failures: list[Failure] = []
        self.asked: list[tuple[str, str, int]] = []
        """(method, path, status) of every request."""
        self.deliveries: list[dict[str, Any]] = []
        self.minimised: set[str] = set()
        self.url = ""

    # --- what happens on it -------------------------------------------------------------------------------------------

    def repository(self, full_name: str = "trains/daily", **shown: Any) -> Repository:
        """Return the repository, made on first sight."""
        with self.lock:
            if full_name not in self.repositories:
                self.repositories[full_name] = Repository(payloads.repository(full_name, **shown))
            return self.repositories[full_name]

    def open(self, repository: str, number: int, sha: str, *, announce: bool = True, **fields: Any) -> dict[str, Any]:
        """Open a pull request (`github_payloads.pull` says with which fields) and tell the webhook."""
        of = self.repository(repository)
        of.pulls[number] = payloads.pull(of.shown, number, sha, **fields)
        if announce:
            self.tell("opened", of.pulls[number])
        return of.pulls[number]

    def change(self, action: str, repository: str, number: int, **fields: Any) -> dict[str, Any]:
        """Change fields of a pull request (`head_sha` for a push to it) and tell the webhook."""
        pull = self.repository(repository).pulls[number]
        more: dict[str, Any] = {}
        if sha := fields.pop("head_sha", None):
            more = {"before": pull["head"]["sha"], "after": sha}
            pull["head"] = {**pull["head"], "sha": sha}
        pull.update({"updated_at": later(pull["updated_at"]), **fields})
        if action == "edited":
            more["changes"] = {}
        self.tell(action, pull, **more)
        return pull

    def close(self, repository: str, number: int, *, merged: bool = False) -> dict[str, Any]:
        return self.change("closed", repository, number, state="closed", merged=merged, closed_at=payloads.NOW)

    def say(self, repository: str, number: int, login: str, body: str, *, announce: bool = True) -> dict[str, Any]:
        """Somebody comments on a pull request."""
        of = self.repository(repository)
        said = payloads.comment(of.shown, number, payloads.user(login, person(login)), body)
        with self.lock:
            of.comments[said["id"]] = said
        if announce:
            told = payloads.issue_comment("created", of.pulls[number], said, installation=self.installation(repository))
            self.deliver("issue_comment", told)
        return said

    def tell(self, action: str, pull: dict[str, Any], **more: Any) -> int:
        repository = pull["base"]["repo"]["full_name"]
        told = payloads.pull_request(
            action, pull, installation=self.installation(repository), sender=pull["user"], **more
        )
        return self.deliver("pull_request", told)

    def installation(self, repository: str) -> int | None:
        return self.installed.get(repository.partition("/")[0])

    # --- webhook ------------------------------------------------------------------------------------------------------

    def deliver(self, event: str, payload: dict[str, Any], *, guid: str = "", redelivery: bool = False) -> int:
        """Send a delivery to the webhook and return the status it got; 0 where nobody answered."""
        guid = guid or str(uuid4())
        status = self.post(event, guid, json.dumps(payload).encode()) if self.hook["url"] else 0
        record = {"id": new_id(), "guid": guid, "delivered_at": payloads.NOW, "redelivery": redelivery, "duration": 0.1}
        record |= {"status": "OK" if 200 <= status < 300 else "Invalid HTTP Response", "status_code": status}
        record |= {"event": event, "action": payload.get("action"), "installation_id": None, "repository_id": None}
        with self.lock:
            self.deliveries.insert(0, {**record, "payload": payload})
        return status

    def headers(self, event: str, guid: str, body: bytes) -> dict[str, str]:
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

    def post(self, event: str, guid: str, body: bytes) -> int:
        """Send it over a socket. GitHub, too, waits for ten seconds."""
        told = self.headers(event, guid, body)
        try:
            return httpx.post(self.hook["url"], content=body, headers=told, timeout=10).status_code
        except httpx.TransportError:
            return 0

    def redeliver(self, number: int) -> int:
        """Send a delivery again, under its own guid."""
        old = next(row for row in self.deliveries if row["id"] == number)
        return self.deliver(old["event"], old["payload"], guid=old["guid"], redelivery=True)

    # --- trouble ------------------------------------------------------------------------------------------------------

    def fail(
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
        """Let the next requests whose path matches go wrong. Header names may have underscores."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        told = body if body is not None else {"message": message, "documentation_url": "https://docs.github.com/rest"}
        self.failures.append(Failure(status, told, times, named, path, method, after))

    def secondary_limit(self, retry_after: int | None = 60, **where: Any) -> None:
        message = "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."
        self.fail(403, message, **where, **({"Retry_After": str(retry_after)} if retry_after else {}))

    def failure(self, method: str, path: str, *, after: bool) -> Failure | None:
        with self.lock:
            for known in self.failures:
                matches = re.search(known.path, path) and known.method in ("", method) and known.after == after
                if known.times and matches:
                    known.times -= 1
                    return known
        return None

    def count(self, method: str, path: str) -> int:
        """How often something was asked and done."""
        return sum(m == method and bool(re.search(path, p)) and status < 300 for m, p, status in self.asked)


def later(moment: str) -> str:
    """A second later, as GitHub writes times."""
    return (datetime.fromisoformat(moment) + timedelta(seconds=1)).strftime("%Y-%m-%dT%H:%M:%SZ")


def person(login: str) -> int:
    """A person's number on GitHub, the same each time."""
    return int(hashlib.sha256(login.encode()).hexdigest()[:7], 16)


class No(Exception):
    """A refusal, as GitHub words it."""

    def __init__(self, status: int, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status, self.body = (
            status,
            {"message": message, "documentation_url": "https://docs.github.com/rest", **more},
        )


# --- who asks ---------------------------------------------------------------------------------------------------------


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    body: dict[str, Any]
    headers: Any
    github: GitHub
    who: str = ""
    """`app`, `installation` or `token`."""

    def repository(self, full_name: str) -> Repository:
        if full_name not in self.github.repositories or self.who == "app":
            raise No(404, "Not Found")
        if self.who == "installation" and self.github.installation(full_name) is None:
            raise No(404, "Not Found")
        return self.github.repositories[full_name]

    def needs(self, permission: str, level: str = "write") -> None:
        levels = ("", "read", "write")
        has = self.github.permissions.get(permission, "") if self.who == "installation" else "write"
        if levels.index(has) < levels.index(level):
            raise No(403, "Resource not accessible by integration")

    def page(self, rows: list[Any]) -> list[Any]:
        size = min(int(self.query.get("per_page", 30)), self.github.largest_page)
        number = int(self.query.get("page", 1))
        if number * size < len(rows):
            more = urlencode({**self.query, "page": number + 1})
            last = urlencode({**self.query, "page": -(-len(rows) // size)})
            at = f"{self.github.url}{self.path}"
            self.headers["Link"] = f'<{at}?{more}>; rel="next", <{at}?{last}>; rel="last"'
        return rows[(number - 1) * size : number * size]


def who_asks(github: GitHub, authorization: str) -> str:
    kind, _, secret = authorization.partition(" ")
    if kind.lower() not in ("bearer", "token") or not secret:
        raise No(401, "Requires authentication")
    if secret == TOKEN:
        return "token"
    if secret.startswith("ghs_"):
        if github.tokens.get(secret, 0) < time.time():
            raise No(401, "Bad credentials")
        return "installation"
    key = serialization.load_pem_private_key(private_key().encode(), None).public_key()
    try:
        claims = jwt.decode(secret, key, algorithms=["RS256"], issuer=APP)  # type: ignore[arg-type]
    except jwt.PyJWTError:
        raise No(401, "A JSON web token could not be decoded") from None
    if claims["exp"] > time.time() + 600:
        raise No(401, "'Expiration time' claim ('exp') is too far in the future")
    return "app"


# --- what may be asked ------------------------------------------------------------------------------------------------

Route = Callable[..., Reply]
ROUTES: list[tuple[str, re.Pattern[str], Route]] = []


def route(method: str, path: str) -> Callable[[Route], Route]:
    pattern = re.compile(path.replace("{repo}", "/repos/([^/]+/[^/]+)"))

    def note(function: Route) -> Route:
        ROUTES.append((method, pattern, function))
        return function

    return note


def only_app(request: Request) -> None:
    if request.who != "app":
        raise No(401, "A JSON web token could not be decoded")


@route("GET", "/app")
def the_app(request: Request) -> Reply:
    only_app(request)
    github = request.github
    shown = {"id": int(APP), "slug": SLUG, "name": "The Daily Train", "owner": payloads.user("mara")}
    shown |= {"html_url": f"https://github.com/apps/{SLUG}", "external_url": "https://train.example"}
    return 200, {**shown, "permissions": github.permissions, "events": github.events, "installations_count": 1}


@route("GET", "/app/hook/config")
def hook_config(request: Request) -> Reply:
    only_app(request)
    hook = request.github.hook
    return 200, {**hook, "secret": "********"} if hook["secret"] else {k: v for k, v in hook.items() if k != "secret"}


@route("PATCH", "/app/hook/config")
def set_hook_config(request: Request) -> Reply:
    only_app(request)
    request.github.hook.update({name: str(value) for name, value in request.body.items()})
    return hook_config(request)


@route("GET", "/app/hook/deliveries")
def list_deliveries(request: Request) -> Reply:
    only_app(request)
    hidden = ("payload",)
    rows = [{name: value for name, value in row.items() if name not in hidden} for row in request.github.deliveries]
    return 200, request.page(rows)


@route("POST", r"/app/hook/deliveries/(\d+)/attempts")
def attempt(request: Request, number: str) -> Reply:
    only_app(request)
    threading.Thread(target=request.github.redeliver, args=(int(number),), daemon=True).start()
    return 202, {}


@route("GET", "/app/installations")
def installations(request: Request) -> Reply:
    only_app(request)
    rows = [shown_installation(request.github, owner) for owner in request.github.installed]
    return 200, request.page(rows)


@route("GET", "{repo}/installation")
def repository_installation(request: Request, repository: str) -> Reply:
    only_app(request)
    owner = repository.partition("/")[0]
    if owner not in request.github.installed or repository not in request.github.repositories:
        raise No(404, "Not Found")
    return 200, shown_installation(request.github, owner)


def shown_installation(github: GitHub, owner: str) -> dict[str, Any]:
    shown = {"id": github.installed[owner], "account": payloads.user(owner, 9919, "Organization"), "app_id": int(APP)}
    shown |= {"permissions": github.permissions, "events": github.events, "suspended_at": None}
    return {**shown, "app_slug": SLUG, "repository_selection": "selected", "target_type": "Organization"}


@route("POST", r"/app/installations/(\d+)/access_tokens")
def access_token(request: Request, number: str) -> Reply:
    only_app(request)
    if int(number) not in request.github.installed.values():
        raise No(404, "Not Found")
    token = f"ghs_{uuid4().hex}"
    request.github.tokens[token] = time.time() + 3600
    ends = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
    return 201, {"token": token, "expires_at": ends, "permissions": request.github.permissions}


@route("GET", "/user")
def the_user(request: Request) -> Reply:
    if request.who != "token":
        raise No(403, "Resource not accessible by integration")
    return 200, payloads.user("mara", person("mara"))


@route("GET", "{repo}")
def the_repository(request: Request, repository: str) -> Reply:
    shown = request.repository(repository).shown
    role = request.repository(repository).roles.get("mara", "read")
    rights = {"admin": role == "admin", "push": role in ("admin", "maintain", "write"), "pull": True}
    return 200, {**shown, "permissions": rights}


@route("GET", r"{repo}/issues/(\d+)/comments")
def list_comments(request: Request, repository: str, number: str) -> Reply:
    of = request.repository(repository)
    if int(number) not in of.pulls:
        raise No(404, "Not Found")
    return 200, request.page(of.about(int(number)))


@route("POST", r"{repo}/issues/(\d+)/comments")
def make_comment(request: Request, repository: str, number: str) -> Reply:
    request.needs("issues" if "issues" in request.github.permissions else "pull_requests")
    of = request.repository(repository)
    if int(number) not in of.pulls:
        raise No(404, "Not Found")
    if of.pulls[int(number)]["locked"]:
        raise No(403, "Unable to create comment because issue is locked.")
    author = (
        payloads.user(f"{SLUG}[bot]", 41898282, "Bot")
        if request.who == "installation"
        else payloads.user("mara", person("mara"))
    )
    made = payloads.comment(of.shown, int(number), author, checked_body(request), int(APP))
    of.comments[made["id"]] = made
    return 201, made


def checked_body(request: Request) -> str:
    body = request.body.get("body")
    if not isinstance(body, str) or not body.strip():
        raise No(
            422, "Validation Failed", errors=[{"resource": "IssueComment", "code": "missing_field", "field": "body"}]
        )
    if len(body) > 65_536:
        raise No(422, "Validation Failed", errors=[{"message": "body is too long (maximum is 65536 characters)"}])
    return body


def the_comment(request: Request, repository: str, number: str) -> dict[str, Any]:
    found = request.repository(repository).comments.get(int(number))
    if found is None:
        raise No(404, "Not Found")
    return found


@route("GET", r"{repo}/issues/comments/(\d+)")
def get_comment(request: Request, repository: str, number: str) -> Reply:
    return 200, the_comment(request, repository, number)


@route("PATCH", r"{repo}/issues/comments/(\d+)")
def edit_comment(request: Request, repository: str, number: str) -> Reply:
    request.needs("issues")
    found = the_comment(request, repository, number)
    if request.who == "installation" and found["user"]["login"] != f"{SLUG}[bot]":
        raise No(403, "Resource not accessible by integration")
    found.update(body=checked_body(request), updated_at=later(found["updated_at"]))
    return 200, found


@route("DELETE", r"{repo}/issues/comments/(\d+)")
def delete_comment(request: Request, repository: str, number: str) -> Reply:
    the_comment(request, repository, number)
    del request.repository(repository).comments[int(number)]
    return 204, None


@route("POST", r"{repo}/issues/comments/(\d+)/reactions")
def react(request: Request, repository: str, number: str) -> Reply:
    the_comment(request, repository, number)
    content = request.body.get("content")
    if content not in ("+1", "-1", "laugh", "confused", "heart", "hooray", "rocket", "eyes"):
        raise No(422, "Validation Failed", errors=[{"field": "content", "code": "invalid"}])
    reactions, wanted = request.repository(repository).reactions, (int(number), content)
    if wanted in reactions:
        return 200, {"id": 1, "content": content}
    reactions.append(wanted)
    return 201, {"id": 1, "content": content}


@route("POST", "/graphql")
def graphql(request: Request) -> Reply:
    subject = request.body["variables"]["id"]
    known = {row["node_id"] for of in request.github.repositories.values() for row in of.comments.values()}
    if "minimizeComment" not in request.body["query"]:
        return 200, {"data": None, "errors": [{"message": "Parse error"}]}
    if subject not in known:
        message = f"Could not resolve to a node with the global id of '{subject}'"
        return 200, {"data": {"minimizeComment": None}, "errors": [{"type": "NOT_FOUND", "message": message}]}
    request.github.minimised.add(subject)
    return 200, {"data": {"minimizeComment": {"minimizedComment": {"isMinimized": True}}}}


@route("POST", "{repo}/check-runs")
def make_check(request: Request, repository: str) -> Reply:
    if request.who != "installation":
        raise No(403, "You must authenticate via a GitHub App.")
    request.needs("checks")
    of, body = request.repository(repository), request.body
    if not body.get("name") or not re.fullmatch("[0-9a-f]{40}", str(body.get("head_sha"))):
        raise No(422, 'Invalid request.\n\nFor \'links/0/schema\', "name", "head_sha" weren\'t supplied.')
    made = {
        "id": new_id(),
        "status": "queued",
        "conclusion": None,
        "external_id": "",
        "app": {"id": int(APP), "slug": SLUG},
    }
    of.checks[made["id"]] = made
    return 201, fill_check(made, body)


@route("PATCH", r"{repo}/check-runs/(\d+)")
def change_check(request: Request, repository: str, number: str) -> Reply:
    if request.who != "installation":
        raise No(403, "You must authenticate via a GitHub App.")
    request.needs("checks")
    found = request.repository(repository).checks.get(int(number))
    if found is None:
        raise No(404, "Not Found")
    return 200, fill_check(found, request.body)


def fill_check(check: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    if body.get("status") == "completed" and not body.get("conclusion"):
        raise No(422, 'Invalid request.\n\n"conclusion" wasn\'t supplied.')
    if len(body.get("output", {}).get("summary", "")) > 65_535:
        raise No(422, "Invalid request.\n\nOnly 65535 characters are allowed; more were supplied.")
    if body.get("status") in ("queued", "in_progress"):
        check["conclusion"] = None
    check.update({name: value for name, value in body.items() if value is not None})
    if body.get("conclusion"):
        check["status"] = "completed"
    return check


@route("GET", r"{repo}/commits/([^/]+)/check-runs")
def list_checks(request: Request, repository: str, sha: str) -> Reply:
    name, app = request.query.get("check_name"), request.query.get("app_id")
    rows = [row for row in request.repository(repository).checks.values() if row["head_sha"] == sha]
    rows = [row for row in rows if name in (None, row["name"]) and app in (None, str(row["app"]["id"]))]
    if request.query.get("filter", "latest") == "latest":
        rows = list({row["name"]: row for row in rows}.values())
    return 200, {"total_count": len(rows), "check_runs": request.page(rows)}


@route("POST", "{repo}/statuses/([0-9a-f]{40})")
def make_status(request: Request, repository: str, sha: str) -> Reply:
    request.needs("statuses")
    of, body = request.repository(repository), request.body
    if body.get("state") not in ("error", "failure", "pending", "success"):
        raise No(422, "Validation Failed", errors=[{"field": "state", "code": "invalid"}])
    if len(body.get("description") or "") > 140:
        raise No(422, "Validation Failed", errors=[{"message": "description is too long (maximum is 140 characters)"}])
    made = {"id": new_id(), "sha": sha, "context": "default", "target_url": None, **body}
    of.statuses.append(made)
    return 201, made


@route("GET", "{repo}/collaborators/([^/]+)/permission")
def permission(request: Request, repository: str, login: str) -> Reply:
    role = request.repository(repository).roles.get(unquote(login), "read")
    old = {"maintain": "write", "triage": "read"}.get(role, role)
    return 200, {"permission": old, "role_name": role, "user": payloads.user(unquote(login), person(login))}


@route("GET", "{repo}/pulls")
def list_pulls(request: Request, repository: str) -> Reply:
    state = request.query.get("state", "open")
    rows = [row for row in request.repository(repository).pulls.values() if state in ("all", row["state"])]
    return 200, request.page(rows)


@route("GET", r"{repo}/pulls/(\d+)")
def get_pull(request: Request, repository: str, number: str) -> Reply:
    found = request.repository(repository).pulls.get(int(number))
    if found is None:
        raise No(404, "Not Found")
    return 200, found


@route("GET", r"{repo}/pulls/(\d+)/files")
def pull_files(request: Request, repository: str, number: str) -> Reply:
    get_pull(request, repository, number)
    return 200, request.page(request.repository(repository).files.get(int(number), []))


@route("GET", "{repo}/hooks")
def hooks(request: Request, repository: str) -> Reply:
    of = request.repository(repository)
    if request.who != "token" or of.roles.get("mara") != "admin":
        raise No(404, "Not Found")
    return 200, request.page(list(of.hooks.values()))


@route("POST", r"{repo}/hooks/(\d+)/pings")
def ping_hook(request: Request, repository: str, number: str) -> Reply:
    found = request.repository(repository).hooks.get(int(number))
    if found is None:
        raise No(404, "Not Found")
    told = {"zen": "Approachable is better than simple.", "hook_id": int(number), "hook": found}
    request.github.deliver("ping", told)
    return 204, None


# --- the socket -------------------------------------------------------------------------------------------------------


def answer(github: GitHub, method: str, target: str, headers: Any, raw: bytes) -> tuple[int, Any, dict[str, str]]:
    """Return status, body and headers."""
    parts = urlsplit(target)
    more: dict[str, str] = {}
    if early := github.failure(method, parts.path, after=False):
        return early.status, early.body, early.headers
    try:
        who = who_asks(github, headers.get("Authorization", ""))
        if who != "app":
            spend(github, more)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        request = Request(method, parts.path, query, json.loads(raw or b"{}"), more, github, who)
        for verb, pattern, function in ROUTES:
            if verb == method and (found := pattern.fullmatch(parts.path)):
                with github.lock:
                    status, body = function(request, *found.groups())
                break
        else:
            raise No(404, "Not Found")
    except No as no:
        status, body = no.status, no.body
    except ValueError:
        status, body = 400, {"message": "Problems parsing JSON"}
    if lost := github.failure(method, parts.path, after=True):
        return lost.status, lost.body, lost.headers
    return status, body, more


def spend(github: GitHub, headers: dict[str, str]) -> None:
    """Take one call off the hour's limit."""
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
        raise No(403, "API rate limit exceeded for installation ID 31000000123.")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    github: GitHub

    def serve(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, body, headers = answer(self.github, self.command, self.path, self.headers, raw)
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        if self.command == "GET" and status == 200:
            headers["ETag"] = f'W/"{hashlib.sha256(content + headers.get("Link", "").encode()).hexdigest()}"'
            if self.headers.get("If-None-Match") == headers["ETag"]:
                status, content = 304, b""
                self.github.remaining += 1  # what has not changed is not counted
        self.github.asked.append((self.command, urlsplit(self.path).path, status))
        self.send_response(status)
        for name, value in {"Content-Type": "application/json; charset=utf-8", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = serve

    def log_message(self, *arguments: Any) -> None:
        """No lines on stderr."""


class Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Nothing: who was killed while he asked does not wait for the answer."""


@contextmanager
def running(port: int = 0) -> Iterator[GitHub]:
    """A GitHub on a port of 127.0.0.1, until the block ends."""
    github = GitHub()
    server = Server(("127.0.0.1", port), type("Bound", (Handler,), {"github": github}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    github.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield github
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
