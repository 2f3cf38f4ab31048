from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from leaderboard import permissions
from leaderboard.models import Entry, Track
from leaderboard.submissions import intake
from leaderboard.submissions.intake import IntakeError
from scheduler.models import Event


@pytest.fixture
def coordinator(maintainer: User) -> User:
    """A user with the role of coordinator."""
    user = User.objects.create_user("cora")
    permissions.grant_role(user, permissions.COORDINATOR, maintainer)
    return user


def set_track_kind(entry: Entry, kind: str, **fields: Any) -> Entry:
    Track.objects.filter(pk=entry.track_id).update(kind=kind, nightly=False, **fields)
    return Entry.objects.select_related("track").get(pk=entry.pk)


def test_coordinator_may_not_decide_on_nightly_track(proposed_entry: Entry, coordinator: User) -> None:
    Track.objects.update(kind="community", nightly=True)
    proposed_entry.track.refresh_from_db()
    with pytest.raises(IntakeError, match="Coordinators decide about community and playground entries; Small is for"):
        intake.approve_entry(proposed_entry, proposed_entry.sha, coordinator)
    with pytest.raises(IntakeError, match="is for a maintainer"):
        intake.reject_entry(proposed_entry, "No.", coordinator)
    proposed_entry.refresh_from_db()
    assert proposed_entry.state == "proposed"


def test_approval_by_other_users_is_refused(proposed_entry: Entry) -> None:
    staff_user, member = User.objects.create_user("eve", is_staff=True), User.objects.create_user("carl")
    permissions.grant_role(member, permissions.CORE, None)
    staff_user.user_permissions.add(Permission.objects.get(codename="change_entry"))
    inactive = User.objects.create_superuser("ina", is_active=False)
    for user in (staff_user, member, inactive):
        with pytest.raises(IntakeError, match="Only maintainers and coordinators"):
            intake.approve_entry(set_track_kind(proposed_entry, "community"), proposed_entry.sha, user)


def test_roles_are_granted_by_superusers_and_maintainers_only(maintainer: User, coordinator: User) -> None:
    maintainer_by_role, new_user = User.objects.create_user("max"), User.objects.create_user("new")
    assert permissions.grant_role(maintainer_by_role, permissions.MAINTAINER, maintainer)
    assert not permissions.grant_role(maintainer_by_role, permissions.MAINTAINER, maintainer)
    maintainer_by_role = User.objects.get(pk=maintainer_by_role.pk)
    with pytest.raises(permissions.NotAllowedError, match="Only a superuser"):
        permissions.grant_role(new_user, permissions.MAINTAINER, maintainer_by_role)
    assert permissions.grant_role(new_user, permissions.COORDINATOR, maintainer_by_role)
    with pytest.raises(permissions.NotAllowedError, match="Only maintainers give roles"):
        permissions.grant_role(new_user, permissions.CORE, coordinator)
    assert Event.objects.about(new_user).get().sentence == "new is a coordinator now."


def test_github_write_permission_counts_as_maintainer(proposed_entry: Entry, coordinator: User) -> None:
    def can_approve(permission: str, user: User | None, entry: Entry) -> bool:
        return permissions.can_decide_on_github(permission, user, "approve", entry)

    assert all(can_approve(permission, None, proposed_entry) for permission in ("admin", "maintain", "write"))
    assert not any(can_approve(name, coordinator, proposed_entry) for name in ("triage", "read", "none", ""))
    assert can_approve("read", coordinator, set_track_kind(proposed_entry, "playground"))


# --- in the admin ----------------------------------------------------------------------------------------------------


def test_admin_queue_for_coordinator_allows_own_kinds_only(
    client: Client, proposed_entry: Entry, coordinator: User
) -> None:
    client.force_login(coordinator, backend="django.contrib.auth.backends.ModelBackend")
    assert "is for a maintainer" in client.get("/admin/leaderboard/entry/queue/").content.decode()
    address = f"/admin/leaderboard/entry/{proposed_entry.pk}/"
    assert 'name="sha"' not in client.get(f"{address}change/").content.decode()
    assert client.post(f"{address}approve/", {"sha": proposed_entry.sha}).status_code == 403
    set_track_kind(proposed_entry, "community")
    assert f'name="sha" value="{proposed_entry.sha}"' in client.get(f"{address}change/").content.decode()
    client.post(f"{address}approve/", {"sha": proposed_entry.sha, "budget": "5steps", "impact": "3"})
    proposed_entry.refresh_from_db()
    assert (proposed_entry.state, proposed_entry.impact, proposed_entry.runs.get().budget) == ("approved", 3, "5steps")
    data = {"action": "run_one_more_seed", "_selected_action": [proposed_entry.pk]}
    set_track_kind(proposed_entry, "competition")
    assert "is for a maintainer" in client.post("/admin/leaderboard/entry/", data, follow=True).content.decode()
    for page in ("/admin/auth/user/", "/admin/leaderboard/track/", "/admin/scheduler/node/"):
        assert client.get(page).status_code == 403


def test_user_admin_actions_grant_and_revoke_roles(client: Client, maintainer: User) -> None:
    client.force_login(maintainer)
    new = User.objects.create_user("new")
    data = {"action": "make_coordinator", "_selected_action": [new.pk]}
    assert "Now a coordinator: new." in client.post("/admin/auth/user/", data, follow=True).content.decode()
    assert permissions.get_roles(User.objects.get(pk=new.pk)) == {"coordinator"}
    client.post("/admin/auth/user/", {**data, "action": "no_coordinator"})
    assert not User.objects.get(pk=new.pk).is_staff


# --- what comes with an approval -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "problem"),
    [
        ("21steps", "the most that an entry gets"),
        ("3m", "use a part of it, in the same unit"),
        ("soon", "impossible budget"),
    ],
)
def test_approval_with_invalid_budget_is_refused(
    proposed_entry: Entry, maintainer: User, budget: str, problem: str
) -> None:
    with pytest.raises(IntakeError, match=problem):
        intake.approve_entry(proposed_entry, proposed_entry.sha, maintainer, budget=budget)
    proposed_entry.refresh_from_db()
    assert proposed_entry.state == "proposed"
