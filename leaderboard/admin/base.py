"""Helpers of the admin pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from scheduler.admin.base import ChangedFieldsAdmin


def get_user(request: HttpRequest) -> User:
    assert isinstance(request.user, User), "the admin requires a user"
    return request.user


def list_field_names(model: type[Model]) -> list[str]:
    return [field.name for field in model._meta.fields]


class NoAddAdmin(ChangedFieldsAdmin):
    """An admin of rows that only the site creates."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False


class NoAddOrDeleteAdmin(NoAddAdmin):
    """An admin of rows that the site creates and keeps."""

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def act_on_each(
    model_admin: admin.ModelAdmin[Any], request: HttpRequest, rows: QuerySet[Any], act: Callable[[Any], str]
) -> None:
    """Apply an action to each row and show the message that it returns, or that of the ValueError it raises."""
    for row in rows:
        try:
            model_admin.message_user(request, act(row), messages.SUCCESS)
        except ValueError as error:
            model_admin.message_user(request, f"{row}: {error}", messages.ERROR)
