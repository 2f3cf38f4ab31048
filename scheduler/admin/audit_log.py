"""The audit log: all Events by day, with a search."""

from __future__ import annotations

from datetime import UTC, date
from itertools import groupby
from typing import Any

from django import forms
from django.apps import apps
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, reverse

from scheduler.admin.base import ReadOnlyAdmin
from scheduler.models import SITE_ACTOR, Event
from scheduler.models.events import EventQuerySet

ON_A_PAGE = 100


class EventSearchForm(forms.Form):
    """Which part of the log to show."""

    who = forms.CharField(max_length=120, required=False)
    what = forms.CharField(max_length=60, required=False)
    """A kind of target, with or without an id: `run`, `run 12`."""
    day = forms.DateField(required=False)
    people = forms.BooleanField(required=False)
    """Leave out Events by the site and by nodes."""

    def find_events(self) -> EventQuerySet:
        """Return the matching events, newest first. Empty and invalid fields are ignored."""
        self.is_valid()
        data = self.cleaned_data
        events = Event.objects.order_by("-at", "-pk")
        if data.get("who"):
            events = events.filter(actor__iexact=data["who"].strip())
        if data.get("what"):
            events = filter_by_target(events, data["what"])
        if data.get("day"):
            events = events.filter(at__date=data["day"])
        if data.get("people"):
            events = events.exclude(actor=SITE_ACTOR).exclude(actor__startswith="node:")
        return events


def filter_by_target(events: EventQuerySet, what: str) -> EventQuerySet:
    kind, _, number = what.strip().lower().partition(" ")
    events = events.filter(target_kind=kind)
    number = number.strip().removeprefix("#")
    return events.filter(target_id=int(number)) if number.isdecimal() and len(number) < 19 else events


class EventAdmin(ReadOnlyAdmin):
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        search = EventSearchForm(request.GET)
        page = Paginator(search.find_events(), ON_A_PAGE).get_page(request.GET.get("page"))
        query = request.GET.copy()
        query.pop("page", None)
        context = {
            **self.admin_site.each_context(request),
            **(extra_context or {}),
            "title": "Audit log",
            "search": search,
            "page": page,
            "days": group_by_day(list(page.object_list)),
            "query": query.urlencode(),
            "opts": self.opts,
        }
        return TemplateResponse(request, "admin/scheduler/event/log.html", context)


def group_by_day(events: list[Event]) -> list[tuple[date, list[dict[str, Any]]]]:
    lines = ((event.at.astimezone(UTC).date(), event) for event in events)
    return [
        (day, [{"event": event, "page": get_admin_url(event)} for _, event in group])
        for day, group in groupby(lines, lambda line: line[0])
    ]


def get_admin_url(event: Event) -> str:
    """Return the admin URL of an event's target, empty if it has none."""
    for model in apps.get_models():
        if model._meta.model_name == event.target_kind:
            try:
                return reverse(f"admin:{model._meta.app_label}_{event.target_kind}_change", args=[event.target_id])
            except NoReverseMatch:
                return ""
    return ""
