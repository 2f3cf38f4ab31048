"""Smoke tests of entries: permission before approval, node requirements, results and waiting runs."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from leaderboard.models import Entry, PullRequest, Track
from leaderboard.submissions import smoke_tests
from scheduler import leases, transitions
from scheduler.job_kinds import summarize_jobs
from scheduler.models import Node
from tests.support.node_jobs import end_lease, finish_job
from trainer import protocol

PASSED: dict[str, Any] = {
    "passed": True,
    "sentence": "It imports, fits, learns and sees no later token.",
    "checks": [{"name": "starts", "passed": True, "text": "it imports"}],
    "parameters": 1e6,
    "flops_per_token": 6e6,
}
FAILED: dict[str, Any] = {
    **PASSED,
    "passed": False,
    "sentence": "The loss does not fall: 6.24 nats a token before training, 6.24 after 200 steps.",
}


@pytest.fixture
def pull_request(proposed_entry: Entry) -> PullRequest:
    """The pull request of the proposed entry, by an unknown author."""
    pull_request = PullRequest.objects.create(
        repository="trains/daily", number=7, author="eve", author_id=99, head_sha="a" * 40
    )
    Entry.objects.filter(pk=proposed_entry.pk).update(pull_request=pull_request)
    proposed_entry.refresh_from_db()
    return pull_request


def finish_smoke_test(entry: Entry, result: dict[str, Any]) -> Entry:
    """Finish the entry's smoke test with this result."""
    entry.refresh_from_db()
    finish_job(entry.smoke_job, result)
    entry.refresh_from_db()
    return entry


def test_smoke_test_before_approval_is_for_authors_known_by_account(
    proposed_entry: Entry, pull_request: PullRequest, track: Track, settings: Any
) -> None:
    fields = {"track": track, "kind": Entry.Kind.ARCHITECTURE, "architecture": "smear", "author": proposed_entry.author}
    earlier = Entry.objects.create(**fields, sha="b" * 40, approved_at=timezone.now())
    assert smoke_tests.queue_smoke_test(proposed_entry) is None, "a name is not an account"
    earlier.pull_request = PullRequest.objects.create(repository="trains/daily", number=3, author="Eve", author_id=99)
    earlier.save()
    settings.SMOKE_UNAPPROVED = "nobody"
    assert smoke_tests.queue_smoke_test(proposed_entry) is None
    settings.SMOKE_UNAPPROVED = "known"
    assert smoke_tests.queue_smoke_test(proposed_entry) is not None


def test_smoke_test_of_unapproved_code_needs_trusted_node_and_stores_its_result(
    proposed_entry: Entry, capable_node: Node
) -> None:
    smoke_tests.queue_smoke_test(proposed_entry, is_vouched=True)
    capable_node.trusted = False
    capable_node.save()
    assert leases.claim_job(capable_node) is None
    capable_node.trusted = True
    capable_node.save()
    lease = leases.claim_job(capable_node)
    order = protocol.JobSpec.model_validate_json(lease.spec).order
    assert isinstance(order, protocol.SmokeOrder)
    assert (order.config["arch"], order.tokenizer, order.peak) == ("smear", "bpe:512", None)
    assert order.memory_bytes == proposed_entry.track.training_limits().memory_bytes
    assert finish_smoke_test(proposed_entry, PASSED).state == Entry.State.PROPOSED
    assert (proposed_entry.smoke["passed"], proposed_entry.smoke["parameters"]) == (True, 1e6)
    assert proposed_entry.smoke_sentence == PASSED["sentence"]
    job = proposed_entry.smoke_job
    assert summarize_jobs([job])[job.pk].outcome == PASSED["sentence"]
    assert smoke_tests.queue_smoke_test(proposed_entry, is_vouched=True) is not None
    end_lease(job.leases.get(), "done", result=FAILED)
    proposed_entry.refresh_from_db()
    assert (proposed_entry.state, proposed_entry.smoke) == (Entry.State.SMOKE, {}), "the first one was superseded"


def test_failed_smoke_test_counts_against_entry_by_cause(proposed_entry: Entry) -> None:
    for cause, passed in (("infrastructure", None), ("model", False)):
        job = smoke_tests.queue_smoke_test(proposed_entry, is_vouched=True)
        transitions.fail_job(job, "node:cellar", cause, "It ended.")  # type: ignore[arg-type]
        proposed_entry.refresh_from_db()
        assert (proposed_entry.state, proposed_entry.smoke["passed"]) == (Entry.State.PROPOSED, passed)
    smoke_tests.queue_smoke_test(proposed_entry, is_vouched=True)
    assert finish_smoke_test(proposed_entry, {"passed": "maybe"}).smoke == {"passed": None}
    assert "is invalid" in proposed_entry.smoke_sentence
