"""The admin site: its sign-in, its index page and its entries in the audit log."""

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
from django.urls import URLPattern, URLResolver, path, reverse
from django.utils import timezone

from dailytrain import two_factor
from leaderboard import permissions
from leaderboard.models import Entry
from leaderboard.monitoring.alerts import list_measurements
from leaderboard.monitoring.overview import collect_overview
from scheduler.models import Event

View = TypeVar("View", bound=Callable[..., Any])
HIDDEN_MODELS = ("Clocked", "EmailAddress", "Group", "Interval", "Social", "Solar")  # beginnings of their names
ACTIONS = {ADDITION: "Added", CHANGE: "Changed", DELETION: "Deleted"}


class DailyTrainAdminSite(AdminSite):
    site_title = site_header = "The Daily Train"
    index_title = "Home"
    enable_nav_sidebar = False

    def admin_view(self, view: View, cacheable: bool = False) -> View:
        """Require the second factor for every page of the admin, if the site requires it of staff."""
        protected = super().admin_view(view, cacheable)

        def respond(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            if request.user.is_active and request.user.is_staff and not two_factor.is_satisfied(request):
                return HttpResponseRedirect(two_factor.get_verification_url(request))
            return protected(request, *args, **kwargs)

        return cast(View, respond)

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show Django's password form only where local accounts are allowed and no second factor is required.

        Otherwise staff uses the sign-in page of the site: Django's form supports neither GitHub nor a second factor.
        """
        if settings.LOCAL_ACCOUNTS and not settings.STAFF_TWO_STEP:
            return super().login(request, extra_context)
        if not request.user.is_authenticated:
            return redirect_to_login(request.GET.get("next", "/admin/"))
        if not self.has_permission(request):
            raise PermissionDenied
        return HttpResponseRedirect(reverse("admin:index"))

    def get_urls(self) -> list[URLPattern | URLResolver]:
        return [path("monitoring/", self.admin_view(self.show_monitoring), name="monitoring"), *super().get_urls()]

    def show_monitoring(self, request: HttpRequest) -> HttpResponse:
        """Show the metrics of the site, with their limits, to maintainers."""
        if not permissions.is_maintainer(request.user):
            raise PermissionDenied
        measurements = list(list_measurements(timezone.now()))
        context = {
            **self.each_context(request),
            "title": "Monitoring",
            "measurements": measurements,
            "alerting": sum(row.is_alerting for row in measurements),
        }
        return TemplateResponse(request, "admin/monitoring.html", context)

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        overview = collect_overview(timezone.now()) if permissions.is_maintainer(request.user) else {}
        return super().index(request, overview | {"waiting_entries": Entry.objects.proposed().count()})

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> list[Any]:
        apps = super().get_app_list(request, app_label)
        for app in apps:
            app["models"] = [model for model in app["models"] if not model["object_name"].startswith(HIDDEN_MODELS)]
        return [app for app in apps if app["models"]]


def log_admin_change(instance: LogEntry, created: bool, **kwargs: Any) -> None:
    """Copy a change made by hand in the admin into the audit log, in addition to the entries of its actions."""
    if not created or instance.content_type is None or not str(instance.object_id).isdigit():
        return
    message = f"{ACTIONS.get(instance.action_flag, 'Changed')} {instance.object_repr}"
    details = instance.get_change_message() if instance.action_flag == CHANGE else ""
    Event.objects.create(
        actor=instance.user.get_username(),
        target_kind=instance.content_type.model,
        target_id=int(str(instance.object_id)),
        sentence=f"{message}: {details}"[:500] if details else f"{message}."[:500],
    )
