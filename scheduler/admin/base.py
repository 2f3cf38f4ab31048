"""Base classes and helpers of the admin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse

from scheduler.transitions import StateError


class ChangedFieldsAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """An admin that saves only the fields that the user has changed.

    A full save would overwrite what the site has changed since it loaded the row, such as a job's state.
    """

    def save_model(self, request: HttpRequest, obj: Any, form: forms.ModelForm[Any], change: bool) -> None:
        if not change:
            super().save_model(request, obj, form, change)
            return
        changed = [
            field.name
            for field in obj._meta.concrete_fields  # without many-to-many fields, which the form saves
            if field.name in form.changed_data or (form.changed_data and getattr(field, "auto_now", False))
        ]
        obj.save(update_fields=changed)


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """An admin without add, change and delete."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class ReadOnlyWithActions(ReadOnlyAdmin):
    """Rows that change through actions only, on the list and on their pages."""

    change_form_template = "admin/actions_form.html"

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return obj is None and admin.ModelAdmin.has_change_permission(self, request)

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        actions = self.get_action_choices(request, default_choices=[])
        return super().changeform_view(request, object_id, form_url, {**(extra_context or {}), "actions": actions})


def apply_to_rows(
    model_admin: admin.ModelAdmin[Any], request: HttpRequest, rows: QuerySet[Any], act: Callable[[Any], Any], what: str
) -> None:
    """Apply an action to each row and report for which rows it changed something."""
    outcome: dict[bool, list[str]] = {True: [], False: []}
    for row in rows:
        try:
            is_changed = act(row) is not False
        except StateError:
            is_changed = False
        outcome[is_changed].append(str(row))
    if outcome[True]:
        model_admin.message_user(request, f"{what}: {', '.join(outcome[True])}.", messages.SUCCESS)
    if outcome[False]:
        model_admin.message_user(request, f"Nothing to do for {', '.join(outcome[False])}.", messages.WARNING)


def build_row_action(description: str, what: str, act: Callable[[Any, str], Any]) -> Callable[..., None]:
    """Return an admin action for users who may change the rows.

    `act` gets a row and the user's name. It returns False or raises StateError where there is nothing to do.
    """

    @admin.action(description=description, permissions=["change"])
    def run_action(model_admin: admin.ModelAdmin[Any], request: HttpRequest, rows: QuerySet[Any]) -> None:
        apply_to_rows(model_admin, request, rows, lambda row: act(row, get_actor_name(request)), what)

    return run_action


def get_actor_name(request: HttpRequest) -> str:
    return request.user.get_username()
