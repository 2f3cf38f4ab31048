"""From what GitHub tells to entries, and back to what is said in the pull request: rows, and a real socket."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.cache import caches

from leaderboard.integrations.github import sync
from leaderboard.models import Entry, OutboxMessage, PullRequest, Run, Track
from leaderboard.sanitize import escape_markdown
from leaderboard.submissions import intake
from scheduler import transitions
from scheduler.models import Job, Node
from tests.leaderboard.conftest import Repository, finish
from tests.support import github_payloads as payloads
from tests.support import github_server
from tests.support.github_server import GitHub
from tests.support.pull_request_author import BODY, Conversation


@pytest.fixture
def pull(github: GitHub, main: Repository, track: Track, tmp_path: Path, settings: Any) -> Conversation:
    """A fork with an idea, of which a pull request can be made; `mara` may write to the repository."""
    settings.SMOKE_UNAPPROVED = "nobody"
    return Conversation.of(github, main, tmp_path / "fork")


def entries() -> list[tuple[str, str]]:
    return [(entry.sha[:8], entry.state) for entry in Entry.objects.order_by("pk")]


# --- in --------------------------------------------------------------------------------------------------------------


def test_an_opened_pull_request_becomes_an_entry_and_says_so(pull: Conversation) -> None:
    pull.open()
    entry = Entry.objects.get()
    assert (entry.sha, entry.architecture, entry.state, entry.kind) == (pull.sha, "smear", "proposed", "architecture")
    assert (entry.author, entry.title, entry.url) == ("ada", "Smeared keys", pull.shown["html_url"])
    assert entry.hypothesis == "It helps. Expected effect: 3 %"
    assert PullRequest.objects.get().entry == entry
    assert f"Commit `{pull.sha[:8]}` waits for a maintainer" in pull.comment
    assert f"`/approve {pull.sha[:8]}`" in pull.comment
    assert pull.check == ("queued", None, "Waits for approval")


def test_what_is_missing_is_said_in_one_comment_that_follows_the_description(pull: Conversation) -> None:
    pull.open(body="---\ntrack: smal\nhypothesis: It helps.\ncontact: @ada\n---")
    assert entries() == []
    assert "**2 things are in the way of a run:**" in pull.comment
    assert "- There is no track “smal”: it is one of `small`" in pull.comment
    assert "- `expected\\_effect`" not in pull.comment
    assert "- `expected_effect` is missing" in pull.comment
    pull.change("edited", body=BODY.replace("\n", "\r\n"))
    assert entries() == [(pull.sha[:8], "proposed")]
    assert "waits for a maintainer" in pull.comment
    assert len(pull.comments) == 1


def test_a_commit_that_cannot_be_an_entry_is_said(pull: Conversation) -> None:
    pull.open(body=BODY.replace("contact", "architecture: nonsense\ncontact"))
    assert "The commit has no architecture 'nonsense'; it has gpt, smear." in pull.comment


def test_a_model_without_a_block_is_asked_for_one_and_other_changes_are_left_alone(pull: Conversation) -> None:
    pull.open(body="Just look.")
    assert "the block that says what to train" in pull.comment
    assert "track: small\nhypothesis:" in pull.comment
    pull.push({"README.md": "A longer train.\n"}, since="main")
    assert "asks for no run" in pull.comment
    assert entries() == []


@pytest.mark.parametrize("body", [None, "Docs.", "---\ntrack: none\n---"])
def test_a_pull_request_that_asks_for_no_run_is_left_alone(pull: Conversation, body: str | None) -> None:
    pull.write({"README.md": "A longer train.\n"}, since="main")
    pull.open(body=body)
    assert (entries(), pull.comments, pull.github.count("POST", "/check-runs")) == ([], [], 0)


def test_a_draft_waits_until_it_is_ready(pull: Conversation) -> None:
    pull.open(draft=True)
    assert entries() == []
    assert "This is a draft" in pull.comment
    pull.change("ready_for_review", draft=False)
    assert entries() == [(pull.sha[:8], "proposed")]
    pull.change("converted_to_draft", draft=True)
    assert entries() == [(pull.sha[:8], "proposed")]


def test_other_repositories_of_the_app_cannot_enter(pull: Conversation, settings: Any) -> None:
    settings.GITHUB_REPOSITORY = "others/daily"
    pull.open()
    assert not PullRequest.objects.exists()
    assert entries() == []


# --- pushes, closing, order -------------------------------------------------------------------------------------------


def test_a_push_drops_the_approval_and_cancels_what_ran(pull: Conversation, maintainer: User) -> None:
    pull.open()
    before, old = pull.sha, Entry.objects.get()
    (run,) = intake.approve_entry(old, old.sha, maintainer)
    pull.settle()
    pull.push({"trainer/models/smear.py": "x = 3\n"})
    assert entries() == [(before[:8], "withdrawn"), (pull.sha[:8], "proposed")]
    run.refresh_from_db()
    assert run.state == "cancelled"
    assert f"Commit `{pull.sha[:8]}` waits for a maintainer" in pull.comment
    assert pull.check_of(before) == ("completed", "cancelled", "Withdrawn")
    assert pull.check == ("queued", None, "Waits for approval")
    assert len(pull.comments) == 1


def test_closing_cancels_and_reopening_goes_on(pull: Conversation, maintainer: User) -> None:
    pull.open()
    (run,) = intake.approve_entry(Entry.objects.get(), pull.sha, maintainer)
    pull.change("closed", state="closed")
    run.refresh_from_db()
    assert (run.state, entries()) == ("cancelled", [(pull.sha[:8], "withdrawn")])
    assert "Withdrawn: The pull request was closed." in pull.comment
    pull.change("reopened", state="open")
    entry = Entry.objects.get()
    assert (entry.state, entry.approved_by) == ("proposed", None)
    again = intake.approve_entry(entry, pull.sha, maintainer)
    assert sorted(run.state for run in again) == ["cancelled", "waiting"]


def test_merging_lets_what_was_approved_arrive(pull: Conversation, maintainer: User) -> None:
    pull.open()
    (run,) = intake.approve_entry(Entry.objects.get(), pull.sha, maintainer)
    pull.change("closed", state="closed", merged=True)
    run.refresh_from_db()
    assert (run.state, PullRequest.objects.get().state) == ("waiting", "merged")


def test_repeated_and_late_deliveries_change_nothing(pull: Conversation, github: GitHub) -> None:
    pull.open()
    pull.push({"trainer/models/smear.py": "x = 3\n"})
    state, comments = entries(), github.count("PATCH", "/issues/comments")
    for delivery in list(github.deliveries):
        pull.hand_over(delivery["event"], delivery["payload"])
    pull.settle()
    assert entries() == state
    assert PullRequest.objects.get().head_sha == pull.sha
    assert github.count("PATCH", "/issues/comments") == comments
    assert len(pull.comments) == 1


def test_of_two_changes_within_a_second_github_is_asked_which_was_last(pull: Conversation, github: GitHub) -> None:
    pull.open()
    first = dict(pull.shown)
    pull.write({"trainer/models/smear.py": "x = 3\n"})
    last = {**first, "head": {**first["head"], "sha": pull.sha}}
    github.repositories["trains/daily"].pulls[7] = last
    for shown in (last, first):  # the older one comes later
        pull.hand_over("pull_request", payloads.pull_request("synchronize", shown))
    pull.settle()
    assert PullRequest.objects.get().head_sha == pull.sha


def test_editing_the_track_enters_for_the_other_one(pull: Conversation, track: Track) -> None:
    fields = {"budget": "24h", "expected_seconds": 86_400, "is_traced": False}
    Track.objects.create(slug="day", name="Day", season=track.season, **fields)
    pull.open()
    pull.change("edited", body=BODY.replace("small", "day"))
    assert [(entry.track.slug, entry.state) for entry in Entry.objects.order_by("pk")] == [
        ("small", "withdrawn"),
        ("day", "proposed"),
    ]


def test_a_commit_that_cannot_be_fetched_is_tried_again_by_itself(pull: Conversation) -> None:
    inside, aside = pull.fork.path / ".git", pull.fork.path / "aside"
    inside.rename(aside)
    pull.open(settled=False)
    pull.settle(once=True)
    assert "The commit could not be fetched" in pull.comment
    assert "tried again by itself" in pull.comment
    aside.rename(inside)
    pull.settle()
    assert entries() == [(pull.sha[:8], "proposed")]
    assert "waits for a maintainer" in pull.comment


def test_in_whatever_order_deliveries_come_the_newest_counts(pull: Conversation) -> None:
    repository = pull.github.repository().shown
    for seed in range(20):
        chance = random.Random(seed)
        told = [
            payloads.pull(repository, 100 + seed, f"{chance.getrandbits(160):040x}", body="x", updated_at=moment(0))
        ]
        for second in range(1, 9):
            change = chance.choice([
                {"state": "closed"}, {"state": "open"}, {"title": f"Title {second}"}, {"draft": chance.random() < 0.5},
                {"head": {**told[-1]["head"], "sha": f"{chance.getrandbits(160):040x}"}},
            ])  # fmt: skip
            told.append({**told[-1], **change, "updated_at": moment(second)})
        for shown in chance.choices(told, k=10) + chance.sample(told, k=len(told)):
            sync.handle_pull_request(payloads.pull_request("edited", shown), None)
        row, last = PullRequest.objects.get(number=100 + seed), told[-1]
        seen = (row.head_sha, row.title, row.state, row.draft)
        assert seen == (last["head"]["sha"], last["title"], last["state"], last["draft"])


def moment(second: int) -> str:
    return f"2026-11-21T18:00:0{second}Z"


def test_every_documented_payload_is_taken(pull: Conversation) -> None:
    shown = payloads.pull(pull.github.repository().shown, 7, pull.sha, body=None)
    gone = {"head": {**shown["head"], "repo": None, "user": None}}
    for action in payloads.ACTIONS:
        for without in ({}, gone, {"user": None, "draft": None, "title": None}):
            assert sync.handle_pull_request(payloads.pull_request(action, {**shown, **without}), None) is None
    pull.settle()


# --- out --------------------------------------------------------------------------------------------------------------


def test_the_comment_and_the_check_follow_a_run_to_its_verdict(
    pull: Conversation, maintainer: User, able: Node
) -> None:
    pull.open()
    (run,) = intake.approve_entry(Entry.objects.get(), pull.sha, maintainer)
    pull.settle()
    assert "smoke run of commit" in pull.comment
    pull.smoke()
    run.refresh_from_db()
    assert f"Run {run.pk} waits for a node" in pull.comment
    assert pull.check == ("queued", None, "Waits for a node")
    finish(run, able)
    pull.settle()
    assert "2.5000 bits per byte" in pull.comment
    assert f"| [{run.pk}](" in pull.comment
    assert pull.check[:2] == ("completed", "success")
    assert len(pull.comments) == 1


def test_a_deleted_comment_is_written_again_and_a_lost_id_is_found(pull: Conversation, github: GitHub) -> None:
    pull.open()
    known = github.repositories["trains/daily"].comments
    known.clear()
    pull.change("edited", body=BODY + "more", title="Another title")
    pull.push({"trainer/models/smear.py": "x = 3\n"})
    assert len(pull.comments) == 1
    OutboxMessage.objects.filter(kind="github.comment").update(result={})
    pull.push({"trainer/models/smear.py": "x = 4\n"})
    assert len(pull.comments) == 1
    assert pull.sha[:8] in pull.comment


def test_an_answer_that_is_lost_and_a_limit_make_no_second_comment(pull: Conversation, github: GitHub) -> None:
    github.fail(502, path="/comments$", method="POST", after=True)
    github.secondary_limit(1, path="/check-runs$", method="POST")
    pull.open(settled=False)
    pull.settle(once=True)
    waiting = {effect.kind: effect.problem for effect in OutboxMessage.objects.filter(state="pending")}
    assert "GitHub answered 502" in waiting["github.comment"]
    assert "secondary rate limit" in waiting["github.check"]
    caches["github"].clear()  # as if its minute were over
    pull.settle()
    assert len(pull.comments) == 1
    assert pull.check == ("queued", None, "Waits for approval")


def test_with_a_plain_token_the_check_is_a_commit_status(pull: Conversation, github: GitHub, settings: Any) -> None:
    settings.GITHUB_APP_ID = settings.GITHUB_PRIVATE_KEY = ""
    settings.GITHUB_TOKEN = github_server.TOKEN
    pull.open()
    (status,) = github.repository("trains/daily").statuses
    assert (status["context"], status["state"]) == ("Daily Train / small", "pending")
    assert len(github.repository("trains/daily").about(7)) == 1


def test_a_site_without_access_to_github_enters_all_the_same(pull: Conversation, settings: Any) -> None:
    settings.GITHUB_APP_ID = settings.GITHUB_PRIVATE_KEY = ""
    pull.open()
    assert entries() == [(pull.sha[:8], "proposed")]
    assert {effect.state for effect in OutboxMessage.objects.filter(kind="github.comment")} == {"failed"}


def test_what_strangers_write_mentions_nobody_and_breaks_nothing() -> None:
    text = escape_markdown("<b>@mara</b> fixes #12 | `x` [a](b)\n# no")
    assert text == "\\<b\\>@\u2060mara\\</b\\> fixes #\u206012 \\| \\`x\\` \\[a\\](b) # no"


def test_progress_is_told_in_steps(pull: Conversation, maintainer: User, github: GitHub) -> None:
    from leaderboard.integrations.github import comments as telling

    pull.open()
    (run,) = intake.approve_entry(Entry.objects.get(), pull.sha, maintainer)
    Run.objects.filter(pk=run.pk).update(state="training", fraction=0.34, node_name="cellar")
    telling.report_progress()
    pull.settle()
    assert pull.check == ("in_progress", None, "Training, 30 % of the way")
    asked = len(github.asked)
    Run.objects.filter(pk=run.pk).update(fraction=0.39)
    telling.report_progress()
    pull.settle()
    assert len(github.asked) == asked


def test_a_smoke_run_that_failed_says_where_and_a_second_approval_overrules_it(
    pull: Conversation, maintainer: User
) -> None:
    pull.open()
    intake.approve_entry(Entry.objects.get(), pull.sha, maintainer)
    file = {"file": "trainer/models/smear.py", "line": 1, "code": "x = 1"}
    pull.smoke(passed=False, sentence="Its output has the wrong shape.", **file)
    assert "The smoke run failed: Its output has the wrong shape." in pull.comment
    assert "It is in `trainer/models/smear.py`, line 1: `x = 1`." in pull.comment
    assert pull.check == ("completed", "failure", "Smoke run failed")
    pull.say("mara", "/approve")
    assert pull.check[2] == "Waits for a node"


def test_a_smoke_run_comes_first_for_whom_the_site_knows(pull: Conversation, settings: Any) -> None:
    settings.SMOKE_UNAPPROVED = "anyone"
    pull.open()
    assert entries() == [(pull.sha[:8], "smoke")]
    assert "The smoke run of commit" in pull.comment
    assert pull.check == ("in_progress", None, "Smoke run")
    pull.change("closed", state="closed")
    job = Job.objects.get(kind="smoke")
    assert job.state in transitions.FINAL_STATES
