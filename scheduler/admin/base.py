"""Base classes and helpers of the admin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """An admin without add, change and delete."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def report_outcome(
    model_admin: admin.ModelAdmin[Any], request: HttpRequest, done: list[str], left: list[str], what: str
) -> None:
    if done:
        model_admin.message_user(request, f"{what}: {', '.join(done)}.", messages.SUCCESS)
    if left:
        model_admin.message_user(request, f"Nothing to do for {', '.join(left)}.", messages.WARNING)


def apply_to_rows(
    model_admin: admin.ModelAdmin[Any], request: HttpRequest, rows: QuerySet[Any], act: Callable[[Any], bool], what: str
) -> None:
    """Apply an action to each row and report for which rows it changed something."""
    outcome: dict[bool, list[str]] = {True: [], False: []}
    for row in rows:
        outcome[bool(act(row))].append(str(row))
    report_outcome(model_admin, request, outcome[True], outcome[False], what)


def get_actor_name(request: HttpRequest) -> str:
    return request.user.get_username()
