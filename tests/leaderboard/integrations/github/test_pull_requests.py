"""Pull requests become entries, and entries become comments and checks, over a real socket."""

from __future__ import annotations

import random
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.cache import caches

from leaderboard import rulings
from leaderboard.integrations.github import sync
from leaderboard.models import Entry, OutboxMessage, PullRequest, Ruling, Run, Track
from leaderboard.submissions import intake
from scheduler.models import Node
from tests.leaderboard.conftest import finish_run
from tests.support import github_payloads as payloads
from tests.support import scene
from tests.support.git_objects import commit_tree, write_object
from tests.support.github_server import GitHub
from tests.support.pull_request_author import BODY, PullRequestAuthor

pytestmark = pytest.mark.processes


def list_entries() -> list[tuple[str, str]]:
    return [(entry.sha[:8], entry.state) for entry in Entry.objects.order_by("pk")]


# --- from GitHub to entries ------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("body", [None, "Docs.", "---\ntrack: none\n---"])
def test_pull_request_without_run_request_gets_no_comment(pull: PullRequestAuthor, body: str | None) -> None:
    pull.commit_files({"README.md": "A longer train.\n"}, since="main")
    pull.open(body=body)
    assert (list_entries(), pull.comments, pull.github.count_requests("POST", "/check-runs")) == ([], [], 0)


def test_draft_is_entered_when_ready_and_takes_over_entry_of_other_requester(
    pull: PullRequestAuthor, track: Track
) -> None:
    pull.open(draft=True)
    assert list_entries() == []
    assert "This is a draft" in pull.comment
    eve, row = User.objects.create_user("eve"), PullRequest.objects.get()
    fields: dict[str, Any] = {"author": "eve", "requested_by": eve, "actor": "eve"}
    hers = scene.create_entry(track, "Hers", sha="1" * 40)
    intake.submit_entry(row.head_repository, pull.sha, "Mine", "smear", track, **fields, based_on=hers.pk)
    pull.change("ready_for_review", draft=False)
    entry = Entry.objects.get(sha=pull.sha)
    assert (entry.author, entry.requested_by, entry.pull_request, entry.based_on) == ("ada", None, row, None)
    hers.delete()
    assert list_entries() == [(pull.sha[:8], "proposed")]
    pull.change("converted_to_draft", draft=True)
    assert list_entries() == [(pull.sha[:8], "proposed")]


def test_renamed_repository_goes_on_and_another_one_with_its_old_name_is_refused(pull: PullRequestAuthor) -> None:
    pull.open()
    pull.rename_repository("trains/railway")
    pull.push({"trainer/models/smear.py": "x = 2\n"})
    pull.post_comment("mara", f"/approve {pull.sha[:8]}")
    assert [(entry.sha, entry.state) for entry in Entry.objects.order_by("-pk")[:1]] == [(pull.sha, "approved")]
    assert PullRequest.objects.get().repository == "trains/railway"
    assert len([body for body in pull.comments if body.startswith("<!-- dailytrain:pull:")]) == 1
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


def test_pull_request_gets_one_comment_about_a_ruling(pull: PullRequestAuthor) -> None:
    pull.open()
    entry = Entry.objects.get()
    ruling = Ruling.objects.create(text="It peeks.", scope="entries")
    ruling.listed.add(entry)
    rulings.apply_rulings()
    pull.process_pending_work()
    mark = f"<!-- dailytrain:ruling:{ruling.pk} -->"
    [comment] = [body for body in pull.comments if body.startswith(mark)]
    assert "1 entry of this pull request does not rank.**" in comment
    assert "It peeks." in comment
    assert f"/entries/{entry.pk}/" in comment
    rulings.revoke_ruling(ruling, "mara")
    pull.process_pending_work()
    [comment] = [body for body in pull.comments if body.startswith(mark)]
    assert "no longer concerns this pull request: it is revoked.**" in comment


def test_pull_request_gets_one_comment_about_a_new_cap(pull: PullRequestAuthor) -> None:
    ruling = Ruling.objects.create(text="Too long.", effect="cap", scope="cap", cap="source_bytes", cap_value=1.5)
    pull.open()
    Entry.objects.update(source_bytes=2)
    for sentence in ("1 entry of this pull request is above its new cap on source_bytes.**", "it is revoked.**"):
        rulings.apply_rulings()
        rulings.apply_rulings()
        pull.process_pending_work()
        mark = f"<!-- dailytrain:ruling:{ruling.pk} -->"
        [comment] = [body for body in pull.comments if body.startswith(mark)]
        assert sentence in comment
        rulings.revoke_ruling(ruling, "mara")


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
        sha = f"{rng.getrandbits(160):040x}"
        versions = [payloads.pull(repository, 100 + seed, sha, body="x", updated_at=build_timestamp(0))]
        for second in range(1, 9):
            change = rng.choice([
                {"state": "closed"}, {"state": "open"}, {"title": f"Title {second}"}, {"draft": rng.random() < 0.5},
                {"head": {**versions[-1]["head"], "sha": f"{rng.getrandbits(160):040x}"}},
            ])  # fmt: skip
            versions.append({**versions[-1], **change, "updated_at": build_timestamp(second)})
        for version in rng.choices(versions, k=10) + rng.sample(versions, k=len(versions)):
            sync.handle_pull_request(payloads.pull_request("edited", version))
        row, last = PullRequest.objects.get(number=100 + seed), versions[-1]
        stored = (row.head_sha, row.title, row.state, row.draft)
        assert stored == (last["head"]["sha"], last["title"], last["state"], last["draft"])


def build_timestamp(second: int) -> str:
    return f"2026-11-21T18:00:0{second}Z"


# --- from entries to GitHub ------------------------------------------------------------------------------------------


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


def test_pull_request_with_lost_responses_and_repeated_deliveries_gets_one_result(
    pull: PullRequestAuthor, github: GitHub, capable_node: Node, settings: Any
) -> None:
    github.fail_requests(502, path="/comments$", method="POST", after=True)
    github.apply_secondary_limit(1, path="/check-runs$", method="POST")
    pull.open(process_now=False)
    pull.process_pending_work(once=True)
    waiting = {message.kind: message.problem for message in OutboxMessage.objects.filter(state="pending")}
    assert "GitHub answered 502" in waiting["github.comment"]
    assert "secondary rate limit" in waiting["github.check"]
    caches["github"].clear()  # the rate limit is over
    pull.process_pending_work()
    assert pull.check == ("queued", None, "Waits for approval")
    pull.push({"trainer/models/smear.py": "x = 3\n"})
    pull.post_comment("mara", f"/approve {pull.sha[:8]}")
    assert "smoke test of commit" in pull.comment
    pull.finish_smoke_test()
    run = Run.objects.get()
    assert f"Run {run.pk} waits for a node" in pull.comment
    finish_run(run, capable_node)
    pull.process_pending_work()
    changes = github.count_requests("PATCH", "/issues/comments")
    for delivery in list(github.deliveries):
        pull.process_delivery(delivery["event"], delivery["payload"])
    pull.process_pending_work()
    assert github.count_requests("PATCH", "/issues/comments") == changes
    assert [entry.state for entry in Entry.objects.order_by("pk")] == ["withdrawn", "approved"]
    assert "2.5000 bits per byte" in pull.comment
    assert pull.check == ("completed", "success", "2.5000 bits per byte")
    repository = github.repositories["trains/daily"]
    assert (len(pull.comments), len(repository.checks)) == (1, 2), "a check for each commit"
    assert [content for _, content in repository.reactions] == ["+1"]
    settings.GITHUB_APP_ID = settings.GITHUB_PRIVATE_KEY = ""  # without credentials entries are still created
    pull.push({"trainer/models/smear.py": "x = 4\n"})
    assert Entry.objects.latest("pk").sha == pull.sha
    assert OutboxMessage.objects.filter(kind="github.comment", state="failed").exists()
