"""The audit log: all Events by day, with a search."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html

from scheduler.admin.base import ReadOnlyAdmin
from scheduler.models import SITE_ACTOR, Event


class PeopleFilter(admin.SimpleListFilter):
    title = "actor"
    parameter_name = "people"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("on", "People only")]

    def queryset(self, request: HttpRequest, events: QuerySet[Event]) -> QuerySet[Event]:
        return events.exclude(actor=SITE_ACTOR).exclude(actor__startswith="node:") if self.value() else events


@admin.register(Event)
class EventAdmin(ReadOnlyAdmin):
    list_display = ["at", "actor", "about", "sentence"]
    list_display_links = None
    list_filter = [PeopleFilter]
    date_hierarchy = "at"
    ordering = ["-at", "-pk"]
    search_fields = ["=actor", "sentence"]
    search_help_text = "A user, node:NAME or site; words of an event; or what it is about: run 12, entry, node."
    show_full_result_count = False

    def get_search_results(self, request: HttpRequest, events: Any, term: str) -> tuple[Any, bool]:
        kind, _, number = term.strip().lower().partition(" ")
        if any(model._meta.model_name == kind for model in apps.get_models()):
            events = events.filter(target_kind=kind)
            is_id = number.isdecimal() and len(number) < 19
            return (events.filter(target_id=int(number)) if is_id else events), False
        return super().get_search_results(request, events, term)

    @admin.display(description="about")
    def about(self, event: Event) -> str:
        """Return the event's target, as a link if the admin has a page of it."""
        name = f"{event.target_kind} {event.target_id}"
        for model in apps.get_models():
            if model._meta.model_name == event.target_kind:
                try:
                    url = reverse(f"admin:{model._meta.app_label}_{event.target_kind}_change", args=[event.target_id])
                except NoReverseMatch:
                    break
                return format_html('<a href="{}">{}</a>', url, name)
        return name
