"""Signing in with GitHub (over a socket) or with a password, where the site allows local accounts."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from allauth.mfa.totp.internal.auth import TOTP
from allauth.socialaccount.models import SocialAccount, SocialToken
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client
from pytest_django import Settings

from dailytrain import sign_in as sign_in_module
from tests.support.github_oauth import OAuthServer, run_oauth_server
from tests.support.waits import WAIT_SECONDS

pytestmark = pytest.mark.django_db

LOGIN, NEXT = "/accounts/login/?next=/sponsors/lend/", "/sponsors/lend/"
PASSWORD = "a password of this test only"


@pytest.fixture
def github(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[OAuthServer]:
    """A site with GitHub sign-in and without local accounts."""
    settings.LOCAL_ACCOUNTS = False
    with run_oauth_server(settings, monkeypatch) as server:
        yield server


def sign_in(client: Client) -> HttpResponse:
    """Press the button, follow the redirects through GitHub as a browser does; return the site's response."""
    redirect = client.post(f"/accounts/github/login/?process=login&next={NEXT}")
    assert redirect.status_code == 302, redirect.content
    callback = httpx.get(redirect["Location"], timeout=WAIT_SECONDS).headers["Location"]
    return client.get(f"{urlsplit(callback).path}?{urlsplit(callback).query}")


def get_username(client: Client) -> str:
    """Return the name of the signed-in user; empty without one."""
    return str(client.get("/sponsors/").context["user"].get_username())


def test_github_sign_in_creates_one_account_also_under_a_new_name(client: Client, github: OAuthServer) -> None:
    assert "Sign in with GitHub" in client.get(LOGIN).content.decode()
    response = sign_in(client)
    assert (response.status_code, response["Location"]) == (302, NEXT)
    assert get_username(client) == "octocat"
    assert github.authorization_requests[0].get("scope", "") == "", "the public profile is enough"

    client.post("/accounts/logout/")
    assert get_username(client) == ""
    github.user["login"] = "hexacat"
    sign_in(client)
    assert get_username(client) == "octocat"
    assert (User.objects.count(), SocialAccount.objects.count(), SocialToken.objects.count()) == (1, 1, 0)


def test_sign_in_with_taken_name_gets_another_name(client: Client, github: OAuthServer) -> None:
    User.objects.create_superuser("octocat", password=PASSWORD)
    sign_in(client)
    assert get_username(client).startswith("octocat")
    assert get_username(client) != "octocat"
    assert not User.objects.get(username=get_username(client)).is_staff


def test_callback_with_code_of_other_browser_signs_no_user_in(client: Client, github: OAuthServer) -> None:
    sign_in(Client())
    stolen = github.authorize({**github.authorization_requests[0]})
    assert client.get(f"{urlsplit(stolen).path}?{urlsplit(stolen).query}").status_code == 401
    assert get_username(client) == ""


@pytest.mark.parametrize("is_staff", [False, True])
@pytest.mark.parametrize("two_steps", [False, True])
def test_local_account_with_github_only_is_neither_created_nor_signed_in(
    client: Client, github: OAuthServer, settings: Settings, is_staff: bool, two_steps: bool
) -> None:
    settings.STAFF_TWO_STEP = two_steps
    assert "password" not in client.get(LOGIN).content.decode()
    assert "Sign-up is closed" in client.get("/accounts/signup/").content.decode()
    client.post("/accounts/signup/", {"username": "ada", "password1": PASSWORD, "password2": PASSWORD})
    assert not User.objects.exists()

    User.objects.create_user("ada", password=PASSWORD, is_staff=is_staff)
    form = {"login": "ada", "username": "ada", "password": PASSWORD}
    for path in ("/accounts/login/", "/admin/login/"):
        for headers in ({}, {"X-Requested-With": "XMLHttpRequest"}):
            client.post(path, form, headers=headers)
            assert "_auth_user_id" not in client.session, path


def test_staff_with_github_only_needs_a_second_factor(client: Client, github: OAuthServer, settings: Settings) -> None:
    settings.STAFF_TWO_STEP = True
    sign_in(client)
    User.objects.update(is_staff=True)
    setup = client.get("/admin/")["Location"]
    assert setup.startswith("/accounts/two-step/app/?next=%2Fadmin")
    assert client.get(setup).status_code == 200, "the account has no password to enter"
    TOTP.activate(User.objects.get(), "JBSWY3DPEHPK3PXP")
    client.post("/accounts/logout/")

    assert sign_in(client)["Location"].startswith("/accounts/two-step/code/")
    assert get_username(client) == "", "GitHub alone is not enough"
    assert client.get("/admin/")["Location"].startswith("/admin/login/")


def test_only_sign_in_pages_may_redirect_to_github(client: Client, github: OAuthServer) -> None:
    def get_directives(path: str) -> list[str]:  # django-csp writes them in no fixed order
        return [directive.strip() for directive in client.get(path)["Content-Security-Policy"].split(";")]

    assert f"form-action 'self' {github.address}" in get_directives(LOGIN)
    assert "form-action 'self'" in get_directives("/sponsors/")
    assert "unsafe" not in " ".join(get_directives(LOGIN))


def test_local_sign_up_and_sign_in_without_github_work(client: Client) -> None:
    page = client.get(LOGIN).content.decode()
    assert "GITHUB_CLIENT_ID" in page, "the page explains how to add GitHub"
    assert "Sign in with GitHub" not in page
    for path in ("/accounts/github/login/", "/accounts/github/login/callback/"):
        assert (client.get(path).status_code, client.post(path).status_code) == (404, 404)

    form = {"username": "ada", "next": NEXT, "password1": PASSWORD, "password2": PASSWORD}
    response = client.post("/accounts/signup/", form)
    assert (response.status_code, response["Location"]) == (302, NEXT)
    assert get_username(client) == "ada"
    client.post("/accounts/logout/")
    client.post("/accounts/login/", {"login": "ada", "password": PASSWORD})
    assert get_username(client) == "ada"


def test_repeated_wrong_passwords_are_limited(client: Client) -> None:
    User.objects.create_user("ada", password=PASSWORD)
    for password in (*["wrong"] * 5, PASSWORD):
        client.post("/accounts/login/", {"login": "ada", "password": password})
    assert get_username(client) == ""


@pytest.mark.parametrize(("present", "missing"), [("ID", "SECRET"), ("SECRET", "ID")])
def test_check_github_oauth_with_half_a_configuration_warns(settings: Settings, present: str, missing: str) -> None:
    setattr(settings, f"GITHUB_CLIENT_{present}", "x")
    (warning,) = sign_in_module.check_github_oauth(None)
    assert f"Set GITHUB_CLIENT_{missing}, too" in str(warning.hint)
    assert settings.SITE_URL + "/accounts/github/login/callback/" in str(warning.hint)


@pytest.mark.parametrize(
    ("address", "page"),
    [
        ("/sponsors/nodes/7/drain/", "/sponsors/nodes/7/"),
        ("/accounts/tokens/7/revoke/", "/accounts/tokens/"),
        ("/accounts/notices/7/trial/", "/accounts/notices/"),
        ("/accounts/your-data/delete/", "/accounts/your-data/"),
        ("/campaigns/first/line/", "/campaigns/first/"),
    ],
)
def test_form_posted_after_session_has_expired_returns_to_its_page(client: Client, address: str, page: str) -> None:
    response = client.post(address)
    assert (response.status_code, response["Location"]) == (302, f"/accounts/login/?next={page}")
