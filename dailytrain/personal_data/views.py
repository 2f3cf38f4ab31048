"""The pages "your data" and "privacy"."""

from __future__ import annotations

from allauth.account.decorators import reauthentication_required
from django.conf import settings
from django.contrib.auth import logout
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from dailytrain.personal_data.deletion import DeletionError, delete_account
from dailytrain.personal_data.export import export_person
from scheduler.retention import JOIN_TOKEN_DAYS, LOG_DAYS
from scheduler.sign_in import require_login_from


def get_user(request: HttpRequest) -> User:
    assert isinstance(request.user, User)
    return request.user


@require_safe
def privacy(request: HttpRequest) -> HttpResponse:
    """What the site stores about people, why, and for how long."""
    context = {
        "log_days": LOG_DAYS,
        "join_token_days": JOIN_TOKEN_DAYS,
        "text_days": settings.REPHRASE_TEXT_DAYS,
        "session_days": settings.SESSION_COOKIE_AGE // 86400,
        "has_reports": bool(settings.SENTRY_DSN),
    }
    return render(request, "privacy.html", context)


@require_safe
@never_cache
@login_required
def your_data(request: HttpRequest) -> HttpResponse:
    return show_page(request)


def show_page(request: HttpRequest, problem: str = "", status: int = 200) -> HttpResponse:
    rows = export_person(get_user(request))["rows"]
    counts = [(label, len(found)) for label, found in rows.items()]
    return render(request, "your_data.html", {"counts": counts, "problem": problem}, status=status)


@require_safe
@never_cache
@login_required
def download(request: HttpRequest) -> JsonResponse:
    """Send everything about the user as JSON."""
    headers = {"Content-Disposition": 'attachment; filename="your-data.json"'}
    return JsonResponse(export_person(get_user(request)), headers=headers, json_dumps_params={"indent": 1})


@require_POST
@never_cache
@require_login_from("your-data")
@reauthentication_required  # type: ignore[untyped-decorator]  # by password or code, if the user has one
def delete(request: HttpRequest) -> HttpResponse:
    """Delete the account, if its name was typed."""
    user = get_user(request)
    if request.POST.get("username") != user.get_username():
        return show_page(request, "Type your user name to delete the account.", status=400)
    try:
        delete_account(user)
    except DeletionError as error:
        return show_page(request, str(error), status=400)
    logout(request)
    return HttpResponseRedirect(reverse("privacy"))
