"""Run requests and the tokens they need: authentication, validation, rate limits."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from leaderboard import outbox
from leaderboard.models import ApiToken, Entry, OutboxMessage, Run, Track
from leaderboard.submissions import intake
from scheduler.models import Job
from tests.leaderboard.conftest import Repository
from tests.scheduler.test_claims_race import call_concurrently
from tests.support import run_requests, scene

pytestmark = pytest.mark.sql


@pytest.fixture
def carol(db: None) -> User:
    return User.objects.create_user("carol")


@pytest.fixture
def token(carol: User) -> ApiToken:
    api_token = ApiToken(name="CI", owner=carol)
    api_token.secret = api_token.draw_secret()
    api_token.save()
    return api_token


def request_run(client: Client, token: Any, payload: dict[str, Any]) -> Any:
    return run_requests.request_run(client, payload, token if isinstance(token, str) else token.secret)


@pytest.fixture
def payload(main_repository: Repository, track: Track) -> dict[str, Any]:
    return {
        "repository": str(main_repository.path),
        "sha": main_repository.git("rev-parse", "HEAD"),
        "architecture": "smear",
        "title": "Smeared keys",
    }


def test_run_request_of_ci_job_is_watched_and_approved(
    client: Client, token: ApiToken, payload: dict[str, Any], maintainer: User
) -> None:
    response = request_run(client, token, payload)
    assert response.status_code == 200
    reply = response.json()
    run = Run.objects.get()
    assert reply == {
        "entry": run.entry_id,
        "run": run.pk,
        "state": "waiting",
        "reason": "Waits for a maintainer's approval.",
        "page": f"http://127.0.0.1:8000/runs/{run.pk}/",
    }
    assert (run.entry.author, run.entry.requested_by) == ("carol", token.owner)
    assert not Job.objects.exists()
    assert client.get(f"/runs/{run.pk}/").status_code == 200
    assert client.get(f"/api/v1/runs/{run.pk}/live").json()["state"] == "waiting"

    intake.approve_entry(run.entry, payload["sha"], maintainer)
    assert client.get(f"/api/v1/runs/{run.pk}/live").json()["state"] == "queued"
    assert Job.objects.get().priority == Job.Priority.COMMUNITY
    token.refresh_from_db()
    assert token.last_used_at


@pytest.mark.parametrize(("approval", "state"), [("anyone", "smoke"), ("maintainer", "proposed")])
def test_run_request_on_a_track_with_a_policy_is_tested_at_once(
    client: Client, token: ApiToken, payload: dict[str, Any], approval: str, state: str
) -> None:
    Track.objects.update(approval=approval, is_traced=True)
    idea = scene.create_entry(Track.objects.get(), "Older", sha="1" * 40)
    assert request_run(client, token, {**payload, "based_on": 999}).json()["detail"].startswith("based_on: there is no")
    assert request_run(client, token, {**payload, "based_on": idea.pk}).status_code == 200
    other = scene.create_entry(Track.objects.get(), "Other", sha="2" * 40)
    assert request_run(client, token, {**payload, "based_on": other.pk}).status_code == 409
    assert request_run(client, token, payload).status_code == 200
    entry = Entry.objects.get(architecture="smear")
    assert (entry.state, entry.based_on) == (state, idea)


def test_repeated_run_request_with_another_config_is_409(
    client: Client, token: ApiToken, payload: dict[str, Any]
) -> None:
    payload["config"] = {"model": {"depth": 4}}
    assert request_run(client, token, payload).status_code == 200
    other = {**payload, "config": {"model": {"depth": 5}}}
    response = request_run(client, token, other)
    assert response.status_code == 409
    assert "has another config. Give this request a variant." in response.json()["detail"]
    assert request_run(client, token, {**other, "variant": "depth-5"}).status_code == 200
    without = {name: value for name, value in payload.items() if name != "config"}
    assert request_run(client, token, without).status_code == 200
    assert Run.objects.count() == 2


def test_request_answers_before_its_commit_is_fetched_and_a_refused_one_is_tried_again(
    client: Client, token: ApiToken, payload: dict[str, Any], main_repository: Repository
) -> None:
    headers = {"Authorization": f"Bearer {token.secret}"}
    missing = {**payload, "sha": "0" * 40}
    first = client.post("/api/v1/runs", missing, content_type="application/json", headers=headers)
    assert (first.status_code, Entry.objects.count()) == (202, 0)
    address = first.json()["address"]
    assert client.get(address, headers=headers).json() == first.json()
    assert client.get(address, headers=headers)["Retry-After"] == "2"
    assert client.get(address).status_code == 401
    other = ApiToken(name="CI", owner=User.objects.create_user("olga"))
    secret = other.draw_secret()
    other.save()
    assert client.get(address, headers={"Authorization": f"Bearer {secret}"}).status_code == 404
    outbox.process_due()
    assert client.get(address, headers=headers).status_code == 422
    again = client.post("/api/v1/runs", missing, content_type="application/json", headers=headers)
    assert (again.json(), OutboxMessage.objects.due().count()) == (first.json(), 1)
    User.objects.filter(username="carol").update(is_active=False)
    outbox.process_due()
    User.objects.update(is_active=True)
    assert client.get(address, headers=headers).json()["detail"] == "The account of this token is closed."


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_concurrent_run_requests_create_one_run(client: Client, token: ApiToken, payload: dict[str, Any]) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("needs PostgreSQL: set DATABASE_URL")
    headers = {"Authorization": f"Bearer {token.secret}"}
    for title in "abcd":
        client.post("/api/v1/runs", payload | {"title": title}, content_type="application/json", headers=headers)
    messages = OutboxMessage.objects.filter(kind="run.request").values_list("pk", flat=True)
    assert len(messages) == 4
    call_concurrently([functools.partial(outbox.process_message, pk) for pk in messages])
    results = OutboxMessage.objects.filter(kind="run.request").values_list("result", flat=True)
    assert list(results) == [{"run": Run.objects.get().pk}] * 4


@pytest.mark.parametrize("secret", ["", "dt_wrong", "x" * 5000])
def test_run_request_without_valid_token_is_401(client: Client, payload: dict[str, Any], secret: str) -> None:
    response = request_run(client, secret, payload)
    assert response.status_code == 401
    assert "Create one at /accounts/tokens/." in response.json()["detail"]
    assert response["WWW-Authenticate"] == "Bearer"
    assert not Entry.objects.exists()


def test_run_request_with_other_scope_or_closed_account_is_403(
    client: Client, token: ApiToken, payload: dict[str, Any]
) -> None:
    ApiToken.objects.update(scope="runs:read")
    response = request_run(client, token, payload)
    assert response.status_code == 403
    assert response.json()["detail"] == "This token may not request runs: its scope is runs:read."
    ApiToken.objects.update(scope="runs:create")
    User.objects.update(is_active=False)
    assert request_run(client, token, payload).status_code == 403


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"sha": "main"}, "sha: "),
        ({"sha": "0" * 40}, "has no commit"),
        ({"track": "huge"}, "there is no track 'huge'"),
        ({"title": ""}, "title: "),
        ({"repository": "/etc"}, "accepts only https:// addresses of repositories"),
        ({"url": "javascript:alert(1)"}, "url: "),
        ({"title": "Smeared\0keys"}, "title: Value error, null bytes"),
        ({"hypothesis": "\ud800"}, "hypothesis: "),
        ({"config": {"model": {"name\0": 1}}}, "config: Value error, null bytes"),
        ({"config": {"model": {"depth": float("nan")}}}, "config: Value error, NaN"),
        ({"seed": 3}, "seed: "),
    ],
)
def test_invalid_run_request_is_422_with_a_message(
    client: Client, token: ApiToken, payload: dict[str, Any], change: dict[str, Any], sentence: str
) -> None:
    response = request_run(client, token, {**payload, **change})
    assert response.status_code == 422
    assert sentence in response.json()["detail"]
    assert not Run.objects.exists()


# --- the page of tokens ----------------------------------------------------------------------------------------------

PAGE = "/accounts/tokens/"


def test_token_is_shown_once_stored_hashed_and_authenticates(client: Client, carol: User) -> None:
    client.force_login(carol)
    created = client.post(PAGE, {"name": "my desk"}).content.decode()
    secret = re.findall(r'aria-label="New token">(dt_[\w-]+)<', created)[0]
    token = ApiToken.objects.get(owner=carol)
    body = {"repository": "https://h.example/r", "sha": "0" * 40, "architecture": "gpt", "title": "T", "track": "none"}
    assert (token.token_hash, token.scope) == (ApiToken.hash_of(secret), "runs:create")
    page = client.get(PAGE)
    assert secret not in page.content.decode()
    assert "no-store" in page["Cache-Control"]
    assert "my desk" in page.content.decode()
    assert request_run(client, secret, body).status_code == 422, "the token is valid, but the track does not exist"
    token.refresh_from_db()
    assert token.last_used_at
    assert client.post(f"{PAGE}{token.pk}/revoke/").status_code == 302
    assert request_run(client, secret, body).status_code == 401
    assert "my desk" not in client.get(PAGE).content.decode()
