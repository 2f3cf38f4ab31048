"""The second factor of staff."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import time_machine
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value, yield_hotp_counters_from_time
from django.contrib.auth.models import User
from django.test import Client, TestCase

from leaderboard import permissions
from scheduler.models import Event

PASSWORD = "correct horse battery staple"
ADMIN = "/admin/leaderboard/entry/queue/"


@pytest.fixture
def two_factor_required(settings: Any, db: None) -> None:
    settings.STAFF_TWO_STEP = True


@pytest.fixture
def coordinator(two_factor_required: None) -> User:
    user = User.objects.create_user("cora", password=PASSWORD)
    permissions.grant_role(user, permissions.COORDINATOR, None)
    return user


def sign_in(client: Client, name: str = "cora", **data: str) -> Any:
    address = "/accounts/login/"
    return client.post(address, {"login": name, "password": PASSWORD, "next": ADMIN, **data}, follow=True)


def compute_code(secret: str) -> str:
    return format_hotp_value(hotp_value(secret, next(yield_hotp_counters_from_time())))


def set_up_authenticator(client: Client) -> str:
    """Set up an authenticator app after sign-in and return its secret."""
    page = client.post(
        "/accounts/reauthenticate/", {"password": PASSWORD, "next": "/accounts/two-step/app/"}, follow=True
    )
    secret = re.search(r"Or enter the key: <code>([A-Z2-7]+)<", page.content.decode())
    with TestCase.captureOnCommitCallbacks(execute=True):
        recovery_page = client.post("/accounts/two-step/app/", {"code": compute_code(secret[1])}, follow=True)
    assert "10 of 10 are unused" in recovery_page.content.decode()
    return secret[1]


def test_code_of_an_app_is_accepted_once(client: Client, coordinator: User) -> None:
    with time_machine.travel(datetime(2026, 7, 1, tzinfo=UTC), tick=False) as clock:
        sign_in(client)
        secret = set_up_authenticator(client)
        first = compute_code(secret)
        clock.shift(31)
        second = compute_code(secret)
        data = Authenticator.objects.get(user=coordinator, type="totp").data
        assert secret not in str(data), "it is stored encrypted"
        codes = Authenticator.objects.get(user=coordinator, type="recovery_codes").wrap().get_unused_codes()
        statuses = []
        # That of the setup, a new one, this one after its interval, a recovery code twice, a wrong one.
        for code in (first, second, second, codes[0], codes[0], "000000"):
            client.logout()
            assert sign_in(client).redirect_chain[-1][0] == "/accounts/two-step/code/"
            assert client.get(ADMIN).headers["Location"].startswith("/admin/login/")
            client.post("/accounts/two-step/code/", {"code": code})
            statuses.append(client.get(ADMIN).status_code)
            clock.shift(31 if code == second else 0)
    assert statuses == [302, 200, 302, 200, 302, 302]
    assert "A code for sign-in was wrong." in [event.sentence for event in Event.objects.about(coordinator)]


@pytest.mark.django_db(transaction=True)
def test_staff_signs_in_with_password_and_code_while_redis_is_down(
    client: Client, coordinator: User, settings: Any, tmp_path: Path
) -> None:
    redis_that_is_down = {"BACKEND": "dailytrain.cache.FallbackCache", "LOCATION": f"unix://{tmp_path}/missing.sock"}
    settings.CACHES = {**settings.CACHES, "default": redis_that_is_down}
    sign_in(client)
    set_up_authenticator(client)
    assert client.get(ADMIN).status_code == 200


def test_admin_login_form_signs_no_other_user_in(client: Client, coordinator: User) -> None:
    client.force_login(User.objects.create_user("lena"), backend="django.contrib.auth.backends.ModelBackend")
    response = client.post("/admin/login/", {"username": "cora", "password": PASSWORD})
    assert response.status_code == 403
    assert client.session["_auth_user_id"] != str(coordinator.pk)
