"""The audit log as a page to be read: who did what, day by day, and how to find it."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any

from django import forms
from django.apps import apps
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, reverse

from scheduler.models import Event
from scheduler.models.events import EventQuerySet

if TYPE_CHECKING:
    EventModelAdmin = admin.ModelAdmin[Event]
else:
    EventModelAdmin = admin.ModelAdmin

ON_A_PAGE = 100


class Search(forms.Form):
    """Which part of the log to show."""

    who = forms.CharField(max_length=120, required=False)
    what = forms.CharField(max_length=60, required=False)
    """A kind of target, or one of them: `run`, `run 12`."""
    day = forms.DateField(required=False)
    people = forms.BooleanField(required=False)
    """Leave out the site and the nodes."""

    def found(self) -> EventQuerySet:
        """Return the events that are asked for, newest first; wishes that say nothing are left out."""
        self.is_valid()
        given = self.cleaned_data
        events = Event.objects.order_by("-at", "-pk")
        if given.get("who"):
            events = events.filter(actor__iexact=given["who"].strip())
        if given.get("what"):
            events = about(events, given["what"])
        if given.get("day"):
            events = events.filter(at__gte=start(given["day"]), at__lt=start(given["day"]) + timedelta(days=1))
        if given.get("people"):
            events = events.exclude(actor="site").exclude(actor__startswith="node:")
        return events


def start(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def about(events: EventQuerySet, what: str) -> EventQuerySet:
    kind, _, number = what.strip().lower().partition(" ")
    events = events.filter(target_kind=kind)
    number = number.strip().removeprefix("#")
    return events.filter(target_id=int(number)) if number.isdecimal() and len(number) < 19 else events


class EventAdmin(EventModelAdmin):
    """To be looked at: nobody edits what was done."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        search = Search(request.GET)
        page = Paginator(search.found(), ON_A_PAGE).get_page(request.GET.get("page"))
        context = {
            **self.admin_site.each_context(request),
            **(extra_context or {}),
            "title": "Audit log",
            "search": search,
            "page": page,
            "days": days(list(page.object_list)),
            "asked": asked(request),
            "opts": self.opts,
        }
        return TemplateResponse(request, "admin/scheduler/event/log.html", context)


def asked(request: HttpRequest) -> str:
    """Return the question of this page without its page number, for the links to the others."""
    query = request.GET.copy()
    query.pop("page", None)
    return query.urlencode()


def days(events: list[Event]) -> list[tuple[date, list[dict[str, Any]]]]:
    """Return the events by day, each with where its target is kept."""
    lines = ((event.at.astimezone(UTC).date(), event) for event in events)
    return [
        (day, [{"event": event, "page": page_of(event)} for _, event in group])
        for day, group in groupby(lines, lambda line: line[0])
    ]


def page_of(event: Event) -> str:
    """Return the admin's page of an event's target; empty for what has none."""
    for model in apps.get_models():
        if model._meta.model_name == event.target_kind:
            try:
                return reverse(f"admin:{model._meta.app_label}_{event.target_kind}_change", args=[event.target_id])
            except NoReverseMatch:
                return ""
    return ""
