"""Sign-in: with GitHub, or with a password where the site allows local accounts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any
from urllib.parse import urlsplit

from allauth.account.adapter import DefaultAccountAdapter, get_adapter
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from csp.decorators import csp_update
from django.conf import settings
from django.core.checks import CheckMessage, Warning
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponseBase
from django.urls import reverse

View = Callable[..., HttpResponseBase]
MAX_NAME = 80
"""Characters of a name, as of nodes and volunteers. Other tables hold names, too, and PostgreSQL cuts none."""
CALLBACK = "/accounts/github/login/callback/"


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]
    """Local accounts, with a password."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return settings.LOCAL_ACCOUNTS

    def clean_username(self, username: str, shallow: bool = False) -> str:
        if len(username) > MAX_NAME:
            raise ValidationError(f"The name has more than {MAX_NAME} characters.")
        return str(super().clean_username(username, shallow=shallow))

    def get_login_redirect_url(self, request: HttpRequest) -> str:
        return reverse("admin:index") if request.user.is_staff else str(super().get_login_redirect_url(request))

    def add_message(self, *args: Any, **kwargs: Any) -> None:
        """Add no message: the page header shows who is signed in."""


class GitHubAccountAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc]
    """Accounts of GitHub users."""

    def is_open_for_signup(self, request: HttpRequest, sociallogin: Any) -> bool:
        return True

    def populate_user(self, request: HttpRequest, sociallogin: Any, data: dict[str, Any]) -> Any:
        """Return the new user, with the name on GitHub, and a number if that is taken. No other data is stored."""
        user = sociallogin.user
        user.username = get_adapter().generate_unique_username([data.get("username"), "user"])
        return user


def allow_redirect_to_github(view: View) -> View:
    """Let the page's form redirect to GitHub: browsers apply `form-action` to redirects, too."""

    @wraps(view)
    def respond(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        from allauth.socialaccount.providers.github.views import GitHubOAuth2Adapter

        url = urlsplit(GitHubOAuth2Adapter.authorize_url)
        return csp_update({"form-action": [f"{url.scheme}://{url.netloc}"]})(view)(request, *args, **kwargs)

    return respond


def require_github(view: View) -> View:
    """Answer 404 where sign-in with GitHub is not configured."""

    @wraps(view)
    def respond(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        from allauth.socialaccount.models import SocialApp

        try:
            return view(request, *args, **kwargs)
        except SocialApp.DoesNotExist:
            raise Http404("Sign-in with GitHub is not configured.") from None

    return respond


def check_github_oauth(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """System check: GitHub's OAuth app is configured completely or not at all."""
    names = ("GITHUB_CLIENT_ID", "GITHUB_CLIENT_SECRET")
    missing = [name for name in names if not getattr(settings, name)]
    if len(missing) != 1:
        return []
    hint = f"Set {missing[0]}, too. Both belong to an OAuth app whose callback is {settings.SITE_URL}{CALLBACK}"
    return [Warning("Sign-in with GitHub is off: its configuration is incomplete.", hint=hint, id="dailytrain.W001")]


def check_open_signup(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    """System check before deployment: a public site does not allow local accounts."""
    if not settings.LOCAL_ACCOUNTS:
        return []
    hint = "Set GITHUB_CLIENT_ID and GITHUB_CLIENT_SECRET, or LOCAL_ACCOUNTS=False."
    return [Warning("Every visitor can create an account with a password.", hint=hint, id="dailytrain.W002")]
