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

Person = AbstractBaseUser | AnonymousUser

MAINTAINER = "maintainer"
COORDINATOR = "coordinator"
CORE = "core"
"""Its members' entries may run on nodes that are lent to the core alone."""
STAFF = (MAINTAINER, COORDINATOR)
"""Whoever has one of these works in the admin."""
ROLES = (*STAFF, CORE)

COORDINATED = (Track.Kind.COMMUNITY, Track.Kind.PLAYGROUND)
"""Kinds of track whose entries a coordinator may decide about."""
DECISIONS = frozenset({"approve", "reject", "run", "cancel", "rerun", "priority"})
"""What can be asked to be done with an entry."""
MAINTAINS_ON_GITHUB = frozenset({"admin", "maintain", "write"})
"""Permissions on the main repository that make a maintainer of whoever has them."""


class NotAllowed(ValueError):
    """This person may not do that; the message is a sentence for him."""


def roles(user: Person) -> frozenset[str]:
    """Return the roles of a person who is signed in and active; looked up once for each `user` object."""
    if not user.is_authenticated or not user.is_active:
        return frozenset()
    kept: frozenset[str] | None = getattr(user, "_roles", None)
    if kept is None:
        found = set(Group.objects.filter(user=user.pk, name__in=ROLES).values_list("name", flat=True))
        kept = frozenset(found | ({MAINTAINER} if getattr(user, "is_superuser", False) else set()))
        user._roles = kept  # type: ignore[attr-defined]
    return kept


def is_maintainer(user: Person) -> bool:
    return MAINTAINER in roles(user)


def is_core(user: Person) -> bool:
    """Whether nodes that are lent to the core run this person's entries: staff belongs to it."""
    return bool(roles(user)) or bool(getattr(user, "is_staff", False))


def may_approve(user: Person, entry: Entry) -> bool:
    return may(user, "approve", entry)


def may(user: Person, what: str, entry: Entry) -> bool:
    return not why_not(user, what, entry)


def why_not(user: Person, what: str, entry: Entry) -> str:
    """Return in a sentence why this person may not do one of `DECISIONS` with the entry; empty where he may."""
    assert what in DECISIONS
    held = roles(user)
    if MAINTAINER in held:
        return ""
    if COORDINATOR not in held:
        return "Only maintainers and coordinators decide about entries."
    track = entry.track
    if track.nightly or track.kind not in COORDINATED:
        return f"Coordinators decide about community and playground entries; {track.name} is for a maintainer."
    return ""


def may_on_github(permission: str, user: User | None, what: str, entry: Entry) -> bool:
    """Whether somebody may do it who asks on GitHub: with this permission on the main repository, or as `user` here."""
    return permission in MAINTAINS_ON_GITHUB or (user is not None and may(user, what, entry))


def known_on_github(number: int) -> User | None:
    """Return who has signed in here as the person with this number on GitHub, whose logins change hands."""
    return User.objects.filter(socialaccount__provider="github", socialaccount__uid=str(number), is_active=True).first()


def is_verified_maintainer(request: HttpRequest) -> bool:
    """Return whether this is a maintainer of runs who has passed the second step in this session."""
    is_satisfied: Callable[[HttpRequest], bool] = import_string(settings.SECOND_STEP_CHECK)
    return request.user.has_perm("leaderboard.change_run") and is_satisfied(request)


def demand(user: Person, what: str, entry: Entry) -> None:
    """Raise NotAllowed unless this person may do that with the entry."""
    if reason := why_not(user, what, entry):
        raise NotAllowed(reason)


# --- giving and taking -----------------------------------------------------------------------------------------------


def give(user: User, role: str, giver: User | None) -> bool:
    """Give somebody a role, and with it the door of the admin where the role needs it; return whether it is new.

    Without a giver it is whoever runs the site.
    """
    may_hand_out(role, giver)
    group, _ = Group.objects.get_or_create(name=role)
    with transaction.atomic():
        if user.groups.filter(pk=group.pk).exists():
            return False
        user.groups.add(group)
        if role in STAFF:
            User.objects.filter(pk=user.pk).update(is_staff=True)
        Event.record(name_of(giver), user, f"{user.get_username()} is {named(role)} now.")
    return forget(user)


def take(user: User, role: str, taker: User | None) -> bool:
    """Take a role from somebody; return whether he had it. Without any of `STAFF` the admin is closed to him."""
    may_hand_out(role, taker)
    with transaction.atomic():
        if not user.groups.filter(name=role).exists():
            return False
        user.groups.remove(Group.objects.get(name=role))
        if not user.is_superuser and not user.groups.filter(name__in=STAFF).exists():
            User.objects.filter(pk=user.pk).update(is_staff=False)
        Event.record(name_of(taker), user, f"{user.get_username()} is {named(role)} no longer.")
    return forget(user)


def named(role: str) -> str:
    return {MAINTAINER: "a maintainer", COORDINATOR: "a coordinator", CORE: "a core member"}[role]


def forget(user: User) -> bool:
    user.__dict__.pop("_roles", None)
    user.refresh_from_db(fields=["is_staff"])
    return True


def name_of(giver: User | None) -> str:
    return giver.get_username() if giver else "site"


def may_hand_out(role: str, giver: User | None) -> None:
    """Raise NotAllowed unless the giver may: superusers make maintainers, maintainers the others."""
    if giver is None:
        return
    if role == MAINTAINER and not (giver.is_active and giver.is_superuser):
        raise NotAllowed("Only a superuser makes maintainers.")
    if not is_maintainer(giver):
        raise NotAllowed("Only maintainers give roles.")


# --- in the admin ----------------------------------------------------------------------------------------------------

OURS = ("leaderboard", "scheduler", "campaigns", "django_celery_beat")
"""Apps whose rows a maintainer keeps."""
LOOKED_AT = frozenset({"auth.view_user", "auth.view_group"})
OF_COORDINATORS = frozenset(
    {"leaderboard.view_entry", "leaderboard.change_entry", "leaderboard.view_run", "scheduler.view_event"}
)


class Rights(BaseBackend):
    """Which of Django's permissions a role brings."""

    def has_perm(self, user_obj: Any, perm: str, obj: models.Model | None = None) -> bool:
        held = roles(user_obj)
        if MAINTAINER in held:
            return perm.partition(".")[0] in OURS or perm in LOOKED_AT
        return COORDINATOR in held and perm in OF_COORDINATORS

    def has_module_perms(self, user_obj: Any, app_label: str) -> bool:
        held = roles(user_obj)
        if MAINTAINER in held:
            return app_label in (*OURS, "auth")
        return COORDINATOR in held and any(perm.startswith(f"{app_label}.") for perm in OF_COORDINATORS)
