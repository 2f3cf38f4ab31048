"""What people ask for in comments of a pull request: who may, what happens, what is answered, and all of it once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from allauth.socialaccount.models import SocialAccount
from django.contrib.auth.models import Group, User

from leaderboard.models import Entry, OutboxMessage, Run, Track
from leaderboard.submissions import intake
from scheduler.models import Event, Job, Node
from tests.leaderboard.conftest import Repository, finish
from tests.support import github_payloads as payloads
from tests.support.github_server import GitHub, person
from tests.support.pull_request_author import Conversation


@pytest.fixture
def pull(github: GitHub, main: Repository, track: Track, tmp_path: Path, settings: Any) -> Conversation:
    """An open pull request; `mara` may write to the repository, `ada` is its author."""
    settings.SMOKE_UNAPPROVED = "nobody"
    made = Conversation.of(github, main, tmp_path / "fork")
    made.open()
    return made


@pytest.fixture
def approved(pull: Conversation) -> Run:
    pull.say("mara", "/approve")
    pull.smoke()
    return Run.objects.get()


def nods(pull: Conversation) -> list[str]:
    return [content for _, content in pull.github.repository("trains/daily").reactions]


def states() -> list[str]:
    return list(Run.objects.order_by("pk").values_list("state", flat=True))


def test_a_maintainer_approves_what_was_there_when_the_comment_was_written(pull: Conversation) -> None:
    pull.say("mara", "Looks good.\n\n/approve\n")
    entry = Entry.objects.get()
    assert (entry.state, states(), nods(pull), pull.answers) == ("approved", ["waiting"], ["+1"], [])
    assert "github:mara" in {event.actor for event in Event.objects.about(entry)}
    assert f"mara: `/approve`: Commit {pull.sha[:8]} is approved." in pull.comment


def test_a_push_after_the_comment_is_not_approved_by_it(pull: Conversation) -> None:
    pull.push({"trainer/models/smear.py": "x = 3\n"})  # later than the comment says it was written
    pull.say("mara", "/approve")
    assert states() == []
    assert f"look at {pull.sha[:8]}, then `/approve {pull.sha[:8]}`" in pull.answers[0]
    pull.say("mara", f"/approve {pull.sha[:8]}")
    assert states() == ["waiting"]
    assert Entry.objects.get(state="approved").sha == pull.sha


def test_a_push_that_nobody_told_of_is_noticed_before_an_approval(pull: Conversation) -> None:
    seen = pull.sha
    pull.write({"trainer/models/smear.py": "x = 3\n"})
    shown = pull.github.repository("trains/daily").pulls[7]
    shown.update(head={**shown["head"], "sha": pull.sha}, updated_at="2026-11-21T18:00:05Z")
    pull.say("mara", f"/approve {seen[:8]}")
    assert states() == []
    assert f"The newest commit is {pull.sha[:8]}, not {seen[:8]}" in pull.answers[0]


def test_who_may_not_gets_one_polite_answer(pull: Conversation) -> None:
    for text in ("/approve", "/priority 9", "/train seeds 2", "/train 0.001h", "/cancel"):
        pull.say("eve", text)
    assert (states(), Entry.objects.get().impact) == ([], 0)
    assert len(pull.answers) == 1
    assert "@eve" in pull.answers[0]
    assert "Permission denied: this is for maintainers of this repository. Nothing has changed." in pull.answers[0]
    pull.say("ada", "/approve")
    assert states() == []
    assert len(pull.answers) == 2


def test_what_is_not_understood_is_answered_with_help_and_older_answers_are_folded(pull: Conversation) -> None:
    pull.say("ada", "/train")
    pull.say("ada", "/priority much")
    first, second = pull.answers
    assert "It takes one of `smoke`, a track, hours such as `2h`, or `seeds 2`." in first
    assert "/train seeds N" in second
    assert len(pull.github.minimised) == 1
    pull.say("eve", "/help")
    assert "These commands exist" in pull.answers[-1]


def test_bots_edits_and_others_commands_ask_nothing(pull: Conversation) -> None:
    shown = pull.github.repository("trains/daily").pulls[7]
    said = payloads.comment(pull.shown["base"]["repo"], 7, payloads.user("robot[bot]", 5, "Bot"), "/cancel")
    pull.hand_over("issue_comment", payloads.issue_comment("created", shown, said))
    said = payloads.comment(pull.shown["base"]["repo"], 7, payloads.user("mara", person("mara")), "/approve")
    pull.hand_over("issue_comment", payloads.issue_comment("edited", shown, said))
    pull.say("mara", "/lgtm")
    assert not OutboxMessage.objects.filter(kind="github.command").exists()


def test_each_comment_is_obeyed_once(pull: Conversation, approved: Run, able: Node) -> None:
    finish(approved, able)
    said = pull.say("mara", "/rerun")
    assert states() == ["finished", "queued"]
    shown = pull.github.repository("trains/daily").pulls[7]
    pull.hand_over("issue_comment", payloads.issue_comment("created", shown, said))
    OutboxMessage.objects.filter(kind="github.command").update(state=OutboxMessage.State.PENDING)
    pull.settle()
    assert states() == ["finished", "queued"]
    assert nods(pull) == ["+1", "+1"]


def test_an_author_cancels_and_runs_again_but_does_not_choose_among_results(
    pull: Conversation, approved: Run, able: Node
) -> None:
    pull.say("ada", "/cancel")
    assert states() == ["cancelled"]
    assert "was cancelled: ada cancelled it in the pull request." in pull.comment
    pull.say("ada", "/cancel")
    assert "There is nothing to cancel." in pull.answers[-1]
    pull.say("ada", "/rerun")
    assert states() == ["cancelled", "queued"]
    pull.say("ada", "/rerun")
    assert "wait for its result first" in pull.answers[-1]
    finish(Run.objects.get(state="queued"), able)
    pull.say("ada", "/rerun")
    assert "Only maintainers can request more seeds" in pull.answers[-1]
    pull.say("mara", "/train seeds 2")
    assert states() == ["cancelled", "finished", "queued", "queued"]


def test_a_run_that_the_infrastructure_broke_goes_on_with_its_seed(pull: Conversation, approved: Run) -> None:
    from leaderboard.job_handlers import train

    train.fail_run(approved, "infrastructure", "Its node was lost.")
    Job.objects.filter(kind="train").update(state="failed")
    pull.say("ada", "/rerun")
    assert (states(), Run.objects.get().seed) == (["queued"], approved.seed)


def test_hours_give_that_part_of_the_budget(pull: Conversation) -> None:
    Track.objects.update(budget="24h", expected_seconds=86_400)
    pull.say("mara", "/train 6h")
    assert [(run.budget, run.state) for run in Run.objects.all()] == [("21600s", "waiting")]
    pull.say("mara", "/approve")
    pull.smoke()
    assert [(run.budget, run.state) for run in Run.objects.all()] == [("21600s", "queued")]
    pull.say("mara", "/train 48h")
    assert "Small has 24 h: ask for less, and for 0.38 h at least." in pull.answers[-1]


def test_another_track_is_entered_too_and_goes_along_with_a_push(pull: Conversation, track: Track) -> None:
    fields = {"budget": "24h", "expected_seconds": 86_400, "is_traced": False}
    Track.objects.create(slug="day", name="Day", season=track.season, **fields)
    pull.say("ada", "/train Day")
    assert sorted(entry.track.slug for entry in Entry.objects.all()) == ["day", "small"]
    assert "### Small" in pull.comment
    assert "### Day" in pull.comment
    pull.say("ada", "/train day")
    assert "It is entered for Day already." in pull.answers[-1]
    pull.say("ada", "/train week")
    assert "There is no track week" in pull.answers[-1]
    pull.push({"trainer/models/smear.py": "x = 3\n"})
    assert sorted(entry.track.slug for entry in Entry.objects.filter(state="proposed")) == ["day", "small"]


def test_the_priority_is_the_impact_of_what_waits(pull: Conversation, approved: Run) -> None:
    pull.say("mara", "/priority 7")
    approved.refresh_from_db()
    assert approved.job
    assert (Entry.objects.get().impact, approved.job.impact) == (7, 7)


def test_a_coordinator_approves_on_community_tracks_only(pull: Conversation, track: Track) -> None:
    cora = User.objects.create(username="cora")
    cora.groups.add(Group.objects.create(name="coordinator"))
    SocialAccount.objects.create(user=cora, provider="github", uid=str(person("cora")))
    pull.say("cora", "/approve")
    assert states() == []
    Track.objects.update(kind=Track.Kind.COMMUNITY, nightly=False)
    pull.say("cora", "/approve")
    assert (states(), Entry.objects.get().approved_by) == (["waiting"], cora)


def test_a_smoke_run_is_asked_for_by_a_maintainer_where_the_author_is_new(pull: Conversation) -> None:
    pull.say("ada", "/train smoke")
    assert "A maintainer starts the first smoke run" in pull.answers[-1]
    pull.say("mara", "/train smoke")
    assert Entry.objects.get().state == "smoke"
    pull.say("mara", "/train smoke")
    assert "already running" in pull.answers[-1]


def test_a_click_on_rerun_at_the_check_is_a_rerun(pull: Conversation, approved: Run, able: Node) -> None:
    finish(approved, able)
    pull.settle()
    (check,) = pull.github.repository("trains/daily").checks.values()
    payload = payloads.about(
        pull.shown["base"]["repo"],
        payloads.user("mara", person("mara")),
        1,
        action="rerequested",
        check_run={**check, "completed_at": "2026-11-21T19:00:00Z"},
    )
    for _ in range(2):
        pull.hand_over("check_run", payload)
        pull.settle()
    assert states() == ["finished", "queued"]


def test_a_comment_before_anything_was_heard_of_its_pull_request_reads_it(pull: Conversation) -> None:
    other = payloads.pull(
        pull.shown["base"]["repo"], 8, pull.sha, body=pull.shown["body"], head=pull.shown["head"]["repo"]
    )
    pull.github.repository("trains/daily").pulls[8] = other
    pull.github.say("trains/daily", 8, "mara", "/priority 3")
    pull.hear()
    assert sorted(
        row["body"][:22] for row in pull.github.repository("trains/daily").about(8) if "bot" in row["user"]["login"]
    )


def test_an_entry_that_was_decided_otherwise_is_left_alone(pull: Conversation, maintainer: User) -> None:
    intake.reject_entry(Entry.objects.get(), "It needs a paper's worth of explanation.", maintainer)
    pull.settle()
    assert "Not approved: It needs a paper's worth of explanation." in pull.comment
    assert pull.check == ("completed", "failure", "Not approved")
    pull.say("mara", "/approve")
    assert "This commit is not entered" in pull.answers[-1]
