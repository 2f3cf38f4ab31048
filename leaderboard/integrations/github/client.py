"""GitHub client for one repository: comments, checks, permissions.

All methods are idempotent except `create_comment`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast
from urllib.parse import quote, urlsplit

from django.conf import settings
from django.core.cache import caches
from django.core.checks import CheckMessage, Warning

from leaderboard.integrations.github.connection import (
    AppToken,
    Connection,
    InstallationToken,
    NotConnectedError,
    NotFoundError,
    PlainToken,
)
from leaderboard.models import GitHubRepository, Installation

Permission = Literal["admin", "maintain", "write", "triage", "read", "none"]
LEVELS: tuple[Permission, ...] = ("admin", "maintain", "write", "triage", "read", "none")
Status = Literal["queued", "in_progress", "completed"]
Conclusion = Literal["success", "failure", "neutral", "cancelled", "timed_out", "action_required", "skipped"]

MINIMIZE = """
mutation($id: ID!) {
  minimizeComment(input: {subjectId: $id, classifier: OUTDATED}) { minimizedComment { isMinimized } }
}
"""
LOGIN_CACHE_SECONDS = 3600
# Commit statuses by conclusion of a check; any other is `failure`.
COMMIT_STATES = {"success": "success", "neutral": "success", "skipped": "success", "cancelled": "error"}
DESCRIPTION_LENGTH = 140
SUMMARY_LENGTH = 65_000  # GitHub allows 65,535 characters


@dataclass(frozen=True)
class Comment:
    id: int
    node_id: str
    body: str
    author: str  # login
    is_own: bool  # whether the site wrote it


class Client:
    """One repository on GitHub. Raises RetryLater if waiting helps, else PermanentError."""

    def __init__(self, repository: str, connection: Connection) -> None:
        self.repository = repository
        self.connection = connection
        self.path = f"/repos/{repository}"

    # --- comments on an issue or a pull request -----------------------------------------------------------------------

    def create_comment(self, number: int, body: str) -> int:
        """Write a comment and return its id. Not idempotent: check `list_comments` first."""
        return int(self.connection.send("POST", f"{self.path}/issues/{number}/comments", {"body": body})["id"])

    def edit_comment(self, comment: int, body: str) -> None:
        """Rewrite a comment. Raises NotFoundError if it was deleted."""
        self.connection.send("PATCH", f"{self.path}/issues/comments/{comment}", {"body": body})

    def list_comments(self, number: int) -> Iterator[Comment]:
        """Yield the comments, oldest first."""
        login = self.get_login()
        for row in self.connection.iterate_pages(f"{self.path}/issues/{number}/comments"):
            author = (row.get("user") or {}).get("login") or ""
            yield Comment(row["id"], row["node_id"], row.get("body") or "", author, author == login)

    def minimize_comment(self, node_id: str) -> None:
        """Hide a comment as outdated. Raises NotFoundError if it was deleted."""
        self.connection.graphql(MINIMIZE, id=node_id)

    def add_reaction(self, comment: int, content: Literal["+1", "-1", "confused", "eyes", "rocket", "hooray"]) -> None:
        self.connection.send("POST", f"{self.path}/issues/comments/{comment}/reactions", {"content": content})

    # --- checks on a commit -------------------------------------------------------------------------------------------

    def update_check(
        self,
        sha: str,
        name: str,
        *,
        status: Status,
        conclusion: Conclusion | None = None,
        title: str,
        summary: str = "",
        url: str = "",
        external_id: str = "",
        check_id: int | None = None,
    ) -> int:
        """Create or update the check `name` of a commit and return its id, to pass as `check_id` next time.

        Without it the App's check of that name and `external_id` is looked for first. A plain token cannot create
        checks, so it creates a commit status instead; the newest one of a name counts.
        """
        assert (status == "completed") == (conclusion is not None)
        if not self.connection.credentials.is_app:
            state = COMMIT_STATES.get(conclusion, "failure") if conclusion else "pending"
            return self.create_commit_status(sha, name, state, title, url)
        output = {"title": title[:255], "summary": (summary or title)[:SUMMARY_LENGTH]}
        body = {"name": name, "status": status, "external_id": external_id, "output": output}
        body |= {"conclusion": conclusion} if conclusion else {}
        body |= {"details_url": url} if url else {}
        if check_id := check_id or self.find_check(sha, name, external_id):
            return int(self.connection.send("PATCH", f"{self.path}/check-runs/{check_id}", body)["id"])
        return int(self.connection.send("POST", f"{self.path}/check-runs", {**body, "head_sha": sha})["id"])

    def find_check(self, sha: str, name: str, external_id: str = "") -> int | None:
        path = f"{self.path}/commits/{sha}/check-runs"
        query = {"check_name": name, "filter": "all"}
        if settings.GITHUB_APP_ID.isdecimal():
            query["app_id"] = settings.GITHUB_APP_ID
        rows = self.connection.iterate_pages(path, "check_runs", **query)
        return max((row["id"] for row in rows if (row.get("external_id") or "") == external_id), default=None)

    def create_commit_status(self, sha: str, name: str, state: str, description: str, url: str = "") -> int:
        body = {"state": state, "context": name, "description": description[:DESCRIPTION_LENGTH]}
        body |= {"target_url": url} if url else {}
        return int(self.connection.send("POST", f"{self.path}/statuses/{sha}", body)["id"])

    # --- people and pull requests -------------------------------------------------------------------------------------

    def get_permission(self, login: str) -> Permission:
        try:
            answer = self.connection.get(f"{self.path}/collaborators/{quote(login, safe='')}/permission")
        except NotFoundError:
            return "none"
        # `permission` has neither maintain nor triage; custom roles of organizations have other names.
        for level in (answer.get("role_name"), answer.get("permission")):
            if level in LEVELS:
                return cast(Permission, level)
        return "none"

    def get_pull_request(self, number: int) -> dict[str, Any]:
        return self.connection.get(f"{self.path}/pulls/{number}")  # type: ignore[no-any-return]

    def get_login(self) -> str:
        """Return the login under which the site writes."""
        name = f"login-{self.connection.credentials.identity}"
        login: str | None = caches["github"].get(name)
        if login is None:
            is_app = self.connection.credentials.is_app
            login = f"{connect_app().get('/app')['slug']}[bot]" if is_app else self.connection.get("/user")["login"]
            caches["github"].set(name, login, LOGIN_CACHE_SECONDS)
        return login


def get_client(repository: str) -> Client:
    """Return a client for `owner/name`. Raises NotConnectedError if the site has no access."""
    if has_app():
        return Client(repository, Connection(InstallationToken(get_installation(repository).number)))
    if settings.GITHUB_TOKEN:
        return Client(repository, Connection(PlainToken()))
    raise NotConnectedError("The site is not connected to GitHub: see docs/how-to/github.md.")


def has_app() -> bool:
    return bool(settings.GITHUB_APP_ID and settings.GITHUB_PRIVATE_KEY)


def connect_app() -> Connection:
    if not has_app():
        raise NotConnectedError("The site has no GitHub App: set GITHUB_APP_ID and GITHUB_PRIVATE_KEY.")
    return Connection(AppToken())


def get_installation(repository: str) -> Installation:
    """Return the installation of a repository's owner, from GitHub if it is not stored."""
    owner = repository.partition("/")[0]
    installation = Installation.objects.filter(account__iexact=owner).order_by("suspended", "-number").first()
    installation = installation or fetch_installation(repository)
    if installation.suspended:
        raise NotConnectedError(f"The GitHub App is suspended or was removed for {owner}.")
    return installation


def fetch_installation(repository: str) -> Installation:
    try:
        answer = connect_app().get(f"/repos/{repository}/installation")
    except NotFoundError as error:
        raise NotConnectedError(f"The GitHub App is not installed for {repository}.") from error
    fields = {"account": answer["account"]["login"], "suspended": bool(answer.get("suspended_at"))}
    return Installation.objects.update_or_create(number=answer["id"], defaults=fields)[0]


def get_main_repository() -> str:
    """Return the current `owner/name` of the repository whose pull requests become entries; empty if not on GitHub."""
    configured = get_configured_repository()
    known = find_known_repository(configured)
    return known.name if known else configured


def find_known_repository(configured: str) -> GitHubRepository | None:
    return GitHubRepository.objects.filter(configured=configured.lower()).first() if configured else None


def get_configured_repository() -> str:
    """Return `owner/name` from the settings, which may be an earlier name of the repository."""
    if settings.GITHUB_REPOSITORY:
        return settings.GITHUB_REPOSITORY
    address = settings.MAIN_REPOSITORY.replace("git@github.com:", "https://github.com/")
    parts = urlsplit(address)
    names = parts.path.removesuffix("/").removesuffix(".git").strip("/").split("/")
    return "/".join(names) if parts.hostname == "github.com" and len(names) == 2 else ""


def check_github_settings(app_configs: Any, **options: Any) -> list[CheckMessage]:
    """Warn of settings that do not work, in `manage.py check`."""
    messages: list[CheckMessage] = []
    if bool(settings.GITHUB_APP_ID) != bool(settings.GITHUB_PRIVATE_KEY):
        hint = "Set both GITHUB_APP_ID and GITHUB_PRIVATE_KEY, or neither."
        messages.append(Warning("The GitHub App is half configured.", hint=hint, id="github.W001"))
    if (settings.GITHUB_APP_ID or settings.GITHUB_TOKEN) and not settings.GITHUB_WEBHOOK_SECRET:
        hint = "Set GITHUB_WEBHOOK_SECRET: without it the site hears of no pull request."
        messages.append(Warning("The webhook has no secret.", hint=hint, id="github.W002"))
    return messages
