"""Admin page of people and their roles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import HttpRequest

from leaderboard import permissions
from leaderboard.admin.base import get_user
from scheduler.admin.base import ChangedFieldsAdmin


def build_role_action(role: str, effect: str = "", *, revoke: bool = False) -> Callable[..., None]:
    """Return an admin action that grants or revokes a role."""
    name = permissions.describe_role(role)
    description = f"Revoke: {name}" if revoke else f"Make {name}{effect}"
    change = permissions.revoke_role if revoke else permissions.grant_role

    @admin.action(description=description, permissions=["view"])
    def change_roles(model_admin: admin.ModelAdmin[Any], request: HttpRequest, queryset: QuerySet[User]) -> None:
        try:
            changed = [user.get_username() for user in queryset if change(user, role, get_user(request))]
        except permissions.NotAllowedError as error:
            model_admin.message_user(request, str(error), messages.ERROR)
            return
        message = f"{'No longer' if revoke else 'Now'} {name}: {', '.join(changed)}."
        model_admin.message_user(request, message if changed else "Nothing has changed.")

    change_roles.__name__ = f"{'no' if revoke else 'make'}_{role}"
    return change_roles


admin.site.unregister(User)


@admin.register(User)
class PeopleAdmin(ChangedFieldsAdmin, UserAdmin):  # type: ignore[type-arg]
    """Superusers edit accounts. Maintainers view them, and grant roles."""

    list_display = ("username", "role_names", "is_staff", "is_superuser", "is_active", "last_login", "date_joined")
    list_filter = ("groups", "is_staff", "is_superuser", "is_active")
    actions = (
        build_role_action(permissions.MAINTAINER),
        build_role_action(permissions.COORDINATOR, ": decides about community and playground entries"),
        build_role_action(permissions.CORE, ": nodes lent to the core run their entries"),
        *(build_role_action(role, revoke=True) for role in permissions.ROLES),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[User]:
        return super().get_queryset(request).prefetch_related("groups")

    @admin.display(description="roles")
    def role_names(self, user: User) -> str:
        return ", ".join(group.name for group in user.groups.all() if group.name in permissions.ROLES)
