"""What the pages of the admin share: rows to be looked at, and actions that say what they did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest


class ReadOnly(admin.ModelAdmin):  # type: ignore[type-arg]
    """To be looked at."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def tell(model_admin: admin.ModelAdmin[Any], request: HttpRequest, done: list[str], left: list[str], what: str) -> None:
    if done:
        model_admin.message_user(request, f"{what}: {', '.join(done)}.", messages.SUCCESS)
    if left:
        model_admin.message_user(request, f"Nothing to do for {', '.join(left)}.", messages.WARNING)


def each(
    model_admin: admin.ModelAdmin[Any], request: HttpRequest, rows: QuerySet[Any], act: Callable[[Any], bool], what: str
) -> None:
    """Do it to each row, and tell what was done and what was not."""
    outcome: dict[bool, list[str]] = {True: [], False: []}
    for row in rows:
        outcome[bool(act(row))].append(str(row))
    tell(model_admin, request, outcome[True], outcome[False], what)


def name_of(request: HttpRequest) -> str:
    return request.user.get_username()
