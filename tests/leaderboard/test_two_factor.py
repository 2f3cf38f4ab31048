"""The second factor of staff."""

from __future__ import annotations

import re
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import format_hotp_value, hotp_value, yield_hotp_counters_from_time
from django.contrib.auth.models import User
from django.test import Client, TestCase

from leaderboard import permissions
from leaderboard.models import Entry
from scheduler.models import Event

PASSWORD = "correct horse battery staple"
ADMIN = "/admin/leaderboard/entry/queue/"


@pytest.fixture
def two_steps(settings: Any, db: None) -> None:
    settings.STAFF_TWO_STEP = True


@pytest.fixture
def cora(two_steps: None) -> User:
    made = User.objects.create_user("cora", password=PASSWORD)
    permissions.grant_role(made, permissions.COORDINATOR, None)
    return made


def sign_in(client: Client, name: str = "cora", **data: str) -> Any:
    address = "/accounts/login/"
    return client.post(address, {"login": name, "password": PASSWORD, "next": ADMIN, **data}, follow=True)


def code(secret: str) -> str:
    return format_hotp_value(hotp_value(secret, list(yield_hotp_counters_from_time())[1]))


def set_up(client: Client) -> str:
    """Set up the app after signing in; return its secret."""
    again = client.post(
        "/accounts/reauthenticate/", {"password": PASSWORD, "next": "/accounts/two-step/app/"}, follow=True
    )
    secret = re.search(r"Or enter the key: <code>([A-Z2-7]+)<", again.content.decode())
    assert secret
    with TestCase.captureOnCommitCallbacks(execute=True):
        shown = client.post("/accounts/two-step/app/", {"code": code(secret[1])}, follow=True)
    assert "10 of 10 are unused" in shown.content.decode()
    return secret[1]


@pytest.mark.django_db(transaction=True)
def test_admin_before_two_factor_setup_redirects_to_setup(client: Client, cora: User) -> None:
    page = sign_in(client)
    assert page.redirect_chain[-1][0].startswith("/accounts/reauthenticate/?next=")
    assert client.get(ADMIN).headers["Location"].startswith("/accounts/two-step/app/?next=%2Fadmin")
    set_up(client)
    assert client.get(ADMIN).status_code == 200
    assert "Set up an authenticator app for sign-in." in [event.sentence for event in Event.objects.about(cora)]


def test_password_alone_after_setup_is_refused(client: Client, cora: User) -> None:
    sign_in(client)
    secret = set_up(client)
    client.logout()
    page = sign_in(client)
    assert page.redirect_chain[-1][0] == "/accounts/two-step/code/"
    assert client.get(ADMIN).headers["Location"].startswith("/admin/login/")
    wrong = client.post("/accounts/two-step/code/", {"code": "000000"}).content.decode()
    assert "Incorrect code" in wrong
    # A code is good for one signing in: the next one in time is still unused.
    unused = format_hotp_value(hotp_value(secret, list(yield_hotp_counters_from_time())[2]))
    there = client.post("/accounts/two-step/code/", {"code": unused}, follow=True)
    assert there.status_code == 200
    assert client.get(ADMIN).status_code == 200
    assert "A code for sign-in was wrong." in [event.sentence for event in Event.objects.about(cora)]


def test_recovery_code_is_accepted_once(client: Client, cora: User) -> None:
    sign_in(client)
    set_up(client)
    codes = Authenticator.objects.get(user=cora, type="recovery_codes").wrap().get_unused_codes()
    for expected in (200, 302):
        client.logout()
        sign_in(client)
        client.post("/accounts/two-step/code/", {"code": codes[0]})
        assert client.get(ADMIN).status_code == expected


def test_authenticator_secrets_are_stored_encrypted(client: Client, cora: User) -> None:
    sign_in(client)
    secret = set_up(client)
    kept = Authenticator.objects.get(user=cora, type="totp")
    assert secret not in str(kept.data)
    assert kept.wrap().validate_code("nothing") is False


def test_admin_login_form_redirects_to_the_site(client: Client, cora: User) -> None:
    assert client.get("/admin/login/?next=/admin/").headers["Location"] == "/accounts/login/?next=/admin/"
    answer = client.post("/admin/login/", {"username": "cora", "password": PASSWORD})
    assert (answer.status_code, client.session.get("_auth_user_id")) == (302, None)


def test_admin_login_form_signs_no_other_user_in(client: Client, cora: User) -> None:
    client.force_login(User.objects.create_user("lena"), backend="django.contrib.auth.backends.ModelBackend")
    answer = client.post("/admin/login/", {"username": "cora", "password": PASSWORD})
    assert answer.status_code == 403
    assert client.session["_auth_user_id"] != str(cora.pk)


def test_admin_action_without_second_factor_is_refused(client: Client, cora: User, idea: Entry) -> None:
    sign_in(client)
    answer = client.post(f"/admin/leaderboard/entry/{idea.pk}/approve/", {"sha": idea.sha})
    assert answer.headers["Location"].startswith("/accounts/two-step/")
    idea.refresh_from_db()
    assert idea.state == "proposed"


def test_sign_in_of_ordinary_user_needs_no_second_factor(client: Client, two_steps: None) -> None:
    User.objects.create_user("lena", password=PASSWORD)
    assert sign_in(client, "lena", next="/sponsors/mine/").status_code in (200, 404)
    assert client.session["_auth_user_id"]


def test_admin_without_the_setting_needs_no_second_factor(client: Client, maintainer: User) -> None:
    client.force_login(maintainer)
    assert client.get("/admin/").status_code == 200
    page = client.get("/admin/").content.decode()
    assert "waiting for approval" in page
    assert client.get("/accounts/two-step/").status_code == 200
