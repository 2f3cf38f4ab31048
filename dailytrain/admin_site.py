"""The admin: its door, its first page, and what it writes into the audit log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from django.conf import settings
from django.contrib.admin import AdminSite
from django.contrib.admin.models import ADDITION, CHANGE, DELETION, LogEntry
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from dailytrain import two_factor
from leaderboard.models import Entry
from scheduler.models import Event

View = TypeVar("View", bound=Callable[..., Any])
DONE = {ADDITION: "Added", CHANGE: "Changed", DELETION: "Deleted"}


class TrainAdmin(AdminSite):
    site_title = site_header = "The Daily Train"
    index_title = "Everything"
    enable_nav_sidebar = False

    def admin_view(self, view: View, cacheable: bool = False) -> View:
        """Where staff signs in with two steps, no page of the admin opens before the second."""
        inner = super().admin_view(view, cacheable)

        def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            if two_factor.is_needed(request):
                return HttpResponseRedirect(two_factor.page(request))
            return inner(request, *args, **kwargs)

        return cast(View, answer)

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show Django's password form only where local accounts are allowed and no second step is required.

        Otherwise staff signs in as everybody does: Django's form knows neither GitHub nor the second step.
        """
        if settings.LOCAL_ACCOUNTS and not settings.STAFF_TWO_STEP:
            return super().login(request, extra_context)
        if not request.user.is_authenticated:
            return redirect_to_login(request.GET.get("next", "/admin/"))
        if not self.has_permission(request):
            raise PermissionDenied
        return HttpResponseRedirect(reverse("admin:index"))

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        context = {"waiting_entries": Entry.objects.proposed().count(), **(extra_context or {})}
        return super().index(request, context)


def logged(instance: LogEntry, created: bool, **kwargs: Any) -> None:
    """Write what was edited by hand into the audit log, beside what its actions write themselves."""
    if not created or instance.content_type is None or not str(instance.object_id).isdigit():
        return
    said = f"{DONE.get(instance.action_flag, 'Changed')} {instance.object_repr}"
    detail = instance.get_change_message()
    Event.objects.create(
        actor=instance.user.get_username(),
        target_kind=instance.content_type.model,
        target_id=int(str(instance.object_id)),
        sentence=f"{said}: {detail}"[:500] if detail and instance.action_flag == CHANGE else f"{said}."[:500],
    )
