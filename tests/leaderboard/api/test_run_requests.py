from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.http import HttpResponse
from django.test import Client

from leaderboard.models import ApiToken, Entry, Run, Track
from leaderboard.submissions import intake
from scheduler.models import Job
from tests.leaderboard.conftest import Repository


@pytest.fixture(autouse=True)
def fresh_rates() -> None:
    cache.clear()


@pytest.fixture
def carol(db: None) -> User:
    return User.objects.create_user("carol")


@pytest.fixture
def token(carol: User) -> ApiToken:
    made = ApiToken(name="CI", owner=carol)
    made.secret = made.draw_secret()  # type: ignore[attr-defined]
    made.save()
    return made


def ask(client: Client, token: Any, wanted: dict[str, Any]) -> HttpResponse:
    secret = token if isinstance(token, str) else token.secret
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    return client.post("/api/v1/runs", wanted, content_type="application/json", headers=headers)  # type: ignore[return-value]


@pytest.fixture
def wanted(main: Repository, track: Track) -> dict[str, Any]:
    return {
        "repository": str(main.path),
        "sha": main.git("rev-parse", "HEAD"),
        "architecture": "smear",
        "title": "Smeared keys",
    }


def test_a_ci_job_asks_watches_and_is_approved(
    client: Client, token: ApiToken, wanted: dict[str, Any], maintainer: User
) -> None:
    answer = ask(client, token, wanted)
    assert answer.status_code == 201
    asked = answer.json()
    run = Run.objects.get()
    assert asked == {
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

    intake.approve(run.entry, wanted["sha"], maintainer)
    assert client.get(f"/api/v1/runs/{run.pk}/live").json()["state"] == "queued"
    assert Job.objects.get().priority == Job.Priority.COMMUNITY
    token.refresh_from_db()
    assert token.last_used_at


def test_asking_again_gives_the_same_run(client: Client, token: ApiToken, wanted: dict[str, Any]) -> None:
    first, again = ask(client, token, wanted), ask(client, token, {**wanted, "title": "Other"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()  # type: ignore[attr-defined]
    assert Run.objects.count() == Entry.objects.count() == 1


@pytest.mark.parametrize("secret", ["", "dt_wrong", "x" * 5000])
def test_without_a_valid_token_it_is_401(client: Client, wanted: dict[str, Any], secret: str) -> None:
    answer = ask(client, secret, wanted)
    assert answer.status_code == 401
    assert "valid token is required" in answer.json()["detail"]  # type: ignore[attr-defined]
    assert answer["WWW-Authenticate"] == "Bearer"
    assert not Entry.objects.exists()


def test_a_revoked_token_is_401(client: Client, token: ApiToken, wanted: dict[str, Any]) -> None:
    ApiToken.objects.update(revoked=True)
    assert ask(client, token, wanted).status_code == 401


def test_a_token_of_another_scope_is_403(client: Client, token: ApiToken, wanted: dict[str, Any]) -> None:
    ApiToken.objects.update(scope="runs:read")
    answer = ask(client, token, wanted)
    assert answer.status_code == 403
    assert answer.json()["detail"] == "This token may not request runs: its scope is runs:read."  # type: ignore[attr-defined]


def test_the_token_of_a_closed_account_is_403(client: Client, token: ApiToken, wanted: dict[str, Any]) -> None:
    User.objects.filter(pk=token.owner_id).update(is_active=False)
    assert ask(client, token, wanted).status_code == 403


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"sha": "main"}, "sha: "),
        ({"sha": "0" * 40}, "has no commit"),
        ({"architecture": "mamba"}, "no architecture 'mamba'; it has gpt, smear"),
        ({"track": "huge"}, "there is no track 'huge'"),
        ({"title": ""}, "title: "),
        ({"repository": "/etc"}, "named by its https:// address"),
        ({"repository": "https://127.0.0.1/x.git"}, "not on the public internet"),
        ({"repository": "ext::sh -c id"}, "named by its https:// address"),
        ({"url": "javascript:alert(1)"}, "url: "),
        ({"config": {"budget": "24h"}}, "cannot set 'budget'"),
        ({"seed": 3}, "seed: "),
    ],
)
def test_what_cannot_be_run_is_422_with_a_sentence(
    client: Client, token: ApiToken, wanted: dict[str, Any], change: dict[str, Any], sentence: str
) -> None:
    answer = ask(client, token, {**wanted, **change})
    assert answer.status_code == 422
    assert sentence in answer.json()["detail"]  # type: ignore[attr-defined]
    assert not Run.objects.exists()


def test_a_token_may_ask_so_often_an_hour(client: Client, token: ApiToken, wanted: dict[str, Any]) -> None:
    codes = [ask(client, token, {**wanted, "track": "none"}).status_code for _ in range(31)]
    assert codes == [422] * 30 + [429]
    other = ApiToken(name="CI", owner=token.owner)
    secret = other.draw_secret()
    other.save()
    assert ask(client, secret, wanted).status_code == 201


def test_the_secret_is_stored_hashed(token: ApiToken) -> None:
    assert token.secret not in {getattr(token, field.attname) for field in ApiToken._meta.fields}  # type: ignore[attr-defined]
    assert ApiToken.objects.with_secret(token.secret) == token  # type: ignore[attr-defined]
