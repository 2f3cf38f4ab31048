"""Slash commands in pull request comments: permissions, effects, answers, each executed once."""

from __future__ import annotations

import pytest
from allauth.socialaccount.models import SocialAccount
from django.contrib.auth.models import Group, User

from leaderboard.models import Entry, OutboxMessage, Run, Track
from leaderboard.submissions import intake
from scheduler import transitions
from scheduler.models import Node
from tests.leaderboard.conftest import finish_run
from tests.support import github_payloads as payloads
from tests.support.github_server import compute_user_id
from tests.support.pull_request_author import PullRequestAuthor

pytestmark = pytest.mark.processes


@pytest.fixture
def pull(pull: PullRequestAuthor) -> PullRequestAuthor:
    pull.open()
    return pull


@pytest.fixture
def approved_run(pull: PullRequestAuthor) -> Run:
    pull.post_comment("mara", "/approve")
    pull.finish_smoke_test()
    return Run.objects.get()


def list_reactions(pull: PullRequestAuthor) -> list[str]:
    return [content for _, content in pull.github.get_or_create_repository("trains/daily").reactions]


def list_run_states() -> list[str]:
    return list(Run.objects.order_by("pk").values_list("state", flat=True))


def test_approve_of_another_commit_than_the_newest_is_refused(pull: PullRequestAuthor) -> None:
    pull.push({"trainer/models/smear.py": "x = 3\n"})  # later than the comment says it was written
    pull.post_comment("mara", "/approve")
    assert f"look at {pull.sha[:8]}, then `/approve {pull.sha[:8]}`" in pull.answers[-1]
    old_sha = pull.sha
    pull.commit_files({"trainer/models/smear.py": "x = 4\n"})  # pushed, and not delivered yet
    pull_row = pull.github.get_or_create_repository("trains/daily").pulls[7]
    pull_row.update(head={**pull_row["head"], "sha": pull.sha}, updated_at="2026-11-21T18:00:05Z")
    pull.post_comment("mara", f"/approve {old_sha[:8]}")
    assert f"The newest commit is {pull.sha[:8]}, not {old_sha[:8]}" in pull.answers[-1]
    assert list_run_states() == []
    pull.post_comment("mara", f"/approve {pull.sha[:8]}")
    assert list_run_states() == ["waiting"]
    assert Entry.objects.get(state="approved").sha == pull.sha


def test_command_without_permission_gets_one_answer_and_invalid_ones_get_help(pull: PullRequestAuthor) -> None:
    for text in ("/approve", "/priority 9", "/train seeds 2", "/train 0.001h", "/cancel"):
        pull.post_comment("eve", text)
    assert (list_run_states(), Entry.objects.get().impact) == ([], 0)
    assert len(pull.answers) == 1
    assert "@eve" in pull.answers[0]
    assert "Permission denied: this is for maintainers of this repository. Nothing has changed." in pull.answers[0]
    pull.post_comment("ada", "/approve")
    assert list_run_states() == []
    assert len(pull.answers) == 2
    pull.post_comment("ada", "/train")
    assert "It takes one of `smoke`, a track, hours such as `2h`, or `seeds 2`." in pull.answers[-1]
    pull.post_comment("ada", "/priority much")
    assert "/train seeds N" in pull.answers[-1]
    assert len(pull.github.minimized_comments) == 3
    pull.post_comment("eve", "/help")
    assert "These commands exist" in pull.answers[-1]


def test_command_of_bot_or_edit_or_other_tool_is_ignored(pull: PullRequestAuthor) -> None:
    pull_row = pull.github.get_or_create_repository("trains/daily").pulls[7]
    comment = payloads.comment(pull.payload["base"]["repo"], 7, payloads.user("robot[bot]", 5, "Bot"), "/cancel")
    pull.process_delivery("issue_comment", payloads.issue_comment("created", pull_row, comment))
    mara = payloads.user("mara", compute_user_id("mara"))
    comment = payloads.comment(pull.payload["base"]["repo"], 7, mara, "/approve")
    pull.process_delivery("issue_comment", payloads.issue_comment("edited", pull_row, comment))
    pull.post_comment("mara", "/lgtm")
    assert not OutboxMessage.objects.filter(kind="github.command").exists()


def test_command_and_button_delivered_twice_are_executed_once(
    pull: PullRequestAuthor, approved_run: Run, capable_node: Node
) -> None:
    repository = pull.github.get_or_create_repository("trains/daily")
    finish_run(approved_run, capable_node)
    comment = pull.post_comment("mara", "/rerun")
    assert list_run_states() == ["finished", "queued"]
    pull.process_delivery("issue_comment", payloads.issue_comment("created", repository.pulls[7], comment))
    OutboxMessage.objects.filter(kind="github.command").update(state=OutboxMessage.State.PENDING)
    pull.process_pending_work()
    assert list_run_states() == ["finished", "queued"]
    assert list_reactions(pull) == ["+1", "+1"]
    finish_run(Run.objects.get(state="queued"), capable_node)
    pull.process_pending_work()
    (check,) = repository.checks.values()
    mara = payloads.user("mara", compute_user_id("mara"))
    check_run = {**check, "completed_at": "2026-11-21T19:00:00Z"}
    fields = {"action": "rerequested", "check_run": check_run}
    for _ in range(2):
        pull.process_delivery("check_run", payloads.build_payload(pull.payload["base"]["repo"], mara, 1, **fields))
        pull.process_pending_work()
    assert list_run_states() == ["finished", "finished", "queued"]


def test_author_may_cancel_and_rerun_but_not_add_seeds(
    pull: PullRequestAuthor, approved_run: Run, capable_node: Node
) -> None:
    pull.post_comment("mara", "/priority 7")
    approved_run.refresh_from_db()
    assert (Entry.objects.get().impact, approved_run.job.impact) == (7, 7)
    transitions.fail_job(approved_run.job, "site", "infrastructure", "Its node was lost.")
    pull.post_comment("ada", "/rerun")
    assert (list_run_states(), Run.objects.get().seed) == (["queued"], approved_run.seed)
    pull.post_comment("ada", "/cancel")
    assert list_run_states() == ["cancelled"]
    assert "was cancelled: ada cancelled it in the pull request." in pull.comment
    pull.post_comment("ada", "/cancel")
    assert "There is nothing to cancel." in pull.answers[-1]
    pull.post_comment("ada", "/rerun")
    assert list_run_states() == ["cancelled", "queued"]
    pull.post_comment("ada", "/rerun")
    assert "wait for its result first" in pull.answers[-1]
    finish_run(Run.objects.get(state="queued"), capable_node)
    pull.post_comment("ada", "/rerun")
    assert "Only maintainers can request more seeds" in pull.answers[-1]
    pull.post_comment("mara", "/train seeds 2")
    assert list_run_states() == ["cancelled", "finished", "queued", "queued"]


def test_train_with_hours_scales_budget(pull: PullRequestAuthor) -> None:
    Track.objects.update(budget="24h", expected_seconds=86_400)
    pull.post_comment("mara", "/train 6h")
    assert [(run.budget, run.state) for run in Run.objects.all()] == [("21600s", "waiting")]
    pull.post_comment("mara", "/approve")
    pull.finish_smoke_test()
    assert [(run.budget, run.state) for run in Run.objects.all()] == [("21600s", "queued")]
    pull.post_comment("mara", "/train 48h")
    assert "Small has 24 h: ask for less, and for 0.38 h at least." in pull.answers[-1]


def test_train_with_track_adds_entry_that_follows_pushes(pull: PullRequestAuthor, track: Track) -> None:
    fields = {"budget": "24h", "expected_seconds": 86_400, "is_traced": False}
    Track.objects.create(slug="day", name="Day", season=track.season, **fields)
    pull.post_comment("ada", "/train Day")
    assert sorted(entry.track.slug for entry in Entry.objects.all()) == ["day", "small"]
    assert "### Small" in pull.comment
    assert "### Day" in pull.comment
    pull.post_comment("ada", "/train day")
    assert "It is entered for Day already." in pull.answers[-1]
    pull.post_comment("ada", "/train week")
    assert "There is no track week" in pull.answers[-1]
    pull.push({"trainer/models/smear.py": "x = 3\n"})
    assert sorted(entry.track.slug for entry in Entry.objects.filter(state="proposed")) == ["day", "small"]


def test_approve_by_coordinator_works_on_community_tracks_only(pull: PullRequestAuthor, track: Track) -> None:
    cora = User.objects.create(username="cora")
    cora.groups.add(Group.objects.create(name="coordinator"))
    SocialAccount.objects.create(user=cora, provider="github", uid=str(compute_user_id("cora")))
    pull.post_comment("cora", "/approve")
    assert list_run_states() == []
    Track.objects.update(kind=Track.Kind.COMMUNITY, nightly=False)
    pull.post_comment("cora", "/approve")
    assert (list_run_states(), Entry.objects.get().approved_by) == (["waiting"], cora)


def test_hold_and_lift_by_maintainer_hold_and_move_the_entry_up(
    pull: PullRequestAuthor, track: Track, maintainer: User
) -> None:
    pull.post_comment("mara", "/hold")
    assert Entry.objects.get().is_held
    pull.post_comment("mara", "/lift")
    assert "connect your" in pull.answers[-1]
    SocialAccount.objects.create(user=maintainer, provider="github", uid=str(compute_user_id("mara")))
    pull.post_comment("mara", "/lift")
    assert "Small qualifies for no other track." in pull.answers[-1]
    Track.objects.create(slug="large", season=track.season, budget="9steps", expected_seconds=10.0, qualifier=track)
    pull.post_comment("mara", "/lift")
    assert Entry.objects.get(track__slug="large").state == "approved"


def test_approve_of_rejected_entry_is_refused(pull: PullRequestAuthor, maintainer: User) -> None:
    intake.reject_entry(Entry.objects.get(), "It needs a paper's worth of explanation.", maintainer)
    pull.process_pending_work()
    assert "Not approved: It needs a paper's worth of explanation." in pull.comment
    assert pull.check == ("completed", "failure", "Not approved")
    pull.post_comment("mara", "/approve")
    assert "This commit is not entered" in pull.answers[-1]
