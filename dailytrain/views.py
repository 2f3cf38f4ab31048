"""The sign-in page and the health check."""

from __future__ import annotations

from typing import Any

from allauth.account.views import LoginView as AllauthLoginView
from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.http import HttpRequest, HttpResponseBase, JsonResponse


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


def healthz(request: HttpRequest) -> JsonResponse:
    """Answer 200 if the database answers; otherwise its exception becomes a 500."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return JsonResponse({"status": "ok"})
