"""Webhook deliveries are processed for every documented payload, and retried a few times."""

from __future__ import annotations

import copy
from typing import Any
from uuid import uuid4

import pytest
from django.utils.module_loading import import_string

from leaderboard import outbox
from leaderboard.integrations.github import client as github_client
from leaderboard.integrations.github import deliveries
from leaderboard.integrations.github.connection import NotConnectedError
from leaderboard.integrations.github.deliveries import EVENTS
from leaderboard.models import Installation, OutboxMessage, PullRequest
from leaderboard.outbox import PermanentError, RetryLater
from tests.support import github_payloads as payloads
from tests.support.github_server import INSTALLATION, GitHub

pytestmark = [pytest.mark.processes, pytest.mark.sql]

REPOSITORY = payloads.repository("trains/daily")


def process_delivery(event: str, payload: dict[str, Any]) -> OutboxMessage:
    """Store and process a delivery."""
    delivery = deliveries.store_delivery(event, str(uuid4()).encode(), payload)
    outbox.process_message(delivery.pk)
    delivery.refresh_from_db()
    return delivery


@pytest.mark.parametrize(
    ("error", "attempts", "state", "problem"),
    [
        (RuntimeError("odd"), 0, "pending", "RuntimeError: odd"),
        (RuntimeError("odd"), deliveries.MAX_ATTEMPTS - 1, "failed", "RuntimeError: odd"),
        (RetryLater("limit"), 3 * deliveries.MAX_ATTEMPTS, "pending", "limit"),
        (PermanentError("no"), 0, "failed", "no"),
    ],
)
def test_delivery_whose_handler_fails_is_retried_a_few_times(
    db: None, monkeypatch: pytest.MonkeyPatch, error: Exception, attempts: int, state: str, problem: str
) -> None:
    def handle(payload: dict[str, Any]) -> str | None:
        raise error

    monkeypatch.setattr(deliveries, "import_string", lambda path: handle)
    delivery = deliveries.store_delivery("pull_request", b"1", {})
    OutboxMessage.objects.update(attempts=attempts)
    outbox.process_message(delivery.pk)
    assert OutboxMessage.objects.values_list("state", "problem").get() == (state, problem)


# --- installations ---------------------------------------------------------------------------------------------------


def store_installation_delivery(action: str, **fields: Any) -> OutboxMessage:
    app = {"id": INSTALLATION, "account": payloads.user("trains", 9919, "Organization"), "suspended_at": None}
    payload = {"action": action, "installation": app, "sender": payloads.user("mara"), **fields}
    return process_delivery("installation", payload)


def test_installation_events_store_whether_the_app_is_suspended(github: GitHub) -> None:
    assert store_installation_delivery("created", repositories=[], requester=None).state == "done"
    app = Installation.objects.get(number=INSTALLATION)
    assert (app.account, app.suspended) == ("trains", False)
    assert github_client.get_client("trains/daily")
    assert github.count_requests("GET", "/installation$") == 0

    for disabling, enabling in (("suspend", "unsuspend"), ("deleted", "created")):
        store_installation_delivery(disabling)
        with pytest.raises(NotConnectedError, match="suspended or was removed"):
            github_client.get_client("trains/daily")
        store_installation_delivery(enabling)
        assert github_client.get_client("trains/daily")
    store_installation_delivery("new_permissions_accepted")
    assert Installation.objects.count() == 1


def test_installation_of_enterprise_or_without_account_is_accepted(db: None) -> None:
    payload = {"action": "created", "installation": {"id": 5, "account": {"slug": "rail", "id": 1}}}
    assert import_string(EVENTS["installation"])(payload) is None
    assert Installation.objects.get().account == "rail"
    assert import_string(EVENTS["installation"])({"action": "renamed", "installation": {"id": 5}})


# --- documented payloads ---------------------------------------------------------------------------------------------

NULL = "body user head.repo head.user head.label base.user draft merged mergeable maintainer_can_modify"
NULLABLE = tuple(("pull_request", *name.split(".")) for name in NULL.split())
"""Fields that may be null, beside those that are null in `payloads.pull` already."""
ABSENT = (
    "active_lock_reason additions assignees auto_merge changed_files comments commits deletions draft mergeable merged "
    "maintainer_can_modify mergeable_state merged_by rebaseable requested_reviewers requested_teams review_comments"
)
OPTIONAL = (("installation",), *(("pull_request", name) for name in ABSENT.split()))
"""Fields that payloads of some actions lack."""


def get_parent(payload: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    for name in path[:-1]:
        payload = payload[name]
    return payload


def build_sparse_payload(action: str, number: int, *null: tuple[str, ...]) -> dict[str, Any]:
    """Return a payload of an action with these fields null and the optional ones missing."""
    head = payloads.repository("ada/daily", number=2**40, fork=True)
    pull = payloads.pull(copy.deepcopy(REPOSITORY), number, "a" * 40, title="T" * 256, head=head)
    if action == "closed":
        pull |= {"state": "closed", "closed_at": payloads.NOW, "merged_at": payloads.NOW}
    payload = {**payloads.pull_request(action, pull), "enterprise": {"id": 1, "slug": "rail", "name": "Rail"}}
    for path in null:
        get_parent(payload, path)[path[-1]] = None
    for path in OPTIONAL:
        get_parent(payload, path).pop(path[-1], None)
    return payload


@pytest.mark.parametrize("action", payloads.ACTIONS)
def test_pull_request_delivery_without_what_may_be_missing_is_accepted(db: None, settings: Any, action: str) -> None:
    settings.GITHUB_REPOSITORY = "trains/daily"
    for number, null in enumerate(((), *((path,) for path in NULLABLE), NULLABLE), start=2**31 - 20):
        delivery = process_delivery("pull_request", build_sparse_payload(action, number, *null))
        assert (delivery.state, delivery.problem) == ("done", ""), null
        assert PullRequest.objects.filter(number=number).exists()


@pytest.mark.parametrize("author", [None, payloads.user("ada"), payloads.user("dependabot[bot]", 7, "Bot")])
def test_comment_delivery_with_any_author_and_text_is_accepted(github: GitHub, author: dict[str, Any] | None) -> None:
    pull = payloads.pull(REPOSITORY, 7, "a" * 40)
    for action in ("created", "edited", "deleted", "pinned"):
        for text in ("Nice idea", "/help", "/no such thing", "", None):
            comment = {**payloads.comment(REPOSITORY, 7, payloads.user(), text or ""), "user": author, "body": text}
            payload = payloads.issue_comment(action, pull, comment)
            payload["issue"] |= {"user": author, "milestone": None}
            assert process_delivery("issue_comment", payload).state == "done"
    del payload["issue"]["pull_request"]  # a comment on an issue
    assert process_delivery("issue_comment", payload).result["ignored"]
