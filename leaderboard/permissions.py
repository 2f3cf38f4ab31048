"""Who may decide what: maintainers about everything, coordinators about the community's and the playground's entries.

A role is a group of Django's. Rights in the admin come from here too (`Rights`), so that no row of permissions can say
otherwise than this file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.contrib.auth.backends import BaseBackend
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser, Group, User
from django.db import models, transaction
from django.http import HttpRequest
from django.utils.module_loading import import_string

from leaderboard.models import Entry, Track
from scheduler.models import Event

AnyUser = AbstractBaseUser | AnonymousUser

MAINTAINER = "maintainer"
COORDINATOR = "coordinator"
CORE = "core"
"""Its members' entries may run on nodes that are lent to the core alone."""
STAFF = (MAINTAINER, COORDINATOR)
"""Whoever has one of these works in the admin."""
ROLES = (*STAFF, CORE)

COORDINATED_KINDS = (Track.Kind.COMMUNITY, Track.Kind.PLAYGROUND)
"""Kinds of track whose entries a coordinator may decide about."""
DECISIONS = frozenset({"approve", "reject", "run", "cancel", "rerun", "priority"})
"""What can be asked to be done with an entry."""
GITHUB_MAINTAINER_PERMISSIONS = frozenset({"admin", "maintain", "write"})
"""Permissions on the main repository that make a maintainer of whoever has them."""


class NotAllowedError(ValueError):
    """This person may not do that; the message is a sentence for him."""


def get_roles(user: AnyUser) -> frozenset[str]:
    """Return the roles of a person who is signed in and active; looked up once for each `user` object."""
    if not user.is_authenticated or not user.is_active:
        return frozenset()
    kept: frozenset[str] | None = getattr(user, "_roles", None)
    if kept is None:
        found = set(Group.objects.filter(user=user.pk, name__in=ROLES).values_list("name", flat=True))
        kept = frozenset(found | ({MAINTAINER} if getattr(user, "is_superuser", False) else set()))
        user._roles = kept  # type: ignore[attr-defined]
    return kept


def is_maintainer(user: AnyUser) -> bool:
    return MAINTAINER in get_roles(user)


def is_core(user: AnyUser) -> bool:
    """Whether nodes that are lent to the core run this person's entries: staff belongs to it."""
    return bool(get_roles(user)) or bool(getattr(user, "is_staff", False))


def can_approve(user: AnyUser, entry: Entry) -> bool:
    return can_decide(user, "approve", entry)


def can_decide(user: AnyUser, what: str, entry: Entry) -> bool:
    return not explain_denial(user, what, entry)


def explain_denial(user: AnyUser, what: str, entry: Entry) -> str:
    """Return in a sentence why this person may not do one of `DECISIONS` with the entry; empty where he may."""
    assert what in DECISIONS
    held = get_roles(user)
    if MAINTAINER in held:
        return ""
    if COORDINATOR not in held:
        return "Only maintainers and coordinators decide about entries."
    track = entry.track
    if track.nightly or track.kind not in COORDINATED_KINDS:
        return f"Coordinators decide about community and playground entries; {track.name} is for a maintainer."
    return ""


def can_decide_on_github(permission: str, user: User | None, what: str, entry: Entry) -> bool:
    """Whether somebody may do it who asks on GitHub: with this permission on the main repository, or as `user` here."""
    return permission in GITHUB_MAINTAINER_PERMISSIONS or (user is not None and can_decide(user, what, entry))


def find_github_user(number: int) -> User | None:
    """Return who has signed in here as the person with this number on GitHub, whose logins change hands."""
    return User.objects.filter(socialaccount__provider="github", socialaccount__uid=str(number), is_active=True).first()


def is_verified_maintainer(request: HttpRequest) -> bool:
    """Return whether this is a maintainer of runs who has passed the second step in this session."""
    is_satisfied: Callable[[HttpRequest], bool] = import_string(settings.SECOND_STEP_CHECK)
    return request.user.has_perm("leaderboard.change_run") and is_satisfied(request)


def require_permission(user: AnyUser, what: str, entry: Entry) -> None:
    """Raise NotAllowed unless this person may do that with the entry."""
    if reason := explain_denial(user, what, entry):
        raise NotAllowedError(reason)


# --- giving and taking -----------------------------------------------------------------------------------------------


def grant_role(user: User, role: str, giver: User | None) -> bool:
    """Give somebody a role, and with it the door of the admin where the role needs it; return whether it is new.

    Without a giver it is whoever runs the site.
    """
    check_can_grant(role, giver)
    group, _ = Group.objects.get_or_create(name=role)
    with transaction.atomic():
        if user.groups.filter(pk=group.pk).exists():
            return False
        user.groups.add(group)
        if role in STAFF:
            User.objects.filter(pk=user.pk).update(is_staff=True)
        Event.record(get_actor_name(giver), user, f"{user.get_username()} is {describe_role(role)} now.")
    return reload_roles(user)


def revoke_role(user: User, role: str, taker: User | None) -> bool:
    """Take a role from somebody; return whether he had it. Without any of `STAFF` the admin is closed to him."""
    check_can_grant(role, taker)
    with transaction.atomic():
        if not user.groups.filter(name=role).exists():
            return False
        user.groups.remove(Group.objects.get(name=role))
        if not user.is_superuser and not user.groups.filter(name__in=STAFF).exists():
            User.objects.filter(pk=user.pk).update(is_staff=False)
        Event.record(get_actor_name(taker), user, f"{user.get_username()} is {describe_role(role)} no longer.")
    return reload_roles(user)


def describe_role(role: str) -> str:
    return {MAINTAINER: "a maintainer", COORDINATOR: "a coordinator", CORE: "a core member"}[role]


def reload_roles(user: User) -> bool:
    user.__dict__.pop("_roles", None)
    user.refresh_from_db(fields=["is_staff"])
    return True


def get_actor_name(giver: User | None) -> str:
    return giver.get_username() if giver else "site"


def check_can_grant(role: str, giver: User | None) -> None:
    """Raise NotAllowed unless the giver may: superusers make maintainers, maintainers the others."""
    if giver is None:
        return
    if role == MAINTAINER and not (giver.is_active and giver.is_superuser):
        raise NotAllowedError("Only a superuser makes maintainers.")
    if not is_maintainer(giver):
        raise NotAllowedError("Only maintainers give roles.")


# --- in the admin ----------------------------------------------------------------------------------------------------

MANAGED_APPS = ("leaderboard", "scheduler", "campaigns", "django_celery_beat")
"""Apps whose rows a maintainer keeps."""
VIEWABLE = frozenset({"auth.view_user", "auth.view_group"})
COORDINATOR_PERMISSIONS = frozenset(
    {"leaderboard.view_entry", "leaderboard.change_entry", "leaderboard.view_run", "scheduler.view_event"}
)


class RolePermissionsBackend(BaseBackend):
    """Which of Django's permissions a role brings."""

    def has_perm(self, user_obj: Any, perm: str, obj: models.Model | None = None) -> bool:
        held = get_roles(user_obj)
        if MAINTAINER in held:
            return perm.partition(".")[0] in MANAGED_APPS or perm in VIEWABLE
        return COORDINATOR in held and perm in COORDINATOR_PERMISSIONS

    def has_module_perms(self, user_obj: Any, app_label: str) -> bool:
        held = get_roles(user_obj)
        if MAINTAINER in held:
            return app_label in (*MANAGED_APPS, "auth")
        return COORDINATOR in held and any(perm.startswith(f"{app_label}.") for perm in COORDINATOR_PERMISSIONS)
