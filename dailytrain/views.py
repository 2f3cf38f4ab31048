"""The sign-in page, robots.txt, llms.txt, and the documentation where it is not built."""

from __future__ import annotations

from typing import Any

from allauth.account.views import LoginView as AllauthLoginView
from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.views import defaults

from leaderboard.models import Track
from leaderboard.models.entries import web_address


class LoginView(AllauthLoginView):  # type: ignore[misc]
    """The sign-in page. It accepts passwords only where local accounts are allowed.

    allauth's own setting for this, `SOCIALACCOUNT_ONLY`, cannot be combined with `allauth.mfa`.
    """

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not settings.LOCAL_ACCOUNTS and request.method not in ("GET", "HEAD"):
            raise PermissionDenied
        response: HttpResponseBase = super().dispatch(request, *args, **kwargs)
        return response

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return {**super().get_context_data(**kwargs), "local_accounts": settings.LOCAL_ACCOUNTS}


def page_not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer an unknown address: with JSON below `/api/`, else with the page."""
    if request.path.startswith("/api/"):
        return JsonResponse({"detail": "Not found."}, status=404)
    return defaults.page_not_found(request, exception)


def robots(request: HttpRequest) -> HttpResponse:
    """Tell crawlers which pages to leave out, and where the sitemap is."""
    context = {"sitemap": settings.SITE_URL + reverse("sitemaps")}
    return render(request, "robots.txt", context, content_type="text/plain")


def llms(request: HttpRequest) -> HttpResponse:
    """Tell agents what they can read and ask here (llmstxt.org)."""
    repository = settings.MAIN_REPOSITORY if web_address(settings.MAIN_REPOSITORY) else "the site's repository"
    tracks = Track.objects.in_order().filter(season__active=True)
    context = {"site": settings.SITE_URL, "repository": repository, "tracks": tracks}
    return render(request, "llms.txt", context, content_type="text/plain; charset=utf-8")


def documentation(request: HttpRequest, page: str = "") -> HttpResponse:
    """Redirect to the repository, or to the page about the site. WhiteNoise answers first if `make docs` has run."""
    if not web_address(settings.MAIN_REPOSITORY):
        return HttpResponseRedirect(reverse("about"))
    file = f"docs/{page.strip('/')}.md" if page else "docs"
    return HttpResponseRedirect(f"{settings.MAIN_REPOSITORY.removesuffix('.git')}/tree/{settings.MAIN_BRANCH}/{file}")
