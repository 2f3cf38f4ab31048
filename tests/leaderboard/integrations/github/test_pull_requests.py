"""Pull requests become entries, and entries become comments and checks, over a real socket."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.cache import caches

from leaderboard.integrations.github import sync
from leaderboard.models import Entry, OutboxMessage, PullRequest, Run, Track
from leaderboard.submissions import intake
from scheduler import transitions
from scheduler.markdown import escape_markdown
from scheduler.models import Job, Node
from tests.leaderboard.conftest import Repository, finish_run
from tests.support import github_payloads as payloads
from tests.support import github_server
from tests.support.git_objects import commit_tree, write_object
from tests.support.github_server import GitHub
from tests.support.pull_request_author import BODY, PullRequestAuthor

pytestmark = pytest.mark.processes


@pytest.fixture
def pull(github: GitHub, main_repository: Repository, track: Track, tmp_path: Path, settings: Any) -> PullRequestAuthor:
    """A fork with a commit, ready to be opened as a pull request; `mara` may write to the repository."""
    settings.SMOKE_UNAPPROVED = "nobody"
    return PullRequestAuthor.create_fork(github, main_repository, tmp_path / "fork")


def list_entries() -> list[tuple[str, str]]:
    return [(entry.sha[:8], entry.state) for entry in Entry.objects.order_by("pk")]


# --- from GitHub to entries ------------------------------------------------------------------------------------------


def test_opened_pull_request_creates_entry_and_comment(pull: PullRequestAuthor) -> None:
    pull.open()
    entry = Entry.objects.get()
    assert (entry.sha, entry.architecture, entry.state, entry.kind) == (pull.sha, "smear", "proposed", "architecture")
    assert (entry.author, entry.title, entry.url) == ("ada", "Smeared keys", pull.payload["html_url"])
    assert entry.hypothesis == "It helps. Expected effect: 3 %"
    assert PullRequest.objects.get().entry == entry
    assert f"Commit `{pull.sha[:8]}` waits for a maintainer" in pull.comment
    assert f"`/approve {pull.sha[:8]}`" in pull.comment
    assert pull.check == ("queued", None, "Waits for approval")


def test_pull_request_takes_over_entry_of_other_requester(pull: PullRequestAuthor, track: Track) -> None:
    eve = User.objects.create_user("eve")
    pull.open(draft=True)  # no entry yet
    repository = PullRequest.objects.get().head_repository
    intake.submit_entry(repository, pull.sha, "Mine", "smear", track, author="eve", requested_by=eve, actor="eve")
    pull.change("ready_for_review", draft=False)
    entry = Entry.objects.get()
    assert (entry.author, entry.requested_by, entry.pull_request) == ("ada", None, PullRequest.objects.get())


def test_pull_request_with_missing_fields_gets_one_updated_comment(pull: PullRequestAuthor) -> None:
    pull.open(body="---\ntrack: smal\nhypothesis: It helps.\ncontact: @ada\n---")
    assert list_entries() == []
    assert "**2 things are in the way of a run:**" in pull.comment
    assert "- There is no track “smal”: it is one of `small`" in pull.comment
    assert "- `expected\\_effect`" not in pull.comment
    assert "- `expected_effect` is missing" in pull.comment
    pull.change("edited", body=BODY.replace("\n", "\r\n"))
    assert list_entries() == [(pull.sha[:8], "proposed")]
    assert "waits for a maintainer" in pull.comment
    assert len(pull.comments) == 1


def test_pull_request_with_unknown_architecture_gets_comment(pull: PullRequestAuthor) -> None:
    pull.open(body=BODY.replace("contact", "architecture: nonsense\ncontact"))
    assert "The commit has no architecture 'nonsense'; it has gpt, smear." in pull.comment


def test_model_change_without_front_matter_gets_comment_asking_for_it(pull: PullRequestAuthor) -> None:
    pull.open(body="Just look.")
    assert "the block that says what to train" in pull.comment
    assert "track: small\nhypothesis:" in pull.comment
    pull.push({"README.md": "A longer train.\n"}, since="main")
    assert "asks for no run" in pull.comment
    assert list_entries() == []


@pytest.mark.parametrize("body", [None, "Docs.", "---\ntrack: none\n---"])
def test_pull_request_without_run_request_gets_no_comment(pull: PullRequestAuthor, body: str | None) -> None:
    pull.commit_files({"README.md": "A longer train.\n"}, since="main")
    pull.open(body=body)
    assert (list_entries(), pull.comments, pull.github.count_requests("POST", "/check-runs")) == ([], [], 0)


def test_draft_pull_request_is_entered_when_ready(pull: PullRequestAuthor) -> None:
    pull.open(draft=True)
    assert list_entries() == []
    assert "This is a draft" in pull.comment
    pull.change("ready_for_review", draft=False)
    assert list_entries() == [(pull.sha[:8], "proposed")]
    pull.change("converted_to_draft", draft=True)
    assert list_entries() == [(pull.sha[:8], "proposed")]


def test_pull_request_of_other_repository_is_ignored(pull: PullRequestAuthor, settings: Any) -> None:
    settings.GITHUB_REPOSITORY = "others/daily"
    pull.open()
    assert not PullRequest.objects.exists()
    assert list_entries() == []


def test_renamed_repository_goes_on(pull: PullRequestAuthor, maintainer: User) -> None:
    pull.open()
    pull.rename_repository("trains/railway")
    pull.push({"trainer/models/smear.py": "x = 2\n"})
    pull.post_comment("mara", f"/approve {pull.sha[:8]}")
    assert [(entry.sha, entry.state) for entry in Entry.objects.order_by("-pk")[:1]] == [(pull.sha, "approved")]
    assert PullRequest.objects.get().repository == "trains/railway"
    assert len([body for body in pull.comments if body.startswith("<!-- dailytrain:pull:")]) == 1


def test_other_repository_with_the_old_name_is_refused(pull: PullRequestAuthor) -> None:
    pull.open()
    pull.rename_repository("trains/railway")
    pull.change("edited", body="Just look.")
    squatter = payloads.repository("trains/daily", number=666)
    pull.process_delivery("pull_request", payloads.pull_request("opened", payloads.pull(squatter, 8, "c" * 40)))
    assert PullRequest.objects.get().number == 7
    last = OutboxMessage.objects.filter(kind="github.delivery").latest("pk")
    assert "trains/daily is another repository on GitHub now" in last.result["ignored"]


def test_commit_that_git_refuses_is_not_tried_again(pull: PullRequestAuthor) -> None:
    blob = bytes.fromhex(pull.fork.git("rev-parse", "HEAD:README.md"))
    tree = write_object(pull.fork, "tree", 2 * (b"100644 README.md\0" + blob))
    pull.sha = commit_tree(pull.fork, tree)
    pull.fork.git("update-ref", "refs/heads/idea", pull.sha)
    pull.open(process_now=False)
    pull.process_pending_work(once=True)
    assert "duplicateEntries" in pull.comment
    assert "tried again" not in pull.comment
    assert OutboxMessage.objects.get(kind=sync.SYNC).state == OutboxMessage.State.DONE


# --- pushes, closing, order ------------------------------------------------------------------------------------------


def test_push_withdraws_approval_and_cancels_run(pull: PullRequestAuthor, maintainer: User) -> None:
    pull.open()
    old_sha, old_entry = pull.sha, Entry.objects.get()
    (run,) = intake.approve_entry(old_entry, old_entry.sha, maintainer)
    pull.process_pending_work()
    pull.push({"trainer/models/smear.py": "x = 3\n"})
    assert list_entries() == [(old_sha[:8], "withdrawn"), (pull.sha[:8], "proposed")]
    run.refresh_from_db()
    assert run.state == "cancelled"
    assert f"Commit `{pull.sha[:8]}` waits for a maintainer" in pull.comment
    assert pull.find_check(old_sha) == ("completed", "cancelled", "Withdrawn")
    assert pull.check == ("queued", None, "Waits for approval")
    assert len(pull.comments) == 1


def test_closed_pull_request_cancels_run_and_reopening_restores_entry(
    pull: PullRequestAuthor, maintainer: User
) -> None:
    pull.open()
    (run,) = intake.approve_entry(Entry.objects.get(), pull.sha, maintainer)
    pull.change("closed", state="closed")
    run.refresh_from_db()
    assert (run.state, list_entries()) == ("cancelled", [(pull.sha[:8], "withdrawn")])
    assert "Withdrawn: The pull request was closed." in pull.comment
    pull.change("reopened", state="open")
    entry = Entry.objects.get()
    assert (entry.state, entry.approved_by) == ("proposed", None)
    again = intake.approve_entry(entry, pull.sha, maintainer)
    assert sorted(run.state for run in again) == ["cancelled", "waiting"]


def test_merged_pull_request_keeps_approved_run(pull: PullRequestAuthor, maintainer: User) -> None:
    pull.open()
    (run,) = intake.approve_entry(Entry.objects.get(), pull.sha, maintainer)
    pull.change("closed", state="closed", merged=True)
    run.refresh_from_db()
    assert (run.state, PullRequest.objects.get().state) == ("waiting", "merged")


def test_repeated_and_late_deliveries_have_no_effect(pull: PullRequestAuthor, github: GitHub) -> None:
    pull.open()
    pull.push({"trainer/models/smear.py": "x = 3\n"})
    state, comments = list_entries(), github.count_requests("PATCH", "/issues/comments")
    for delivery in list(github.deliveries):
        pull.process_delivery(delivery["event"], delivery["payload"])
    pull.process_pending_work()
    assert list_entries() == state
    assert PullRequest.objects.get().head_sha == pull.sha
    assert github.count_requests("PATCH", "/issues/comments") == comments
    assert len(pull.comments) == 1


def test_changes_within_one_second_are_ordered_by_github(pull: PullRequestAuthor, github: GitHub) -> None:
    pull.open()
    first = dict(pull.payload)
    pull.commit_files({"trainer/models/smear.py": "x = 3\n"})
    last = {**first, "head": {**first["head"], "sha": pull.sha}}
    github.repositories["trains/daily"].pulls[7] = last
    for shown in (last, first):  # the older one comes later
        pull.process_delivery("pull_request", payloads.pull_request("synchronize", shown))
    pull.process_pending_work()
    assert PullRequest.objects.get().head_sha == pull.sha


def test_edited_track_moves_entry_to_that_track(pull: PullRequestAuthor, track: Track) -> None:
    fields = {"budget": "24h", "expected_seconds": 86_400, "is_traced": False}
    Track.objects.create(slug="day", name="Day", season=track.season, **fields)
    pull.open()
    pull.change("edited", body=BODY.replace("small", "day"))
    assert [(entry.track.slug, entry.state) for entry in Entry.objects.order_by("pk")] == [
        ("small", "withdrawn"),
        ("day", "proposed"),
    ]


def test_commit_that_cannot_be_fetched_is_retried(pull: PullRequestAuthor) -> None:
    git_folder, moved_folder = pull.fork.path / ".git", pull.fork.path / "aside"
    git_folder.rename(moved_folder)
    pull.open(process_now=False)
    pull.process_pending_work(once=True)
    assert "The commit could not be fetched" in pull.comment
    assert "tried again by itself" in pull.comment
    moved_folder.rename(git_folder)
    pull.process_pending_work()
    assert list_entries() == [(pull.sha[:8], "proposed")]
    assert "waits for a maintainer" in pull.comment


def test_deliveries_in_any_order_leave_newest_state(pull: PullRequestAuthor) -> None:
    repository = pull.github.get_or_create_repository().payload
    for seed in range(20):
        rng = random.Random(seed)
        versions = [
            payloads.pull(
                repository, 100 + seed, f"{rng.getrandbits(160):040x}", body="x", updated_at=build_timestamp(0)
            )
        ]
        for second in range(1, 9):
            change = rng.choice([
                {"state": "closed"}, {"state": "open"}, {"title": f"Title {second}"}, {"draft": rng.random() < 0.5},
                {"head": {**versions[-1]["head"], "sha": f"{rng.getrandbits(160):040x}"}},
            ])  # fmt: skip
            versions.append({**versions[-1], **change, "updated_at": build_timestamp(second)})
        for version in rng.choices(versions, k=10) + rng.sample(versions, k=len(versions)):
            sync.handle_pull_request(payloads.pull_request("edited", version), None)
        row, last = PullRequest.objects.get(number=100 + seed), versions[-1]
        stored = (row.head_sha, row.title, row.state, row.draft)
        assert stored == (last["head"]["sha"], last["title"], last["state"], last["draft"])


def build_timestamp(second: int) -> str:
    return f"2026-11-21T18:00:0{second}Z"


def test_pull_request_with_each_documented_action_is_accepted(pull: PullRequestAuthor) -> None:
    shown = payloads.pull(pull.github.get_or_create_repository().payload, 7, pull.sha, body=None)
    deleted_fork = {"head": {**shown["head"], "repo": None, "user": None}}
    for action in payloads.ACTIONS:
        for changes in ({}, deleted_fork, {"user": None, "draft": None, "title": None}):
            assert sync.handle_pull_request(payloads.pull_request(action, {**shown, **changes}), None) is None
    pull.process_pending_work()


# --- from entries to GitHub ------------------------------------------------------------------------------------------


def test_comment_and_check_follow_run_to_its_result(
    pull: PullRequestAuthor, maintainer: User, capable_node: Node
) -> None:
    pull.open()
    (run,) = intake.approve_entry(Entry.objects.get(), pull.sha, maintainer)
    pull.process_pending_work()
    assert "smoke test of commit" in pull.comment
    pull.finish_smoke_test()
    run.refresh_from_db()
    assert f"Run {run.pk} waits for a node" in pull.comment
    assert pull.check == ("queued", None, "Waits for a node")
    finish_run(run, capable_node)
    pull.process_pending_work()
    assert "2.5000 bits per byte" in pull.comment
    assert f"| [{run.pk}](" in pull.comment
    assert pull.check[:2] == ("completed", "success")
    assert len(pull.comments) == 1


def test_comment_that_was_deleted_is_created_again(pull: PullRequestAuthor, github: GitHub) -> None:
    pull.open()
    comments = github.repositories["trains/daily"].comments
    comments.clear()
    pull.change("edited", body=BODY + "more", title="Another title")
    pull.push({"trainer/models/smear.py": "x = 3\n"})
    assert len(pull.comments) == 1
    OutboxMessage.objects.filter(kind="github.comment").update(result={})
    pull.push({"trainer/models/smear.py": "x = 4\n"})
    assert len(pull.comments) == 1
    assert pull.sha[:8] in pull.comment


def test_lost_response_and_rate_limit_create_no_second_comment(pull: PullRequestAuthor, github: GitHub) -> None:
    github.fail_requests(502, path="/comments$", method="POST", after=True)
    github.apply_secondary_limit(1, path="/check-runs$", method="POST")
    pull.open(process_now=False)
    pull.process_pending_work(once=True)
    waiting = {message.kind: message.problem for message in OutboxMessage.objects.filter(state="pending")}
    assert "GitHub answered 502" in waiting["github.comment"]
    assert "secondary rate limit" in waiting["github.check"]
    caches["github"].clear()  # the rate limit is over
    pull.process_pending_work()
    assert len(pull.comments) == 1
    assert pull.check == ("queued", None, "Waits for approval")


def test_pull_request_check_with_plain_token_is_a_commit_status(
    pull: PullRequestAuthor, github: GitHub, settings: Any
) -> None:
    settings.GITHUB_APP_ID = settings.GITHUB_PRIVATE_KEY = ""
    settings.GITHUB_TOKEN = github_server.TOKEN
    pull.open()
    (status,) = github.get_or_create_repository("trains/daily").statuses
    assert (status["context"], status["state"]) == ("Daily Train / small", "pending")
    assert len(github.get_or_create_repository("trains/daily").list_comments_on(7)) == 1


def test_site_without_github_credentials_still_creates_entry(pull: PullRequestAuthor, settings: Any) -> None:
    settings.GITHUB_APP_ID = settings.GITHUB_PRIVATE_KEY = ""
    pull.open()
    assert list_entries() == [(pull.sha[:8], "proposed")]
    assert {message.state for message in OutboxMessage.objects.filter(kind="github.comment")} == {"failed"}


def test_escaped_markdown_mentions_no_user_and_has_no_markup() -> None:
    text = escape_markdown("<b>@mara</b> fixes #12 | `x` [a](b)\n# no")
    assert text == "\\<b\\>@\u2060mara\\</b\\> fixes #\u206012 \\| \\`x\\` \\[a\\](b) # no"


def test_progress_is_reported_in_steps_of_ten_percent(
    pull: PullRequestAuthor, maintainer: User, github: GitHub
) -> None:
    from leaderboard.integrations.github import comments

    pull.open()
    (run,) = intake.approve_entry(Entry.objects.get(), pull.sha, maintainer)
    Run.objects.filter(pk=run.pk).update(state="training", fraction=0.34, node_name="cellar")
    comments.report_progress()
    pull.process_pending_work()
    assert pull.check == ("in_progress", None, "Training, 30 % of the way")
    request_count = len(github.requests)
    Run.objects.filter(pk=run.pk).update(fraction=0.39)
    comments.report_progress()
    pull.process_pending_work()
    assert len(github.requests) == request_count


def test_failed_smoke_run_names_line_and_second_approval_overrides_it(
    pull: PullRequestAuthor, maintainer: User
) -> None:
    pull.open()
    intake.approve_entry(Entry.objects.get(), pull.sha, maintainer)
    file = {"file": "trainer/models/smear.py", "line": 1, "code": "x = 1"}
    pull.finish_smoke_test(passed=False, sentence="Its output has the wrong shape.", **file)
    assert "The smoke test failed: Its output has the wrong shape." in pull.comment
    assert "It is in `trainer/models/smear.py`, line 1: `x = 1`." in pull.comment
    assert pull.check == ("completed", "failure", "Smoke test failed")
    pull.post_comment("mara", "/approve")
    assert pull.check[2] == "Waits for a node"


def test_smoke_run_of_known_author_starts_before_approval(pull: PullRequestAuthor, settings: Any) -> None:
    settings.SMOKE_UNAPPROVED = "anyone"
    pull.open()
    assert list_entries() == [(pull.sha[:8], "smoke")]
    assert "The smoke test of commit" in pull.comment
    assert pull.check == ("in_progress", None, "Smoke test")
    pull.change("closed", state="closed")
    job = Job.objects.get(kind="smoke")
    assert job.state in transitions.FINAL_STATES
