"""Who may sign in, and how: with GitHub, or with a password where the site allows local accounts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any
from urllib.parse import urlsplit

from allauth.account.adapter import DefaultAccountAdapter, get_adapter
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from django.conf import settings
from django.core.checks import CheckMessage, Warning
from django.http import Http404, HttpRequest, HttpResponseBase

from dailytrain.headers import policy

CALLBACK = "/accounts/github/login/callback/"


class Accounts(DefaultAccountAdapter):  # type: ignore[misc]
    """Accounts with a password."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return settings.LOCAL_ACCOUNTS

    def add_message(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: the masthead says who is signed in."""


class GitHubAccounts(DefaultSocialAccountAdapter):  # type: ignore[misc]
    """Accounts of people whom GitHub knows."""

    def is_open_for_signup(self, request: HttpRequest, sociallogin: Any) -> bool:
        return True

    def populate_user(self, request: HttpRequest, sociallogin: Any, data: dict[str, Any]) -> Any:
        """Return the account to be: called as on GitHub, with a number if that is taken; nothing else is kept."""
        user = sociallogin.user
        user.username = get_adapter().generate_unique_username([data.get("username"), "user"])
        return user


def leads_to_github(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """Let the page's form be sent on to GitHub: browsers hold a form's redirects to the policy, too."""

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        from allauth.socialaccount.providers.github.views import GitHubOAuth2Adapter

        response = view(request, *args, **kwargs)
        there = urlsplit(GitHubOAuth2Adapter.authorize_url)
        response.headers["Content-Security-Policy"] = policy(f"'self' {there.scheme}://{there.netloc}")
        return response

    return answer


def require_github(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """Answer 404 where sign-in with GitHub is not configured."""

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        from allauth.socialaccount.models import SocialApp

        try:
            return view(request, *args, **kwargs)
        except SocialApp.DoesNotExist:
            raise Http404("Sign-in with GitHub is not configured.") from None

    return answer


def half_configured(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    names = ("GITHUB_CLIENT_ID", "GITHUB_CLIENT_SECRET")
    missing = [name for name in names if not getattr(settings, name)]
    if len(missing) != 1:
        return []
    hint = f"Set {missing[0]}, too. Both belong to an OAuth app whose callback is {settings.SITE_URL}{CALLBACK}"
    return [Warning("Nobody can sign in with GitHub: half of it is configured.", hint=hint, id="dailytrain.W001")]


def open_doors(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    if not settings.LOCAL_ACCOUNTS:
        return []
    hint = "Set GITHUB_CLIENT_ID and GITHUB_CLIENT_SECRET, or LOCAL_ACCOUNTS=False."
    return [Warning("Anybody can make an account with a password.", hint=hint, id="dailytrain.W002")]
