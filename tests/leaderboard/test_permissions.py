from __future__ import annotations

import io
from typing import Any

import pytest
from allauth.socialaccount.models import SocialAccount
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.test import Client

from leaderboard import permissions
from leaderboard.models import Entry, Track
from leaderboard.submissions import intake
from leaderboard.submissions.intake import IntakeError
from scheduler.models import Event


@pytest.fixture
def cora(maintainer: User) -> User:
    """A coordinator."""
    cora = User.objects.create_user("cora")
    permissions.grant_role(cora, permissions.COORDINATOR, maintainer)
    return cora


def kind(entry: Entry, kind: str, **fields: Any) -> Entry:
    Track.objects.filter(pk=entry.track_id).update(kind=kind, nightly=False, **fields)
    return Entry.objects.select_related("track").get(pk=entry.pk)


def test_a_coordinator_decides_about_community_and_playground(idea: Entry, cora: User) -> None:
    assert permissions.can_approve(cora, kind(idea, "community"))
    assert permissions.can_decide(cora, "reject", kind(idea, "playground"))
    assert not permissions.can_approve(cora, kind(idea, "competition"))


def test_a_nightly_track_is_for_a_maintainer_whatever_its_kind(idea: Entry, cora: User) -> None:
    Track.objects.update(kind="community", nightly=True)
    idea.track.refresh_from_db()
    with pytest.raises(IntakeError, match="Coordinators decide about community and playground entries; Small is for"):
        intake.approve_entry(idea, idea.sha, cora)
    with pytest.raises(IntakeError, match="is for a maintainer"):
        intake.reject_entry(idea, "No.", cora)
    idea.refresh_from_db()
    assert idea.state == "proposed"


def test_a_coordinators_word_makes_a_community_entry_run(idea: Entry, cora: User) -> None:
    (run,) = intake.approve_entry(kind(idea, "community"), idea.sha, cora)
    assert (run.state, run.entry.approved_by) == ("queued", cora)


def test_nobody_else_decides(idea: Entry) -> None:
    stranger, member = User.objects.create_user("eve", is_staff=True), User.objects.create_user("carl")
    permissions.grant_role(member, permissions.CORE, None)
    stranger.user_permissions.add(Permission.objects.get(codename="change_entry"))
    for user in (stranger, member):
        with pytest.raises(IntakeError, match="Only maintainers and coordinators"):
            intake.approve_entry(kind(idea, "community"), idea.sha, user)


def test_who_left_decides_nothing(idea: Entry, maintainer: User) -> None:
    User.objects.filter(pk=maintainer.pk).update(is_active=False)
    assert not permissions.can_approve(User.objects.get(pk=maintainer.pk), idea)


def test_a_group_makes_a_maintainer_of_our_rows_and_not_of_accounts(db: None) -> None:
    max_ = User.objects.create_user("max")
    permissions.grant_role(max_, permissions.MAINTAINER, None)
    max_ = User.objects.get(pk=max_.pk)
    assert max_.is_staff
    assert max_.has_perms(["leaderboard.change_run", "scheduler.change_node", "auth.view_user"])
    assert not max_.has_perm("auth.change_user")
    permissions.revoke_role(max_, permissions.MAINTAINER, None)
    max_ = User.objects.get(pk=max_.pk)
    assert (max_.is_staff, max_.has_perm("leaderboard.change_run")) == (False, False)


def test_only_superusers_make_maintainers_and_only_maintainers_anybody(maintainer: User, cora: User) -> None:
    second, new = User.objects.create_user("max"), User.objects.create_user("new")
    assert permissions.grant_role(second, permissions.MAINTAINER, maintainer)
    assert not permissions.grant_role(second, permissions.MAINTAINER, maintainer)
    second = User.objects.get(pk=second.pk)
    with pytest.raises(permissions.NotAllowedError, match="Only a superuser"):
        permissions.grant_role(new, permissions.MAINTAINER, second)
    assert permissions.grant_role(new, permissions.COORDINATOR, second)
    with pytest.raises(permissions.NotAllowedError, match="Only maintainers give roles"):
        permissions.grant_role(new, permissions.CORE, cora)
    assert Event.objects.about(new).get().sentence == "new is a coordinator now."


def test_permission_on_github_is_a_maintainers(idea: Entry, cora: User) -> None:
    assert all(
        permissions.can_decide_on_github(given, None, "approve", idea) for given in ("admin", "maintain", "write")
    )
    assert not any(
        permissions.can_decide_on_github(given, cora, "approve", idea) for given in ("triage", "read", "none", "")
    )
    assert permissions.can_decide_on_github("read", cora, "approve", kind(idea, "playground"))


def test_who_it_is_on_github_is_told_by_number(cora: User) -> None:
    SocialAccount.objects.create(user=cora, provider="github", uid="583231")
    assert permissions.find_github_user(583231) == cora
    assert permissions.find_github_user(1) is None


def test_the_first_maintainer_is_made_on_the_command_line(db: None) -> None:
    User.objects.create_user("octocat")
    said = io.StringIO()
    call_command("grant_role", "octocat", "maintainer", stdout=said)
    assert said.getvalue() == "octocat is a maintainer now\n"
    assert permissions.is_maintainer(User.objects.get(username="octocat"))
    with pytest.raises(CommandError, match="No user nobody has signed in"):
        call_command("grant_role", "nobody", "maintainer")


# --- in the admin ----------------------------------------------------------------------------------------------------


def test_a_coordinator_sees_the_queue_and_decides_only_what_is_his(client: Client, idea: Entry, cora: User) -> None:
    client.force_login(cora, backend="django.contrib.auth.backends.ModelBackend")
    assert "is for a maintainer" in client.get("/admin/leaderboard/entry/queue/").content.decode()
    address = f"/admin/leaderboard/entry/{idea.pk}/"
    assert 'name="sha"' not in client.get(f"{address}change/").content.decode()
    assert client.post(f"{address}approve/", {"sha": idea.sha}).status_code == 403
    kind(idea, "community")
    assert f'name="sha" value="{idea.sha}"' in client.get(f"{address}change/").content.decode()
    client.post(f"{address}approve/", {"sha": idea.sha, "budget": "5steps", "impact": "3"})
    idea.refresh_from_db()
    assert (idea.state, idea.impact, idea.runs.get().budget) == ("approved", 3, "5steps")
    for page in ("/admin/auth/user/", "/admin/leaderboard/track/", "/admin/scheduler/node/"):
        assert client.get(page).status_code == 403


def test_a_coordinator_queues_no_seeds_of_what_is_not_his(client: Client, idea: Entry, cora: User) -> None:
    intake.approve_entry(idea, idea.sha, None)
    client.force_login(cora, backend="django.contrib.auth.backends.ModelBackend")
    data = {"action": "run_one_more_seed", "_selected_action": [idea.pk]}
    assert "is for a maintainer" in client.post("/admin/leaderboard/entry/", data, follow=True).content.decode()
    assert idea.runs.count() == 1


def test_roles_are_given_in_the_list_of_people(client: Client, maintainer: User) -> None:
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
def test_a_budget_is_a_part_of_the_tracks(idea: Entry, maintainer: User, budget: str, problem: str) -> None:
    with pytest.raises(IntakeError, match=problem):
        intake.approve_entry(idea, idea.sha, maintainer, budget=budget)
    idea.refresh_from_db()
    assert idea.state == "proposed"


def test_the_whole_budget_needs_no_word(idea: Entry, maintainer: User) -> None:
    (run,) = intake.approve_entry(idea, idea.sha, maintainer, budget="20steps", impact=7)
    assert run.budget == "20steps"
    assert run.job
    assert run.job.impact == 7
    assert [event.sentence for event in Event.objects.about(idea)][1:] == [
        f"Commit {idea.sha[:8]} approved.",
        "Its impact is now 7.",
    ]


def test_somebody_without_an_account_is_named_in_the_log(idea: Entry) -> None:
    intake.approve_entry(idea, idea.sha, None, actor="github:octocat")
    assert Event.objects.about(idea).order_by("-pk")[0].actor == "github:octocat"
