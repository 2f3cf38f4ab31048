"""What GitHub tells the site: what is taken, what is refused, and what a replay does."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from django.http import HttpResponse
from django.test import Client
from hypothesis import HealthCheck, given
from hypothesis import settings as thoroughness
from hypothesis import strategies as st

from leaderboard.integrations.github import deliveries
from leaderboard.models import Delivery
from tests.support import github_payloads as payloads
from tests.support.github_server import GitHub

SECRET = "between us"
WEBHOOK = "/github/webhook"
REPOSITORY = payloads.repository("trains/daily")


@pytest.fixture(autouse=True)
def secret(settings: Any) -> None:
    settings.GITHUB_WEBHOOK_SECRET = SECRET


def signed(body: bytes, secret: str = SECRET) -> str:
    return f"sha256={hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}"


def headers(body: bytes, event: str = "pull_request", guid: str = "", **more: str) -> dict[str, str]:
    known = {"X-GitHub-Event": event, "X-GitHub-Delivery": guid or str(uuid4()), "X-Hub-Signature-256": signed(body)}
    return {**known, **{name.replace("_", "-"): value for name, value in more.items()}}


def post(client: Client, body: bytes, content_type: str = "application/json", **more: str) -> HttpResponse:
    return client.post(WEBHOOK, body, content_type=content_type, headers=headers(body, **more))  # type: ignore[return-value]


def body_of(action: str = "opened", **fields: Any) -> bytes:
    pull = payloads.pull(REPOSITORY, 7, "a" * 40)
    return json.dumps(payloads.pull_request(action, pull, **fields)).encode()


def test_a_delivery_is_kept_and_thanked_for(client: Client, db: None) -> None:
    answer = post(client, body_of(), guid="72d3162e-cc78-11e3-81ab-4c9367dc0958")
    assert (answer.status_code, answer.json()) == (202, {"detail": "Thank you."})
    kept = Delivery.objects.get()
    assert (kept.guid, kept.event, kept.action) == ("72d3162e-cc78-11e3-81ab-4c9367dc0958", "pull_request", "opened")
    assert (kept.state, kept.subject) == ("new", "trains/daily#7")
    assert kept.payload["pull_request"]["number"] == 7


# --- while GitHub waits -----------------------------------------------------------------------------------------------


def test_nothing_but_the_database_is_asked_while_github_waits(
    client: Client, transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(*arguments: Any) -> None:
        raise AssertionError(f"a connection to {arguments[1:]}")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket.socket, "connect_ex", connect)
    monkeypatch.setattr("celery.app.base.Celery.send_task", connect)
    assert post(client, body_of()).status_code == 202
    assert Delivery.objects.get().state == "new"


def test_github_is_answered_over_the_socket_without_a_broker(
    site_url: str, github: GitHub, settings: Any, tmp_path: Path
) -> None:
    settings.CELERY_BROKER_URL = f"redis+socket://{tmp_path / 'nobody.sock'}"
    github.hook["url"] = f"{site_url}{WEBHOOK}"
    github.open("trains/daily", 7, "a" * 40)
    first = github.deliveries[0]
    assert first["status_code"] == 202
    assert github.redeliver(first["id"]) == 200
    assert Delivery.objects.filter(guid=first["guid"]).count() == 1


# --- forged -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "signature",
    [
        "",
        "sha256=",
        "sha256=" + "0" * 64,
        "sha1=" + "0" * 40,
        signed(b"something else"),
        signed(body_of(), "another secret"),
        signed(body_of()).upper(),
        signed(body_of()) + "0",
        signed(body_of())[:-1],
        "sha256=\N{LATIN SMALL LETTER E WITH ACUTE}",
    ],
)
def test_a_forged_delivery_is_refused(client: Client, db: None, signature: str) -> None:
    answer = post(client, body_of(), X_Hub_Signature_256=signature)
    assert answer.status_code == 401
    assert "GITHUB_WEBHOOK_SECRET" in answer.json()["detail"]
    assert not Delivery.objects.exists()


def test_a_body_that_was_changed_on_the_way_is_refused(client: Client, db: None) -> None:
    body = body_of()
    said = headers(body)
    answer = client.post(WEBHOOK, body.replace(b"ada", b"eve"), content_type="application/json", headers=said)
    assert answer.status_code == 401
    del said["X-Hub-Signature-256"]
    assert client.post(WEBHOOK, body, content_type="application/json", headers=said).status_code == 401


def test_signatures_are_compared_in_constant_time(client: Client, db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: compared.append((a, b)) or a == b)
    body = body_of()
    post(client, body)
    assert compared == [(signed(body).encode(), signed(body).encode())]


@given(body=st.binary(max_size=200), signature=st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=80))
@thoroughness(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_signature_but_the_right_one_opens(client: Client, db: None, body: bytes, signature: str) -> None:
    answer = post(client, body, X_Hub_Signature_256=signature)
    assert answer.status_code == (401 if signature != signed(body) else 400)
    assert not Delivery.objects.exists()


def test_a_site_without_a_secret_takes_nothing(client: Client, db: None, settings: Any) -> None:
    settings.GITHUB_WEBHOOK_SECRET = ""
    body = body_of()
    answer = post(client, body, X_Hub_Signature_256=signed(body, ""))
    assert answer.status_code == 503
    assert not Delivery.objects.exists()


# --- oversized --------------------------------------------------------------------------------------------------------


def test_an_oversized_delivery_is_refused(client: Client, db: None, settings: Any) -> None:
    settings.GITHUB_WEBHOOK_MAX_BYTES = 30_000
    assert post(client, body_of()).status_code == 202
    assert post(client, body_of(padding="x" * 30_000)).status_code == 413
    assert Delivery.objects.count() == 1


def test_the_largest_text_that_github_takes_fits(client: Client, db: None, settings: Any) -> None:
    longest = "\N{STEAM LOCOMOTIVE}" * 65_536
    pull = payloads.pull(REPOSITORY, 7, "a" * 40, body=longest)
    told = payloads.pull_request("edited", pull, changes={"body": {"from": longest}})
    assert post(client, json.dumps(told).encode()).status_code == 202
    assert settings.GITHUB_WEBHOOK_MAX_BYTES <= settings.DATA_UPLOAD_MAX_MEMORY_SIZE


def test_an_oversized_delivery_is_not_read_to_its_end(site_url: str, settings: Any) -> None:
    settings.GITHUB_WEBHOOK_MAX_BYTES = 30_000
    body = b"x" * 40_000
    told = {**headers(body), "Content-Type": "application/json"}
    assert httpx.post(f"{site_url}{WEBHOOK}", content=body, headers=told).status_code == 413

    def pieces() -> Any:
        for _ in range(40):
            yield b"x" * 1000

    # A body without Content-Length is not read at all, so its signature is wrong.
    assert httpx.post(f"{site_url}{WEBHOOK}", content=pieces(), headers=told).status_code == 401
    assert not Delivery.objects.exists()


# --- malformed --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b" ",
        b"{",
        b"null",
        b"[]",
        b'"opened"',
        b"\xff\xfe{}",
        b'{"action": NaN}',
        b'{"action": Infinity}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"1" * 10_000,
    ],
)
def test_a_malformed_delivery_is_refused(client: Client, db: None, body: bytes) -> None:
    answer = post(client, body)
    assert (answer.status_code, list(answer.json())) == (400, ["detail"])
    assert not Delivery.objects.exists()


@pytest.mark.parametrize(
    "more",
    [
        {"X_GitHub_Event": ""},
        {"X_GitHub_Event": "pull request"},
        {"X_GitHub_Event": "x" * 61},
        {"X_GitHub_Delivery": ""},
        {"X_GitHub_Delivery": "x" * 65},
        {"X_GitHub_Delivery": "../../etc"},
    ],
)
def test_a_delivery_that_does_not_say_what_it_is_is_refused(client: Client, db: None, more: dict[str, str]) -> None:
    assert post(client, body_of(), **more).status_code == 400
    assert not Delivery.objects.exists()


def test_a_form_is_refused_with_what_to_set(client: Client, db: None) -> None:
    answer = post(client, b"payload=%7B%7D", content_type="application/x-www-form-urlencoded")
    assert (answer.status_code, answer.json()["detail"]) == (415, "Set the webhook's content type to application/json.")


def test_only_post_is_taken_and_no_csrf_token_is_asked_for(db: None) -> None:
    strict = Client(enforce_csrf_checks=True)
    assert strict.get(WEBHOOK).status_code == 405
    assert post(strict, body_of()).status_code == 202


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(["action", "repository", "pull_request", "issue", "installation", "full_name", "number", "id"])
objects = st.dictionaries(names | st.text(max_size=8), values | st.dictionaries(names, values, max_size=3), max_size=5)


@given(payload=objects, event=st.sampled_from(["pull_request", "issue_comment", "push", "installation", "gollum"]))
@thoroughness(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_whatever_object_is_signed_is_kept(client: Client, db: None, payload: dict[str, Any], event: str) -> None:
    body = json.dumps({**payload, "salt": str(uuid4())}).encode()
    assert post(client, body, event=event).status_code == 202
    Delivery.objects.latest("pk").refresh_from_db()


def test_what_no_database_stores_becomes_a_replacement_character(client: Client, db: None) -> None:
    assert (
        post(client, rb'{"action": "a\u0000b", "pull_request": {"title\ud800": "\udfff\ud83d\ude82"}}').status_code
        == 202
    )
    kept = Delivery.objects.get()
    assert kept.action == "a\ufffdb"
    assert kept.payload["pull_request"] == {"title\ufffd": "\ufffd\N{STEAM LOCOMOTIVE}"}


# --- replayed, unknown ------------------------------------------------------------------------------------------------


def test_a_replay_is_answered_and_does_nothing(client: Client, db: None) -> None:
    body = body_of()
    assert post(client, body, guid="one").status_code == 202
    before = Delivery.objects.values().get()
    answer = post(client, body, guid="one")
    assert (answer.status_code, answer.json()["detail"]) == (200, "This delivery has been here before.")
    assert post(client, body_of("closed"), guid="one").status_code == 200
    assert Delivery.objects.values().get() == before


def test_the_same_body_under_another_id_is_a_replay(client: Client, db: None) -> None:
    body = body_of()
    assert post(client, body, guid="one").status_code == 202
    assert post(client, body, guid="two").status_code == 200
    assert Delivery.objects.count() == 1


def test_a_replay_stays_one_when_its_payload_was_forgotten(
    client: Client, db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = body_of()
    post(client, body, guid="one", event="gollum")
    post(client, body_of("closed"), guid="two")
    monkeypatch.setattr(deliveries, "PAYLOAD_RETENTION", -deliveries.PAYLOAD_RETENTION)
    Delivery.objects.filter(guid="two").update(state=Delivery.State.DONE)
    deliveries.delete_old_payloads()
    assert list(Delivery.objects.values_list("payload", flat=True)) == [{}, {}]
    assert post(client, body_of("closed"), guid="two").status_code == 200
    assert post(client, body, guid="three").status_code == 200


def test_what_was_given_up_is_tried_again_when_github_sends_it_again(client: Client, db: None) -> None:
    body = body_of()
    post(client, body, guid="one")
    Delivery.objects.update(state=Delivery.State.FAILED, attempts=8)
    assert post(client, body, guid="one").status_code == 202
    assert Delivery.objects.values_list("state", "attempts").get() == ("new", 0)


@pytest.mark.parametrize("event", ["gollum", "star", "ping", "workflow_run", "an_event_of_next_year"])
def test_an_unknown_event_is_accepted_and_ignored(client: Client, db: None, event: str) -> None:
    assert post(client, b'{"zen": "Keep it logically awesome."}', event=event).status_code == 202
    assert Delivery.objects.values_list("state", "payload").get() == ("ignored", {})
    assert deliveries.process_due() == 0
