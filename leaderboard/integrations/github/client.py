"""What the site says and asks on GitHub, about one repository: comments, checks, permissions.

Every method is one idea and safe to repeat, but for `comment`, which makes another comment each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast
from urllib.parse import quote, urlsplit

from django.conf import settings
from django.core.cache import caches

from leaderboard.integrations.github.connection import Connection, NotFoundError
from leaderboard.integrations.github.credentials import InstallationToken, NotConnectedError, PlainToken, get_app_token
from leaderboard.models import Installation

__all__ = [
    "Client",
    "Comment",
    "NotConnectedError",
    "NotFoundError",
    "connect_app",
    "get_client",
    "get_main_repository",
]

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
COMMIT_STATES = {"success": "success", "neutral": "success", "skipped": "success", "cancelled": "error"}
"""What a conclusion is as a commit status; any other is `failure`."""
DESCRIPTION_LENGTH = 140
SUMMARY_LENGTH = 65_000
"""GitHub takes 65,535 characters."""


@dataclass(frozen=True)
class Comment:
    id: int
    node_id: str
    """What `minimise` takes."""
    body: str
    author: str
    """Login."""
    is_ours: bool


class Client:
    """One repository on GitHub. Raises `effects.Later` where it helps to wait, `effects.Refused` where not."""

    def __init__(self, repository: str, connection: Connection) -> None:
        self.repository = repository
        self.connection = connection
        self.at = f"/repos/{repository}"

    # --- comments on an issue or a pull request -----------------------------------------------------------------------

    def comment(self, number: int, body: str) -> int:
        """Write a comment and return its id. Look through `comments` first if it may be there."""
        return int(self.connection.send("POST", f"{self.at}/issues/{number}/comments", {"body": body})["id"])

    def edit_comment(self, comment: int, body: str) -> None:
        """Rewrite a comment. Raises NotFoundError where somebody deleted it."""
        self.connection.send("PATCH", f"{self.at}/issues/comments/{comment}", {"body": body})

    def comments(self, number: int) -> Iterator[Comment]:
        """Yield the comments, oldest first."""
        ours = self.ours()
        for row in self.connection.pages(f"{self.at}/issues/{number}/comments"):
            author = (row.get("user") or {}).get("login") or ""
            yield Comment(row["id"], row["node_id"], row.get("body") or "", author, author == ours)

    def minimise(self, node_id: str) -> None:
        """Fold a comment as outdated. Raises NotFoundError where it is gone."""
        self.connection.graphql(MINIMIZE, id=node_id)

    def react(self, comment: int, content: Literal["+1", "-1", "confused", "eyes", "rocket", "hooray"]) -> None:
        self.connection.send("POST", f"{self.at}/issues/comments/{comment}/reactions", {"content": content})

    # --- checks on a commit -------------------------------------------------------------------------------------------

    def check(
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
        known: int | None = None,
    ) -> int:
        """Make or bring up to date the check `name` of a commit, and return its id for next time (`known`).

        Without `known` the App's check of that name and `external_id` is looked for first. With a plain token, which
        may make no checks, it is a commit status: the newest one of a name is what counts.
        """
        assert (status == "completed") == (conclusion is not None)
        if not self.connection.credentials.is_app:
            return self.commit_status(
                sha, name, COMMIT_STATES.get(conclusion or "", "failure") if conclusion else "pending", title, url
            )
        body: dict[str, Any] = {"name": name, "status": status, "external_id": external_id}
        body["output"] = {"title": title[:255], "summary": (summary or title)[:SUMMARY_LENGTH]}
        body |= {"conclusion": conclusion} if conclusion else {}
        body |= {"details_url": url} if url else {}
        known = known or self.find_check(sha, name, external_id)
        if known:
            return int(self.connection.send("PATCH", f"{self.at}/check-runs/{known}", body)["id"])
        return int(self.connection.send("POST", f"{self.at}/check-runs", {**body, "head_sha": sha})["id"])

    def find_check(self, sha: str, name: str, external_id: str = "") -> int | None:
        """Return the id of the App's own check of that name, the newest one."""
        address = f"{self.at}/commits/{sha}/check-runs"
        asked = {"check_name": name, "filter": "all"} | (
            {"app_id": settings.GITHUB_APP_ID} if settings.GITHUB_APP_ID.isdecimal() else {}
        )
        rows = self.connection.pages(address, "check_runs", **asked)
        return max((row["id"] for row in rows if (row.get("external_id") or "") == external_id), default=None)

    def commit_status(self, sha: str, name: str, state: str, description: str, url: str = "") -> int:
        body = {"state": state, "context": name, "description": description[:DESCRIPTION_LENGTH]}
        body |= {"target_url": url} if url else {}
        return int(self.connection.send("POST", f"{self.at}/statuses/{sha}", body)["id"])

    # --- people and pull requests -------------------------------------------------------------------------------------

    def permission(self, login: str) -> Permission:
        """Return what somebody may do in the repository."""
        try:
            answer = self.connection.get(f"{self.at}/collaborators/{quote(login, safe='')}/permission")
        except NotFoundError:
            return "none"
        # `permission` knows neither maintain nor triage; a role that an organisation made has a name of its own.
        for said in (answer.get("role_name"), answer.get("permission")):
            if said in LEVELS:
                return cast(Permission, said)
        return "none"

    def pull(self, number: int) -> dict[str, Any]:
        """Return the pull request as GitHub shows it now."""
        return self.connection.get(f"{self.at}/pulls/{number}")  # type: ignore[no-any-return]

    def files(self, number: int) -> Iterator[dict[str, Any]]:
        """Yield the pull request's files: filename, status, additions, deletions, patch. GitHub stops at 3000."""
        yield from self.connection.pages(f"{self.at}/pulls/{number}/files")

    def ours(self) -> str:
        """Return the login under which the site writes."""
        name = f"ours-{self.connection.credentials.identity}"
        login: str | None = caches["github"].get(name)
        if login is None:
            login = (
                f"{connect_app().get('/app')['slug']}[bot]"
                if self.connection.credentials.is_app
                else self.connection.get("/user")["login"]
            )
            caches["github"].set(name, login, LOGIN_CACHE_SECONDS)
        return login


def get_client(repository: str) -> Client:
    """Return a client for `owner/name`. Raises NotConnectedError, with a sentence, where the site has no access."""
    if get_app_token() is not None:
        return Client(repository, Connection(InstallationToken(connect_app(), get_installation(repository).number)))
    if settings.GITHUB_TOKEN:
        return Client(repository, Connection(PlainToken(settings.GITHUB_TOKEN)))
    raise NotConnectedError("The site is not connected to GitHub: run manage.py connect_github.")


def connect_app() -> Connection:
    """Return a connection in the App's own name."""
    token = get_app_token()
    if token is None:
        raise NotConnectedError("The site has no GitHub App: set GITHUB_APP_ID and GITHUB_PRIVATE_KEY.")
    return Connection(token)


def get_installation(repository: str) -> Installation:
    """Return the installation for a repository's owner, asking GitHub where it is not known."""
    owner = repository.partition("/")[0]
    found = Installation.objects.filter(account__iexact=owner).order_by("suspended", "-number").first()
    if found is None:
        found = fetch_installation(repository)
    if found.suspended:
        raise NotConnectedError(f"The GitHub App is suspended or was removed for {owner}.")
    return found


def fetch_installation(repository: str) -> Installation:
    try:
        answer = connect_app().get(f"/repos/{repository}/installation")
    except NotFoundError as error:
        raise NotConnectedError(f"The GitHub App is not installed for {repository}.") from error
    found, _ = Installation.objects.update_or_create(
        number=answer["id"],
        defaults={"account": answer["account"]["login"], "suspended": bool(answer.get("suspended_at"))},
    )
    return found


def get_main_repository() -> str:
    """Return `owner/name` of the repository whose pull requests are entries; empty where it is not on GitHub."""
    if settings.GITHUB_REPOSITORY:
        return settings.GITHUB_REPOSITORY
    address = settings.MAIN_REPOSITORY.replace("git@github.com:", "https://github.com/")
    parts = urlsplit(address)
    names = parts.path.removesuffix("/").removesuffix(".git").strip("/").split("/")
    return "/".join(names) if parts.hostname == "github.com" and len(names) == 2 else ""
