"""Objects and webhook payloads of GitHub with every field that its documentation calls required."""

from __future__ import annotations

import itertools
from typing import Any

NOW = "2026-11-21T18:00:00Z"
API = "https://api.github.com"
ACTIONS = (
    "assigned",
    "auto_merge_disabled",
    "auto_merge_enabled",
    "closed",
    "converted_to_draft",
    "demilestoned",
    "dequeued",
    "edited",
    "enqueued",
    "labeled",
    "locked",
    "milestoned",
    "opened",
    "ready_for_review",
    "reopened",
    "review_request_removed",
    "review_requested",
    "synchronize",
    "unassigned",
    "unlabeled",
    "unlocked",
)
"""Actions of the event `pull_request`."""
ADDRESSES = {
    "archive": "{archive_format}{/ref}",
    "assignees": "{/user}",
    "blobs": "{/sha}",
    "branches": "{/branch}",
    "collaborators": "{/collaborator}",
    "comments": "{/number}",
    "commits": "{/sha}",
    "compare": "/{base}...{head}",
    "contents": "/{+path}",
    "git_commits": "{/sha}",
    "git_refs": "{/sha}",
    "git_tags": "{/sha}",
    "issue_comment": "{/number}",
    "issue_events": "{/number}",
    "keys": "{/key_id}",
    "labels": "{/name}",
    "milestones": "{/number}",
    "notifications": "{?since,all,participating}",
    "releases": "{/id}",
    "trees": "{/sha}",
    **dict.fromkeys(("contributors", "deployments", "downloads", "events", "forks", "languages", "merges"), ""),
    **dict.fromkeys(("stargazers", "subscribers", "subscription", "tags", "teams"), ""),
}
"""Templates of URLs below that of a repository."""
REACTIONS = ("+1", "-1", "laugh", "hooray", "confused", "heart", "rocket", "eyes")
_ids = itertools.count(5_000_000_000)  # beyond 32 bits, as GitHub's are by now


def new_id() -> int:
    return next(_ids)


def user(login: str = "ada", number: int = 583231, kind: str = "User") -> dict[str, Any]:
    at = f"{API}/users/{login}"
    names = ("followers", "subscriptions", "organizations", "repos", "received_events")
    return {
        "login": login,
        "id": number,
        "node_id": f"U_{number}",
        "avatar_url": f"https://avatars.githubusercontent.com/u/{number}?v=4",
        "gravatar_id": "",
        "url": at,
        "html_url": f"https://github.com/{login}",
        "following_url": f"{at}/following{{/other_user}}",
        "gists_url": f"{at}/gists{{/gist_id}}",
        "starred_url": f"{at}/starred{{/owner}}{{/repo}}",
        "events_url": f"{at}/events{{/privacy}}",
        **{f"{name}_url": f"{at}/{name}" for name in names},
        "type": kind,
        "user_view_type": "public",
        "site_admin": False,
    }


def repository(
    full_name: str, *, number: int = 1296269, fork: bool = False, clone_url: str = "", branch: str = "main"
) -> dict[str, Any]:
    """Return a repository. `clone_url` may be that of a local folder from which git fetches."""
    owner, _, name = full_name.partition("/")
    at = f"{API}/repos/{full_name}"
    return {
        "id": number,
        "node_id": f"R_{number}",
        "name": name,
        "full_name": full_name,
        "private": False,
        "owner": user(owner, 9919, "Organization"),
        "html_url": f"https://github.com/{full_name}",
        "description": None,
        "fork": fork,
        "url": at,
        "hooks_url": f"{at}/hooks",
        "issues_url": f"{at}/issues{{/number}}",
        "pulls_url": f"{at}/pulls{{/number}}",
        "statuses_url": f"{at}/statuses/{{sha}}",
        "created_at": "2011-01-26T19:01:12Z",
        "updated_at": NOW,
        "pushed_at": NOW,
        "git_url": f"git://github.com/{full_name}.git",
        "ssh_url": f"git@github.com:{full_name}.git",
        "clone_url": clone_url or f"https://github.com/{full_name}.git",
        "svn_url": f"https://github.com/{full_name}",
        "homepage": None,
        "size": 100,
        "stargazers_count": 0,
        "watchers_count": 0,
        "watchers": 0,
        "language": None,
        "has_issues": True,
        "has_projects": True,
        "has_downloads": True,
        "has_wiki": True,
        "has_pages": False,
        "has_discussions": False,
        "forks_count": 0,
        "forks": 0,
        "mirror_url": None,
        "archived": False,
        "disabled": False,
        "open_issues_count": 0,
        "open_issues": 0,
        "license": None,
        "allow_forking": True,
        "is_template": False,
        "web_commit_signoff_required": False,
        "topics": [],
        "visibility": "public",
        "default_branch": branch,
        **{f"{name}_url": f"{at}/{name}{template}" for name, template in ADDRESSES.items()},
    }


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
    at, page = f"{repo['url']}/pulls/{number}", f"{repo['html_url']}/pull/{number}"
    issue = f"{repo['url']}/issues/{number}"
    author = author or user()
    return {
        "url": at,
        "id": new_id(),
        "node_id": f"PR_{number}",
        "html_url": page,
        "diff_url": f"{page}.diff",
        "patch_url": f"{page}.patch",
        "issue_url": issue,
        "number": number,
        "state": "open",
        "locked": False,
        "title": title,
        "user": author,
        "body": body,
        "created_at": NOW,
        "updated_at": updated_at,
        "closed_at": None,
        "merged_at": None,
        "merge_commit_sha": None,
        "assignee": None,
        "assignees": [],
        "requested_reviewers": [],
        "requested_teams": [],
        "labels": [],
        "milestone": None,
        "draft": draft,
        "commits_url": f"{at}/commits",
        "review_comments_url": f"{at}/comments",
        "review_comment_url": f"{repo['url']}/pulls/comments{{/number}}",
        "comments_url": f"{issue}/comments",
        "statuses_url": f"{repo['url']}/statuses/{sha}",
        "head": branch(head or repo, ref, sha, author if head else repo["owner"]),
        "base": branch(repo, repo["default_branch"], base_sha, repo["owner"]),
        "_links": {
            "self": {"href": at},
            "html": {"href": page},
            "issue": {"href": issue},
            "comments": {"href": f"{issue}/comments"},
            "commits": {"href": f"{at}/commits"},
            "review_comments": {"href": f"{at}/comments"},
            "review_comment": {"href": f"{repo['url']}/pulls/comments{{/number}}"},
            "statuses": {"href": f"{repo['url']}/statuses/{sha}"},
        },
        "author_association": "CONTRIBUTOR",
        "auto_merge": None,
        "active_lock_reason": None,
        "merged": False,
        "mergeable": None,
        "rebaseable": None,
        "mergeable_state": "unknown",
        "merged_by": None,
        "comments": 0,
        "review_comments": 0,
        "maintainer_can_modify": True,
        "commits": 1,
        "additions": 3,
        "deletions": 1,
        "changed_files": 1,
    }


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
    return build_payload(
        of["base"]["repo"],
        sender or user(),
        installation,
        action=action,
        number=of["number"],
        pull_request=of,
        **fields,
    )


def comment(
    repo: dict[str, Any], number: int, author: dict[str, Any], body: str, app: int | None = None
) -> dict[str, Any]:
    made = new_id()
    at = f"{repo['url']}/issues"
    return {
        "url": f"{at}/comments/{made}",
        "html_url": f"{repo['html_url']}/pull/{number}#issuecomment-{made}",
        "issue_url": f"{at}/{number}",
        "id": made,
        "node_id": f"IC_{made}",
        "user": author,
        "created_at": NOW,
        "updated_at": NOW,
        "author_association": "CONTRIBUTOR",
        "body": body,
        "reactions": reactions(f"{at}/comments/{made}"),
        "performed_via_github_app": {"id": app} if app else None,
    }


def reactions(to: str) -> dict[str, Any]:
    return {"url": f"{to}/reactions", "total_count": 0, **dict.fromkeys(REACTIONS, 0)}


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
    names = ("id", "node_id", "number", "title", "user", "labels", "state", "locked", "assignee", "assignees")
    issue = {
        **{
            name: pull_fields[name]
            for name in (*names, "milestone", "created_at", "updated_at", "closed_at", "body", "draft")
        },
        "url": pull_fields["issue_url"],
        "repository_url": repo["url"],
        **{f"{name}_url": f"{pull_fields['issue_url']}/{name}" for name in ("comments", "events", "labels")},
        "reactions": reactions(pull_fields["issue_url"]),
        "html_url": pull_fields["html_url"],
        "comments": 1,
        "author_association": pull_fields["author_association"],
        "active_lock_reason": None,
        "pull_request": {name: pull_fields[name] for name in ("url", "html_url", "diff_url", "patch_url", "merged_at")},
    }
    return build_payload(
        repo, comment_fields["user"], installation, action=action, issue=issue, comment=comment_fields, **fields
    )


def push(
    repo: dict[str, Any], ref: str, before: str, after: str, *, installation: int | None = 1, by: str = "ada"
) -> dict[str, Any]:
    person = {"name": by, "email": f"{by}@example.org", "date": NOW, "username": by}
    commit = {
        "id": after,
        "tree_id": "c" * 40,
        "distinct": True,
        "message": "An idea",
        "timestamp": NOW,
        "author": person,
    }
    commit |= {
        "committer": person,
        "url": f"{repo['html_url']}/commit/{after}",
        "added": [],
        "removed": [],
        "modified": [],
    }
    deleted = after == "0" * 40
    return build_payload(
        repo,
        user(by),
        installation,
        ref=ref,
        before=before,
        after=after,
        created=before == "0" * 40,
        deleted=deleted,
        forced=False,
        base_ref=None,
        compare=f"{repo['html_url']}/compare/{before[:12]}...{after[:12]}",
        commits=[] if deleted else [commit],
        head_commit=None if deleted else commit,
        pusher={"name": by, "email": None},
    )
