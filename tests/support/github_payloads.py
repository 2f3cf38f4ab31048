"""Objects and webhook payloads of GitHub, from one example of each with every field that its documentation requires."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

EXAMPLES: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text())
NOW = "2026-11-21T18:00:00Z"
ACTIONS: list[str] = EXAMPLES["actions"]
"""Actions of the event `pull_request`."""
_ids = itertools.count(5_000_000_000)  # beyond 32 bits, as GitHub's are by now


def new_id() -> int:
    return next(_ids)


def build_object(kind: str, names: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return the example of a kind with other names and these fields."""
    text = json.dumps(EXAMPLES[kind])
    for example, name in names.items():
        text = text.replace(example, str(name))
    return {**json.loads(text), **fields}


def user(login: str = "ada", number: int = 583231, kind: str = "User") -> dict[str, Any]:
    return build_object("user", {"octocat": login, "583231": number}, type=kind)


def repository(
    full_name: str, *, number: int = 1296269, fork: bool = False, clone_url: str = "", branch: str = "main"
) -> dict[str, Any]:
    """Return a repository. `clone_url` may be that of a local folder from which git fetches."""
    owner, _, name = full_name.partition("/")
    names = {"octocat/Hello-World": full_name, "Hello-World": name, "1296269": number}
    made = build_object("repository", names, owner=user(owner, 9919, "Organization"), fork=fork, default_branch=branch)
    return {**made, "clone_url": clone_url or made["clone_url"]}


def branch(repo: dict[str, Any] | None, ref: str, sha: str, owner: dict[str, Any] | None) -> dict[str, Any]:
    """Return the `head` or `base` of a pull request; the repository is null if the fork was deleted."""
    label = f"{owner['login']}:{ref}" if owner else f"unknown:{ref}"
    return {"label": label, "ref": ref, "sha": sha, "user": owner, "repo": repo}


def pull(
    repo: dict[str, Any],
    number: int,
    sha: str,
    *,
    title: str = "Smeared keys",
    body: str | None = None,
    author: dict[str, Any] | None = None,
    head: dict[str, Any] | None = None,
    ref: str = "idea",
    base_sha: str = "b" * 40,
    draft: bool = False,
    updated_at: str = NOW,
) -> dict[str, Any]:
    """Return an open pull request. `head` is the fork; the default is the repository itself."""
    author = author or user()
    return build_object(
        "pull",
        {"octocat/Hello-World": repo["full_name"], "1347": number, "6dcb09b5b57875f334f61aebed695e2e4193db5e": sha},
        id=new_id(),
        number=number,
        title=title,
        user=author,
        body=body,
        updated_at=updated_at,
        draft=draft,
        head=branch(head or repo, ref, sha, author if head else repo["owner"]),
        base=branch(repo, repo["default_branch"], base_sha, repo["owner"]),
    )


def build_payload(
    repo: dict[str, Any], sender: dict[str, Any], installation: int | None, **fields: Any
) -> dict[str, Any]:
    """Return a payload with the common fields and `fields`."""
    installation_fields = {"installation": {"id": installation, "node_id": f"I_{installation}"}} if installation else {}
    return {**fields, "repository": repo, "sender": sender, **installation_fields}


def pull_request(
    action: str,
    of: dict[str, Any],
    *,
    installation: int | None = 1,
    sender: dict[str, Any] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """Return a payload of `pull_request`; `fields` are those of its action (`changes`, `before`, `after`, `label`)."""
    fields |= {"action": action, "number": of["number"], "pull_request": of}
    return build_payload(of["base"]["repo"], sender or user(), installation, **fields)


def comment(
    repo: dict[str, Any], number: int, author: dict[str, Any], body: str, app: int | None = None
) -> dict[str, Any]:
    made, by = new_id(), {"id": app} if app else None
    names = {"octocat/Hello-World": repo["full_name"], "/1347": f"/{number}", "5000000000": made}
    return build_object("comment", names, id=made, user=author, body=body, performed_via_github_app=by)


def issue_comment(
    action: str,
    pull_fields: dict[str, Any],
    comment_fields: dict[str, Any],
    *,
    installation: int | None = 1,
    **fields: Any,
) -> dict[str, Any]:
    """Return a payload of `issue_comment` on a pull request, which has the form of an issue here."""
    repo = pull_fields["base"]["repo"]
    names = {"octocat/Hello-World": repo["full_name"], "1347": pull_fields["number"]}
    shared = (
        "id node_id number title user labels state locked assignee assignees milestone created_at updated_at closed_at "
        "body draft html_url author_association"
    )
    issue = build_object("issue", names, **{name: pull_fields[name] for name in shared.split()})
    links = {name: pull_fields[name] for name in ("url", "html_url", "diff_url", "patch_url", "merged_at")}
    fields |= {"action": action, "issue": {**issue, "pull_request": links}, "comment": comment_fields}
    return build_payload(repo, comment_fields["user"], installation, **fields)
