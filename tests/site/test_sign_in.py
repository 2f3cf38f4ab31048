"""Signing in with GitHub (over a socket) or with a password, where the site allows local accounts."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from allauth.mfa.totp.internal.auth import TOTP
from allauth.socialaccount.models import SocialAccount, SocialToken
from allauth.socialaccount.providers.github.views import GitHubOAuth2Adapter
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client
from pytest_django import Settings

from dailytrain import sign_in as sign_in_module
from tests.support.github_oauth import CLIENT_ID, SECRET, OAuthServer
from tests.support.waits import WAIT_SECONDS

pytestmark = pytest.mark.django_db

LOGIN = "/accounts/login/?next=/sponsors/lend/"


@pytest.fixture
def github(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[OAuthServer]:
    """A site with GitHub sign-in and without local accounts."""
    server = OAuthServer()
    for name, path in (("authorize", "/login/oauth/authorize"), ("access_token", "/login/oauth/access_token")):
        monkeypatch.setattr(GitHubOAuth2Adapter, f"{name}_url", server.address + path)
    monkeypatch.setattr(GitHubOAuth2Adapter, "profile_url", f"{server.address}/user")
    app = {"client_id": CLIENT_ID, "secret": SECRET}
    settings.SOCIALACCOUNT_PROVIDERS = {"github": {"APPS": [app], "OAUTH_PKCE_ENABLED": True}}
    settings.LOCAL_ACCOUNTS = False
    yield server
    server.close()


def sign_in(client: Client) -> HttpResponse:
    """Press the button, follow the redirects through GitHub as a browser does; return the site's response."""
    redirect = client.post("/accounts/github/login/?process=login&next=/sponsors/lend/")
    assert redirect.status_code == 302, redirect.content
    callback = httpx.get(redirect["Location"], timeout=WAIT_SECONDS).headers["Location"]
    return client.get(f"{urlsplit(callback).path}?{urlsplit(callback).query}")


def get_username(client: Client) -> str:
    """Return the name of the signed-in user; empty without one."""
    user = client.get("/sponsors/").context["user"]
    return str(user.get_username())


def test_first_sign_in_creates_account_and_returns_to_the_page(client: Client, github: OAuthServer) -> None:
    assert "Sign in with GitHub" in client.get(LOGIN).content.decode()

    response = sign_in(client)

    assert (response.status_code, response["Location"]) == (302, "/sponsors/lend/")
    assert get_username(client) == "octocat"
    assert github.authorization_requests[0].get("scope", "") == "", "the public profile is enough"


def test_second_sign_in_under_new_name_finds_the_same_account(client: Client, github: OAuthServer) -> None:
    sign_in(client)
    client.post("/accounts/logout/")
    assert get_username(client) == ""
    github.user["login"] = "hexacat"

    sign_in(client)

    assert get_username(client) == "octocat"
    assert (User.objects.count(), SocialAccount.objects.count(), SocialToken.objects.count()) == (1, 1, 0)


def test_sign_in_with_taken_name_gets_another_name(client: Client, github: OAuthServer) -> None:
    User.objects.create_superuser("octocat", password="a password of this test only")

    sign_in(client)

    assert get_username(client).startswith("octocat")
    assert get_username(client) != "octocat"
    assert not User.objects.get(username=get_username(client)).is_staff


def test_callback_with_code_of_other_browser_signs_no_user_in(client: Client, github: OAuthServer) -> None:
    sign_in(Client())
    stolen = github.authorize({**github.authorization_requests[0]})

    response = client.get(f"{urlsplit(stolen).path}?{urlsplit(stolen).query}")

    assert response.status_code == 401
    assert get_username(client) == ""


def test_local_accounts_with_github_are_off(client: Client, github: OAuthServer) -> None:
    User.objects.create_user("ada", password="a password of this test only")
    page = client.get(LOGIN).content.decode()

    assert "password" not in page
    response = client.post("/accounts/login/", {"login": "ada", "password": "a password of this test only"})
    assert response.status_code == 403
    assert "Sign-up is closed" in client.get("/accounts/signup/").content.decode()


def test_signup_with_github_only_creates_no_account(client: Client, github: OAuthServer) -> None:
    password = "a password of this test only"

    client.post("/accounts/signup/", {"username": "ada", "password1": password, "password2": password})

    assert not User.objects.exists()


@pytest.mark.parametrize("is_staff", [False, True])
@pytest.mark.parametrize("path", ["/accounts/login/", "/admin/login/"])
@pytest.mark.parametrize("two_steps", [False, True])
def test_password_login_with_github_only_is_refused(
    client: Client, github: OAuthServer, settings: Settings, path: str, is_staff: bool, two_steps: bool
) -> None:
    settings.STAFF_TWO_STEP = two_steps
    password = "a password of this test only"
    User.objects.create_user("ada", password=password, is_staff=is_staff)

    for headers in ({}, {"X-Requested-With": "XMLHttpRequest"}):
        client.post(path, {"login": "ada", "username": "ada", "password": password}, headers=headers)

    assert "_auth_user_id" not in client.session


def test_staff_with_github_only_needs_a_second_factor(client: Client, github: OAuthServer, settings: Settings) -> None:
    settings.STAFF_TWO_STEP = True
    sign_in(client)
    User.objects.update(is_staff=True)
    setup = client.get("/admin/")["Location"]
    assert setup.startswith("/accounts/two-step/app/?next=%2Fadmin")
    assert client.get(setup).status_code == 200, "the account has no password to enter"
    TOTP.activate(User.objects.get(), "JBSWY3DPEHPK3PXP")
    client.post("/accounts/logout/")

    response = sign_in(client)

    assert response["Location"].startswith("/accounts/two-step/code/")
    assert get_username(client) == "", "GitHub alone is not enough"
    assert client.get("/admin/")["Location"].startswith("/admin/login/")


def test_only_sign_in_pages_may_redirect_to_github(client: Client, github: OAuthServer) -> None:
    def get_directives(path: str) -> list[str]:  # django-csp writes them in no fixed order
        return [directive.strip() for directive in client.get(path)["Content-Security-Policy"].split(";")]

    assert f"form-action 'self' {github.address}" in get_directives(LOGIN)
    assert "form-action 'self'" in get_directives("/sponsors/")
    assert "unsafe" not in " ".join(get_directives(LOGIN))


# --- local accounts --------------------------------------------------------------------------------------------------


def test_local_sign_up_and_sign_in_without_github_work(client: Client) -> None:
    page = client.get(LOGIN).content.decode()
    assert "GITHUB_CLIENT_ID" in page, "the page explains how to add GitHub"
    assert "Sign in with GitHub" not in page
    password = {"password1": "a password of this test only", "password2": "a password of this test only"}

    response = client.post("/accounts/signup/", {"username": "ada", "next": "/sponsors/lend/", **password})

    assert (response.status_code, response["Location"]) == (302, "/sponsors/lend/")
    assert get_username(client) == "ada"
    client.post("/accounts/logout/")
    client.post("/accounts/login/", {"login": "ada", "password": "a password of this test only"})
    assert get_username(client) == "ada"


def test_repeated_wrong_passwords_are_limited(client: Client) -> None:
    User.objects.create_user("ada", password="a password of this test only")
    for _ in range(5):
        client.post("/accounts/login/", {"login": "ada", "password": "wrong"})

    client.post("/accounts/login/", {"login": "ada", "password": "a password of this test only"})

    assert get_username(client) == ""


# --- `manage.py check` ------------------------------------------------------------------------------------------------


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
        ("/sponsors/nodes/7/rotate/", "/sponsors/nodes/7/"),
        ("/sponsors/nodes/7/forget/", "/sponsors/nodes/7/"),
        ("/accounts/tokens/7/revoke/", "/accounts/tokens/"),
        ("/accounts/notices/7/trial/", "/accounts/notices/"),
        ("/accounts/your-data/delete/", "/accounts/your-data/"),
        ("/campaigns/first/line/", "/campaigns/first/"),
    ],
)
def test_form_posted_after_session_has_expired_returns_to_its_page(client: Client, address: str, page: str) -> None:
    response = client.post(address)
    assert (response.status_code, response["Location"]) == (302, f"/accounts/login/?next={page}")
