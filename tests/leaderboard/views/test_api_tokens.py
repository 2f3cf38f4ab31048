"""Contributors create and revoke their own API tokens."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.http import HttpResponse
from django.test import Client

from leaderboard.models import ApiToken

pytestmark = pytest.mark.django_db
PAGE = "/accounts/tokens/"


@pytest.fixture
def signed_in_user(client: Client) -> User:
    cache.clear()
    user = User.objects.create_user("dora")
    client.force_login(user)
    return user


def create_token(client: Client, name: str = "my desk") -> str:
    page = client.post(PAGE, {"name": name}).content.decode()
    match = re.search(r'aria-label="New token">(dt_[\w-]+)<', page)
    return match[1]


def request_run(client: Client, secret: str) -> HttpResponse:
    body = {"repository": "https://h.example/r", "sha": "0" * 40, "architecture": "gpt", "title": "T", "track": "none"}
    headers = {"Authorization": f"Bearer {secret}"}
    return client.post("/api/v1/runs", body, content_type="application/json", headers=headers)  # type: ignore[return-value]


def test_token_is_shown_once_stored_hashed_and_authenticates(client: Client, signed_in_user: User) -> None:
    secret = create_token(client)
    token = ApiToken.objects.get(owner=signed_in_user)
    assert (token.token_hash, token.scope) == (ApiToken.hash_of(secret), "runs:create")
    page = client.get(PAGE)
    assert secret not in page.content.decode()
    assert "no-store" in page["Cache-Control"]
    assert "my desk" in page.content.decode()
    assert request_run(client, secret).status_code == 422, "the token is valid, but the track does not exist"
    token.refresh_from_db()
    assert token.last_used_at
    assert client.post(f"{PAGE}{token.pk}/revoke/").status_code == 302
    assert request_run(client, secret).status_code == 401
    assert "my desk" not in client.get(PAGE).content.decode()
