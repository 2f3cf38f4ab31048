"""A smoke run comes before any GPU: who may have one unlooked at, what becomes of it, and what waits for it."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from leaderboard.job_handlers import smoke
from leaderboard.models import Entry, PullRequest, Run, Track
from leaderboard.submissions import intake, smoke_tests
from scheduler import leases, transitions
from scheduler.job_kinds import get_job_kind, summarize_jobs
from scheduler.models import Event, Job, Lease, Node
from tests.leaderboard.conftest import lease
from trainer import protocol

FOUND: dict[str, Any] = {
    "passed": True,
    "sentence": "It imports, fits, learns and sees no later token.",
    "checks": [{"name": "starts", "passed": True, "text": "it imports"}],
    "parameters": 1e6,
    "flops_per_token": 6e6,
}
FAILED: dict[str, Any] = {
    **FOUND,
    "passed": False,
    "sentence": "The loss does not fall: 6.24 nats a token before training, 6.24 after 200 steps.",
}


@pytest.fixture
def pull(idea: Entry) -> PullRequest:
    """The pull request that the idea came with, of somebody unknown."""
    made = PullRequest.objects.create(
        repository="trains/daily", number=7, author="eve", author_id=99, head_sha="a" * 40
    )
    Entry.objects.filter(pk=idea.pk).update(pull_request=made)
    idea.refresh_from_db()
    return made


def told(entry: Entry, result: dict[str, Any]) -> Entry:
    """Let its smoke run end so."""
    entry.refresh_from_db()
    assert entry.smoke_job is not None
    assert transitions.change_job_state(
        entry.smoke_job, Job.State.DONE, since=[Job.State.QUEUED, Job.State.LEASED], actor="site", message="Done."
    )
    get_job_kind(entry.smoke_job).handle_done(entry.smoke_job, result)
    entry.refresh_from_db()
    return entry


def sentences(entry: Entry) -> list[str]:
    return [event.sentence for event in Event.objects.about(entry)]


def test_a_strangers_code_waits_for_a_maintainer_and_known_code_does_not(
    idea: Entry, pull: PullRequest, settings: Any, maintainer: User
) -> None:
    assert smoke_tests.queue_smoke_test(idea) is None
    settings.SMOKE_UNAPPROVED = "nobody"
    Entry.objects.filter(pk=idea.pk).update(requested_by=maintainer)
    idea.refresh_from_db()
    assert smoke_tests.queue_smoke_test(idea) is None
    settings.SMOKE_UNAPPROVED = "known"
    assert smoke_tests.queue_smoke_test(idea) is not None


def test_who_had_an_entry_approved_is_known_and_a_name_in_a_commit_is_not(
    idea: Entry, pull: PullRequest, track: Track
) -> None:
    fields = {"track": track, "kind": Entry.Kind.ARCHITECTURE, "architecture": "smear", "author": idea.author}
    earlier = Entry.objects.create(**fields, sha="b" * 40, approved_at=timezone.now())
    assert not smoke_tests.can_run_unapproved(idea)
    earlier.pull_request = PullRequest.objects.create(repository="trains/daily", number=3, author="Eve", author_id=99)
    earlier.save()
    assert smoke_tests.can_run_unapproved(idea)


def test_a_maintainer_who_asks_vouches_for_the_code(idea: Entry, pull: PullRequest) -> None:
    job = smoke_tests.queue_smoke_test(idea, actor="mara", is_vouched=True)
    idea.refresh_from_db()
    assert (idea.state, idea.smoke_job) == (Entry.State.SMOKE, job)
    assert smoke_tests.queue_smoke_test(idea, is_vouched=True) is None, "one at a time"


def test_unapproved_code_goes_only_to_trusted_nodes_with_a_sandbox(idea: Entry, able: Node) -> None:
    smoke_tests.queue_smoke_test(idea, is_vouched=True)
    able.trusted = False
    able.save()
    assert leases.claim_job(able) is None
    able.trusted = True
    able.save()
    given = leases.claim_job(able)
    assert given is not None
    order = protocol.JobSpec.model_validate_json(given.spec).order
    assert isinstance(order, protocol.SmokeOrder)
    assert (order.config["arch"], order.tokenizer, order.peak) == ("smear", "bpe:512", None)
    assert order.memory_bytes == idea.track.training_limits().memory_bytes


@pytest.mark.parametrize(
    ("labels", "memory", "peak"),
    [
        (["2x24gb"], 48e9, None),
        (["1xh100"], None, 989e12),
        (["2x3090"], None, 142e12),
        (["1x80gb", "1xh100"], 80e9, 989e12),
    ],
)
def test_what_the_tracks_machines_have_is_told(
    labels: list[str], memory: float | None, peak: float | None, idea: Entry, node: Node
) -> None:
    idea.track.needs_labels = labels
    idea.track.save()
    job = smoke_tests.queue_smoke_test(idea, is_vouched=True)
    assert job is not None
    order = smoke.SmokeTestHandler().build_order(job, None)
    assert (order.memory_bytes, order.peak, order.config["device"]) == (memory, peak, "cuda")


def test_what_was_found_is_on_the_entry_which_is_proposed_again(idea: Entry) -> None:
    smoke_tests.queue_smoke_test(idea, is_vouched=True)
    assert told(idea, FOUND).state == Entry.State.PROPOSED
    assert (idea.smoke["passed"], idea.smoke["parameters"]) == (True, 1e6)
    assert idea.smoke_sentence == FOUND["sentence"]
    assert f"Smoke run passed: {FOUND['sentence']}" in sentences(idea)
    assert idea.smoke_job is not None
    assert summarize_jobs([idea.smoke_job])[idea.smoke_job.pk].outcome == FOUND["sentence"]


def test_an_answer_that_cannot_be_right_says_nothing(idea: Entry) -> None:
    smoke_tests.queue_smoke_test(idea, is_vouched=True)
    assert told(idea, {"passed": "maybe"}).smoke == {"passed": None}
    assert "is invalid" in idea.smoke_sentence


def test_a_lost_node_says_nothing_about_the_entry_and_its_own_fault_does(idea: Entry, node: Node) -> None:
    for cause, passed in (("infrastructure", None), ("model", False)):
        job = smoke_tests.queue_smoke_test(idea, is_vouched=True)
        assert job is not None
        lease(job, node)
        transitions.fail_job(job, "node:cellar", cause, "It ended.")  # type: ignore[arg-type]
        idea.refresh_from_db()
        assert (idea.state, idea.smoke["passed"]) == (Entry.State.PROPOSED, passed)


def test_an_approved_pull_request_is_smoked_first_and_then_trains(
    idea: Entry, pull: PullRequest, maintainer: User
) -> None:
    (run,) = intake.approve_entry(idea, idea.sha, maintainer)
    assert (run.state, run.reason) == (Run.State.WAITING, "Approved; waits for its smoke run.")
    assert idea.smoke_job is not None
    assert not idea.smoke_job.needs_trusted, "it was looked at"
    assert told(idea, FOUND).state == Entry.State.APPROVED
    run.refresh_from_db()
    assert run.state == Run.State.QUEUED


def test_after_a_failed_one_a_maintainer_may_let_it_train_all_the_same(
    idea: Entry, pull: PullRequest, maintainer: User
) -> None:
    (run,) = intake.approve_entry(idea, idea.sha, maintainer)
    told(idea, FAILED)
    run.refresh_from_db()
    assert run.state == Run.State.WAITING
    assert run.reason.startswith("Approved, but its smoke run failed: The loss does not fall")
    (run,) = intake.approve_entry(idea, idea.sha, maintainer)
    assert run.state == Run.State.QUEUED


def test_approving_while_it_runs_waits_for_it(idea: Entry, maintainer: User) -> None:
    smoke_tests.queue_smoke_test(idea, is_vouched=True)
    idea.refresh_from_db()
    (run,) = intake.approve_entry(idea, idea.sha, maintainer)
    assert run.state == Run.State.WAITING
    assert idea.smoke_job is not None
    assert transitions.change_job_state(
        idea.smoke_job, Job.State.LEASED, since=[Job.State.QUEUED], actor="node:cellar", message="On."
    )
    transitions.fail_job(idea.smoke_job, "node:cellar", "infrastructure", "The node was lost.")
    run.refresh_from_db()
    assert run.state == Run.State.QUEUED, "it said nothing against the entry"


def test_a_closed_entry_has_none_any_more(idea: Entry) -> None:
    job = smoke_tests.queue_smoke_test(idea, is_vouched=True)
    intake.withdraw_entry(idea)
    assert job is not None
    job.refresh_from_db()
    idea.refresh_from_db()
    assert (job.state, idea.state) == (Job.State.CANCELLED, Entry.State.WITHDRAWN)
    assert smoke_tests.queue_smoke_test(idea, is_vouched=True) is None


def test_a_result_of_an_older_one_does_not_count(idea: Entry, node: Node) -> None:
    first = smoke_tests.queue_smoke_test(idea, is_vouched=True)
    assert first is not None
    told(idea, FOUND)
    second = smoke_tests.queue_smoke_test(idea, is_vouched=True)
    assert second is not None
    smoke.SmokeTestHandler().handle_done(first, FAILED)
    idea.refresh_from_db()
    assert (idea.state, idea.smoke) == (Entry.State.SMOKE, {})
    assert not Lease.objects.exists()
