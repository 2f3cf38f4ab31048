"""Roles and permissions: maintainers decide about all entries, coordinators about community and playground entries.

A role is a Django group. Permissions in the admin also come from here (`RolePermissionsBackend`), not from rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from typing import Any

from django.conf import settings
from django.contrib.auth.backends import BaseBackend
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser, Group, User
from django.db import models, transaction
from django.http import HttpRequest
from django.utils.module_loading import import_string

from leaderboard.models import Entry, Track
from scheduler.models import SITE_ACTOR, Event

AnyUser = AbstractBaseUser | AnonymousUser

MAINTAINER = "maintainer"
COORDINATOR = "coordinator"
CORE = "core"  # entries of its members may run on nodes that are lent to the core alone
STAFF = (MAINTAINER, COORDINATOR)  # roles with access to the admin
ROLES = (*STAFF, CORE)

COORDINATED_KINDS = (Track.Kind.COMMUNITY, Track.Kind.PLAYGROUND)
DECISIONS = frozenset({"approve", "reject", "run", "cancel", "rerun", "priority"})
GITHUB_MAINTAINER_PERMISSIONS = frozenset({"admin", "maintain", "write"})  # on the main repository


class NotAllowedError(ValueError):
    """The user lacks a permission; the message is for the user."""


def get_roles(user: AnyUser) -> frozenset[str]:
    """Return the roles of an active user, cached on the object. Superusers are maintainers."""
    if not user.is_authenticated or not user.is_active:
        return frozenset()
    roles: frozenset[str] | None = getattr(user, "_roles", None)
    if roles is None:
        roles = build_roles(user, Group.objects.filter(user=user.pk, name__in=ROLES).values_list("name", flat=True))
        user._roles = roles  # type: ignore[attr-defined]
    return roles


def load_roles(users: Collection[User]) -> None:
    """Read the roles of several users in one query, for `get_roles`."""
    groups = User.objects.filter(pk__in={user.pk for user in users}, groups__name__in=ROLES)
    found: dict[int, set[str]] = defaultdict(set)
    for user_id, name in groups.values_list("pk", "groups__name"):
        found[user_id].add(name)
    for user in users:
        user._roles = build_roles(user, found[user.pk])  # type: ignore[attr-defined]


def build_roles(user: AnyUser, groups: Iterable[str]) -> frozenset[str]:
    return frozenset(groups) | ({MAINTAINER} if getattr(user, "is_superuser", False) else set())


def is_maintainer(user: AnyUser) -> bool:
    return MAINTAINER in get_roles(user)


def is_core(user: AnyUser) -> bool:
    """Whether nodes that are lent to the core run the user's entries: any role, not access to the admin alone."""
    return bool(get_roles(user))


def can_approve(user: AnyUser, entry: Entry) -> bool:
    return can_decide(user, "approve", entry)


def can_decide(user: AnyUser, what: str, entry: Entry) -> bool:
    return not explain_denial(user, what, entry)


def explain_denial(user: AnyUser, what: str, entry: Entry) -> str:
    """Return why the user may not make one of `DECISIONS` about the entry; empty if allowed."""
    assert what in DECISIONS
    roles = get_roles(user)
    if MAINTAINER in roles:
        return ""
    if COORDINATOR not in roles:
        return "Only maintainers and coordinators decide about entries."
    track = entry.track
    if track.nightly or track.kind not in COORDINATED_KINDS:
        return f"Coordinators decide about community and playground entries; {track.name} is for a maintainer."
    return ""


def can_decide_on_github(permission: str, user: User | None, what: str, entry: Entry) -> bool:
    """Whether a GitHub user with this permission on the main repository, and this account here, may decide."""
    return permission in GITHUB_MAINTAINER_PERMISSIONS or (user is not None and can_decide(user, what, entry))


def find_github_user(number: int) -> User | None:
    """Return the user with this GitHub id. Logins can change hands."""
    return User.objects.filter(socialaccount__provider="github", socialaccount__uid=str(number), is_active=True).first()


def is_verified_maintainer(request: HttpRequest) -> bool:
    """Whether the user may change runs and has passed two-factor authentication in this session."""
    is_satisfied: Callable[[HttpRequest], bool] = import_string(settings.SECOND_STEP_CHECK)
    return request.user.has_perm("leaderboard.change_run") and is_satisfied(request)


def require_permission(user: AnyUser, what: str, entry: Entry) -> None:
    """Raise NotAllowedError unless the user may make this decision about the entry."""
    if reason := explain_denial(user, what, entry):
        raise NotAllowedError(reason)


# --- grant and revoke ------------------------------------------------------------------------------------------------


@transaction.atomic
def grant_role(user: User, role: str, giver: User | None) -> bool:
    """Grant a role, with access to the admin for `STAFF`; return whether it is new. `giver` None: the site itself."""
    check_can_grant(role, giver)
    if user.groups.filter(name=role).exists():
        return False
    user.groups.add(Group.objects.get_or_create(name=role)[0])
    if role in STAFF:
        User.objects.filter(pk=user.pk).update(is_staff=True)
    record_role_change(user, giver, f"{user.get_username()} is {describe_role(role)} now.")
    return True


@transaction.atomic
def revoke_role(user: User, role: str, taker: User | None) -> bool:
    """Revoke a role; return whether the user had it. Without any of `STAFF` there is no access to the admin."""
    check_can_grant(role, taker)
    if not user.groups.filter(name=role).exists():
        return False
    user.groups.remove(Group.objects.get(name=role))
    if not user.is_superuser and not user.groups.filter(name__in=STAFF).exists():
        User.objects.filter(pk=user.pk).update(is_staff=False)
    record_role_change(user, taker, f"{user.get_username()} is {describe_role(role)} no longer.")
    return True


def describe_role(role: str) -> str:
    return {MAINTAINER: "a maintainer", COORDINATOR: "a coordinator", CORE: "a core member"}[role]


def record_role_change(user: User, actor: User | None, message: str) -> None:
    Event.record(actor.get_username() if actor else SITE_ACTOR, user, message)
    user.__dict__.pop("_roles", None)
    user.refresh_from_db(fields=["is_staff"])


def check_can_grant(role: str, giver: User | None) -> None:
    """Raise NotAllowedError unless the giver may: superusers grant maintainers, maintainers the others."""
    if giver is None:
        return
    if role == MAINTAINER and not (giver.is_active and giver.is_superuser):
        raise NotAllowedError("Only a superuser makes maintainers.")
    if not is_maintainer(giver):
        raise NotAllowedError("Only maintainers give roles.")


# --- in the admin ----------------------------------------------------------------------------------------------------

MANAGED_APPS = ("leaderboard", "scheduler", "campaigns", "django_celery_beat")
VIEWABLE = frozenset({"auth.view_user", "auth.view_group"})
COORDINATOR_PERMISSIONS = frozenset(
    {"leaderboard.view_entry", "leaderboard.change_entry", "leaderboard.view_run", "scheduler.view_event"}
)


class RolePermissionsBackend(BaseBackend):
    """Django permissions of the roles."""

    def has_perm(self, user_obj: Any, perm: str, obj: models.Model | None = None) -> bool:
        roles = get_roles(user_obj)
        if MAINTAINER in roles:
            return perm.partition(".")[0] in MANAGED_APPS or perm in VIEWABLE
        return COORDINATOR in roles and perm in COORDINATOR_PERMISSIONS

    def has_module_perms(self, user_obj: Any, app_label: str) -> bool:
        roles = get_roles(user_obj)
        if MAINTAINER in roles:
            return app_label in (*MANAGED_APPS, "auth")
        return COORDINATOR in roles and any(perm.startswith(f"{app_label}.") for perm in COORDINATOR_PERMISSIONS)
