"""People in the admin, and the roles that they are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import User
from django.db import models
from django.http import HttpRequest

from leaderboard import permissions
from leaderboard.admin.entries import get_user

if TYPE_CHECKING:
    UserModelAdmin = UserAdmin[User]
else:
    UserModelAdmin = UserAdmin


class PeopleAdmin(UserModelAdmin):
    """Superusers edit accounts; maintainers look, and give roles."""

    list_display = ("username", "role_names", "is_staff", "is_superuser", "is_active", "last_login", "date_joined")
    list_filter = ("groups", "is_staff", "is_superuser", "is_active")
    actions = ("make_maintainer", "make_coordinator", "make_core", "no_maintainer", "no_coordinator", "no_core")

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[User]:
        return super().get_queryset(request).prefetch_related("groups")

    @admin.display(description="roles")
    def role_names(self, user: User) -> str:
        return ", ".join(group.name for group in user.groups.all() if group.name in permissions.ROLES)

    @admin.action(description="Make a maintainer", permissions=["view"])
    def make_maintainer(self, request: HttpRequest, chosen: models.QuerySet[User]) -> None:
        self.hand_out(request, chosen, permissions.MAINTAINER)

    @admin.action(description="Make a coordinator: decides about community and playground", permissions=["view"])
    def make_coordinator(self, request: HttpRequest, chosen: models.QuerySet[User]) -> None:
        self.hand_out(request, chosen, permissions.COORDINATOR)

    @admin.action(description="Make a core member: nodes lent to the core run their entries", permissions=["view"])
    def make_core(self, request: HttpRequest, chosen: models.QuerySet[User]) -> None:
        self.hand_out(request, chosen, permissions.CORE)

    @admin.action(description="A maintainer no longer", permissions=["view"])
    def no_maintainer(self, request: HttpRequest, chosen: models.QuerySet[User]) -> None:
        self.hand_out(request, chosen, permissions.MAINTAINER, given=False)

    @admin.action(description="A coordinator no longer", permissions=["view"])
    def no_coordinator(self, request: HttpRequest, chosen: models.QuerySet[User]) -> None:
        self.hand_out(request, chosen, permissions.COORDINATOR, given=False)

    @admin.action(description="A core member no longer", permissions=["view"])
    def no_core(self, request: HttpRequest, chosen: models.QuerySet[User]) -> None:
        self.hand_out(request, chosen, permissions.CORE, given=False)

    def hand_out(self, request: HttpRequest, chosen: models.QuerySet[User], role: str, *, given: bool = True) -> None:
        change = permissions.grant_role if given else permissions.revoke_role
        try:
            changed = [user.get_username() for user in chosen if change(user, role, get_user(request))]
        except permissions.NotAllowedError as error:
            self.message_user(request, str(error), messages.ERROR)
            return
        what = f"{'Now' if given else 'No longer'} {permissions.describe_role(role)}"
        said = f"{what}: {', '.join(changed)}." if changed else "Nothing has changed."
        self.message_user(request, said, messages.SUCCESS if changed else messages.INFO)
