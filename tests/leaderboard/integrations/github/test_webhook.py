"""Webhook deliveries: accepted, rejected and replayed ones, and what is done with each documented payload."""

from __future__ import annotations

import copy
import hashlib
import hmac
import json
import socket
from typing import Any
from uuid import uuid4

import httpx
import pytest
from django.http import HttpResponse
from django.test import Client

from leaderboard import outbox
from leaderboard.integrations.github import client as github_client
from leaderboard.integrations.github import deliveries
from leaderboard.integrations.github.connection import NotConnectedError
from leaderboard.models import Installation, OutboxMessage, PullRequest
from leaderboard.outbox import PermanentError, RetryLater
from tests.support import github_payloads as payloads
from tests.support.github_server import INSTALLATION, GitHub
from tests.support.waits import WAIT_SECONDS

pytestmark = [pytest.mark.processes, pytest.mark.sql]

SECRET = "between us"
WEBHOOK = "/github/webhook"
REPOSITORY = payloads.repository("trains/daily")


@pytest.fixture(autouse=True)
def _webhook_secret(settings: Any) -> None:
    settings.GITHUB_WEBHOOK_SECRET = SECRET


def sign_body(body: bytes, secret: str = SECRET) -> str:
    return f"sha256={hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}"


def build_headers(body: bytes, event: str = "pull_request", guid: str = "", **more: str) -> dict[str, str]:
    known = {"X-GitHub-Event": event, "X-GitHub-Delivery": guid or str(uuid4()), "X-Hub-Signature-256": sign_body(body)}
    return {**known, **{name.replace("_", "-"): value for name, value in more.items()}}


def post_delivery(client: Client, body: bytes, content_type: str = "application/json", **more: str) -> HttpResponse:
    return client.post(WEBHOOK, body, content_type=content_type, headers=build_headers(body, **more))  # type: ignore[return-value]


def build_body(action: str = "opened", **fields: Any) -> bytes:
    pull = payloads.pull(REPOSITORY, 7, "a" * 40)
    return json.dumps(payloads.pull_request(action, pull, **fields)).encode()


# --- before the response ---------------------------------------------------------------------------------------------


def test_delivery_before_response_uses_only_the_database(
    client: Client, transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_error(*arguments: Any) -> None:
        raise AssertionError(f"a connection to {arguments[1:]}")

    monkeypatch.setattr(socket.socket, "connect", raise_error)
    monkeypatch.setattr(socket.socket, "connect_ex", raise_error)
    monkeypatch.setattr("celery.app.base.Celery.send_task", raise_error)
    assert post_delivery(client, build_body()).status_code == 202
    assert OutboxMessage.objects.get().state == "pending"


# --- forged ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "signature",
    [
        "",
        "sha256=",
        "sha256=" + "0" * 64,
        "sha1=" + "0" * 40,
        sign_body(build_body().replace(b"ada", b"eve")),
        sign_body(build_body(), "another secret"),
        sign_body(build_body()).upper(),
        sign_body(build_body()) + "0",
        sign_body(build_body())[:-1],
        "sha256=\N{LATIN SMALL LETTER E WITH ACUTE}",
    ],
)
def test_delivery_with_forged_signature_is_rejected(client: Client, db: None, signature: str) -> None:
    response = post_delivery(client, build_body(), X_Hub_Signature_256=signature)
    assert response.status_code == 401
    assert "GITHUB_WEBHOOK_SECRET" in response.json()["detail"]
    assert not OutboxMessage.objects.exists()


def test_delivery_to_site_without_secret_is_rejected(client: Client, db: None, settings: Any) -> None:
    settings.GITHUB_WEBHOOK_SECRET = ""
    body = build_body()
    response = post_delivery(client, body, X_Hub_Signature_256=sign_body(body, ""))
    assert response.status_code == 503
    assert not OutboxMessage.objects.exists()


# --- oversized -------------------------------------------------------------------------------------------------------


def test_delivery_over_size_limit_is_not_read_to_its_end(site_url: str, settings: Any) -> None:
    settings.GITHUB_WEBHOOK_MAX_BYTES = 30_000
    body = b"x" * 40_000
    headers = {**build_headers(body), "Content-Type": "application/json"}
    assert httpx.post(f"{site_url}{WEBHOOK}", content=body, headers=headers, timeout=WAIT_SECONDS).status_code == 413

    def generate_chunks() -> Any:
        for _ in range(40):
            yield b"x" * 1000

    response = httpx.post(f"{site_url}{WEBHOOK}", content=generate_chunks(), headers=headers, timeout=WAIT_SECONDS)
    assert response.status_code == 413
    assert not OutboxMessage.objects.exists()


# --- malformed -------------------------------------------------------------------------------------------------------


NOT_OBJECTS = (
    b" ",
    b"{",
    b"null",
    b"[]",
    b'"opened"',
    b"\xff\xfe{}",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"1" * 10_000,
)
NO_NUMBERS = tuple(b'{"action": %s}' % number for number in (b"NaN", b"Infinity", b"1e999"))


@pytest.mark.parametrize("body", [*NOT_OBJECTS, *NO_NUMBERS])
def test_delivery_with_malformed_body_is_rejected(client: Client, db: None, body: bytes) -> None:
    response = post_delivery(client, body)
    assert (response.status_code, list(response.json())) == (400, ["detail"])
    assert not OutboxMessage.objects.exists()


def test_webhook_accepts_json_by_post_without_csrf_token_only(db: None) -> None:
    strict = Client(enforce_csrf_checks=True)
    assert strict.get(WEBHOOK).status_code == 405
    form = post_delivery(strict, b"payload=%7B%7D", content_type="application/x-www-form-urlencoded")
    assert (form.status_code, form.json()["detail"]) == (415, "Set the webhook's content type to application/json.")
    response = post_delivery(strict, build_body())
    assert (response.status_code, response.json()) == (202, {"detail": "Thank you."})
    delivery = OutboxMessage.objects.get()
    assert (delivery.kind, delivery.state, delivery.payload["event"]) == ("github.delivery", "pending", "pull_request")
    assert delivery.payload["body"]["pull_request"]["number"] == 7


def test_delivery_with_unstorable_characters_replaces_them(client: Client, db: None) -> None:
    body = rb'{"action": "a\u0000b", "pull_request": {"title\ud800": "\udfff\ud83d\ude82"}}'
    assert post_delivery(client, body).status_code == 202
    stored = OutboxMessage.objects.get().payload["body"]
    assert stored == {"action": "a?b", "pull_request": {"title?": "?\N{STEAM LOCOMOTIVE}"}}


# --- replayed and unknown --------------------------------------------------------------------------------------------


def test_replay_of_delivery_has_no_effect(client: Client, db: None) -> None:
    body = build_body()
    assert post_delivery(client, body, guid="one").status_code == 202
    before = OutboxMessage.objects.values().get()
    response = post_delivery(client, body, guid="one")
    assert (response.status_code, response.json()["detail"]) == (200, "This delivery has been here before.")
    assert post_delivery(client, body, guid="two", event="issue_comment").status_code == 200
    assert OutboxMessage.objects.values().get() == before


def test_replay_after_payload_deletion_has_no_effect(client: Client, db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    body = build_body()
    post_delivery(client, body)
    monkeypatch.setattr(deliveries, "PAYLOAD_RETENTION", -deliveries.PAYLOAD_RETENTION)
    assert deliveries.delete_old_payloads() == 0
    for state in (OutboxMessage.State.FAILED, OutboxMessage.State.DONE):
        OutboxMessage.objects.update(state=state)
        deliveries.delete_old_payloads()
        assert OutboxMessage.objects.get().payload == {}
        assert post_delivery(client, body).status_code == 200


def test_redelivery_of_failed_delivery_is_processed_again(client: Client, db: None) -> None:
    body = build_body()
    post_delivery(client, body)
    OutboxMessage.objects.update(state=OutboxMessage.State.FAILED, attempts=8)
    assert post_delivery(client, body).status_code == 202
    assert OutboxMessage.objects.values_list("state", "attempts").get() == ("pending", 0)


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
