"""The webhook view: accepted, rejected and replayed deliveries."""

from __future__ import annotations

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

from leaderboard.integrations.github import deliveries
from leaderboard.models import OutboxMessage
from tests.support import github_payloads as payloads
from tests.support.waits import WAIT_SECONDS

pytestmark = pytest.mark.processes

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

    # A body without Content-Length is not read at all.
    response = httpx.post(f"{site_url}{WEBHOOK}", content=generate_chunks(), headers=headers, timeout=WAIT_SECONDS)
    assert (response.status_code, "Content-Length" in response.json()["detail"]) == (411, True)
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


@pytest.mark.parametrize("event", ["", "pull request", "x" * 61])
def test_delivery_with_invalid_event_name_is_rejected(client: Client, db: None, event: str) -> None:
    assert post_delivery(client, build_body(), X_GitHub_Event=event).status_code == 400
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


@pytest.mark.parametrize("event", ["gollum", "star", "ping", "workflow_run", "an_event_of_next_year"])
def test_delivery_of_unknown_event_is_not_stored(client: Client, db: None, event: str) -> None:
    assert post_delivery(client, b'{"zen": "Keep it logically awesome."}', event=event).status_code == 202
    assert not OutboxMessage.objects.exists()
