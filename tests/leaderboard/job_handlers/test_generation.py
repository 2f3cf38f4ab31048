"""Visitor prompts: rate limits, the order for the node, and the generated text."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from leaderboard.job_handlers import generation
from leaderboard.job_handlers.generation import GenerationError, Prompt, queue_generation
from leaderboard.models import Entry, Generation, Run
from scheduler import leases, transitions
from scheduler.job_kinds import get_job_kind, summarize_jobs
from scheduler.models import Job, Node
from tests.leaderboard.conftest import finish_run
from tests.support.node_jobs import finish_job, lease_job, requeue_job
from trainer import protocol

PROMPT = Prompt("The train", 50, 0.5)


@pytest.fixture
def finished_run(run: Run, capable_node: Node) -> Run:
    return finish_run(run, capable_node)


def send_text(generation_row: Generation, *texts: object) -> str:
    get_job_kind(generation_row.job).handle_metrics(
        generation_row.job, [{"kind": "text", "text": text} for text in texts]
    )
    generation_row.refresh_from_db()
    return generation_row.text


def test_prompt_job_is_leased_to_trusted_node_with_prompt_and_weights(finished_run: Run, capable_node: Node) -> None:
    generation_row = queue_generation(finished_run, PROMPT, "192.0.2.1")
    Node.objects.update(trusted=False)
    capable_node.refresh_from_db()
    assert leases.claim_job(capable_node) is None
    Node.objects.update(trusted=True)
    capable_node.refresh_from_db()
    lease = leases.claim_job(capable_node)
    assert lease is not None
    order = protocol.JobSpec.model_validate_json(lease.spec).order
    assert isinstance(order, protocol.GenerateOrder)
    assert (order.prompt, order.tokens, order.temperature, order.seed) == ("The train", 50, 0.5, generation_row.seed)
    assert [file.path for file in order.checkpoint.files] == ["checkpoints/step-00000020/model.safetensors"]
    assert summarize_jobs([generation_row.job])[generation_row.job_id].title == "Smeared keys, visitor prompt"


def test_prompt_for_run_without_weights_is_refused(run: Run) -> None:
    with pytest.raises(GenerationError, match="has no weights"):
        queue_generation(run, PROMPT, "192.0.2.1")


def test_generated_text_is_sanitized_and_limited_in_length(finished_run: Run, capable_node: Node) -> None:
    generation_row = queue_generation(finished_run, PROMPT, "192.0.2.1")
    lease_job(generation_row.job, capable_node)
    assert send_text(generation_row, " leaves", "\x1b[31m at <nine>\x00", 7) == " leaves[31m at <nine>"
    assert len(send_text(generation_row, "x" * 30_000)) == generation.MAX_TEXT
    finish_job(generation_row.job, {"version": 1, "tokens": 9, "seconds": 2.0, "ended": "length"})
    generation_row.refresh_from_db()
    assert (generation_row.written, generation_row.tokens_per_second) == (9, 4.5)


def test_generated_text_of_requeued_job_starts_over(finished_run: Run, capable_node: Node) -> None:
    generation_row = queue_generation(finished_run, PROMPT, "192.0.2.1")
    lease = lease_job(generation_row.job, capable_node)
    send_text(generation_row, " half a")
    requeue_job(lease)
    lease_job(generation_row.job, capable_node)
    assert send_text(generation_row, " whole") == " whole"


def test_invalid_generation_result_keeps_the_text(finished_run: Run, capable_node: Node) -> None:
    generation_row = queue_generation(finished_run, PROMPT, "192.0.2.1")
    lease_job(generation_row.job, capable_node)
    send_text(generation_row, " leaves")
    finish_job(generation_row.job, {"tokens": -1})
    generation_row.refresh_from_db()
    assert (generation_row.text, generation_row.written) == (" leaves", None)


@pytest.mark.usefixtures("rate_limit_clock")
def test_prompts_of_one_visitor_are_rate_limited(finished_run: Run) -> None:
    for _ in range(4):
        queue_generation(finished_run, PROMPT, "192.0.2.1")
    with pytest.raises(GenerationError, match="Too many prompts in a short time"):
        queue_generation(finished_run, PROMPT, "192.0.2.1")
    queue_generation(finished_run, PROMPT, "192.0.2.2")


def test_prompts_of_all_visitors_are_limited_by_settings(finished_run: Run, settings: Any) -> None:
    settings.GENERATE_WAITING = 1
    first = queue_generation(finished_run, PROMPT, "192.0.2.1")
    with pytest.raises(GenerationError, match="waiting for a node"):
        queue_generation(finished_run, PROMPT, "192.0.2.2")
    transitions.cancel_job(first.job, "site", "Enough.")
    settings.GENERATE_PER_HOUR = 1
    with pytest.raises(GenerationError, match="limit of prompts for this hour"):
        queue_generation(finished_run, PROMPT, "192.0.2.2")
    settings.GENERATE_PER_HOUR = 0
    with pytest.raises(GenerationError, match="does not accept"):
        queue_generation(finished_run, PROMPT, "192.0.2.2")


def test_visitor_network_of_ipv6_is_its_prefix() -> None:
    networks = {generation.get_visitor_network(f"2001:db8:1:2::{number}") for number in range(3)}
    assert networks == {"2001:db8:1:2::/64"}
    assert generation.get_visitor_network("192.0.2.1") == "192.0.2.1"
    assert generation.get_visitor_network("") == ""


def test_old_generations_are_cancelled_then_deleted(finished_run: Run) -> None:
    generation_row = queue_generation(finished_run, PROMPT, "192.0.2.1")
    generation.expire_generations()
    generation_row.job.refresh_from_db()
    assert generation_row.job.state == Job.State.QUEUED
    Generation.objects.update(created_at=timezone.now() - timedelta(hours=2))
    generation.expire_generations()
    generation_row.job.refresh_from_db()
    assert (generation_row.job.state, generation_row.job.reason[:10]) == (Job.State.CANCELLED, "No node wa")
    Generation.objects.update(created_at=timezone.now() - timedelta(days=8))
    generation.expire_generations()
    assert not Generation.objects.exists()
    assert Job.objects.filter(pk=generation_row.job_id).exists(), "the job stays, since it counts for its node's hours"
    get_job_kind(generation_row.job).handle_metrics(generation_row.job, [{"kind": "text", "text": "late"}])


def test_best_run_of_track_has_fewest_bits_and_no_dispute(finished_run: Run, proposed_entry: Entry) -> None:
    assert finished_run.job is not None
    better = Run.objects.get(pk=finished_run.pk)
    better.pk, better.seed, better.bits_per_byte, better.score_job = None, 7, 1.0, None
    better.job = Job.objects.create(kind="train", release_id=finished_run.job.release_id)
    better.save()
    assert generation.get_best_run(proposed_entry.track) == better
    Run.objects.filter(pk=better.pk).update(trust=Run.Trust.DISPUTED)
    assert generation.get_best_run(proposed_entry.track) == finished_run
