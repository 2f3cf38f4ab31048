"""Admin page of rulings."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest

from leaderboard import rulings
from leaderboard.admin.base import get_user
from leaderboard.models import Ruling
from scheduler.admin.base import ChangedFieldsAdmin, build_row_action
from scheduler.models import Event


@admin.register(Ruling)
class RulingAdmin(ChangedFieldsAdmin):
    """A saved ruling is in force, and never changes."""

    list_display = ("__str__", "text", "effect", "scope", "created_by", "created_at", "revoked_at")
    list_select_related = ("created_by",)
    autocomplete_fields = ("listed", "family")
    fields = ("text", "effect", "scope", "listed", "family", "operator", "cap", "cap_value")
    actions = ("revoke",)

    def has_delete_permission(self, request: HttpRequest, obj: Ruling | None = None) -> bool:
        return False

    def get_readonly_fields(self, request: HttpRequest, obj: Ruling | None = None) -> tuple[str, ...]:
        return self.fields if obj else ()

    def save_model(self, request: HttpRequest, obj: Ruling, form: forms.ModelForm[Ruling], change: bool) -> None:
        if not change:
            obj.created_by = get_user(request)
            obj.save()

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        """Apply the ruling once its list of entries is stored, in the same transaction."""
        super().save_related(request, form, formsets, change)
        if not change:
            Event.record(get_user(request).get_username(), form.instance, f"Ruled: {form.instance.text}")
            rulings.apply_rulings()

    revoke = build_row_action("Revoke", "Revoked", rulings.revoke_ruling)
