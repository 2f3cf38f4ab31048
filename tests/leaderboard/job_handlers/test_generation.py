"""Visitor prompts: rate limits, the order for the node, and the generated text."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from leaderboard.job_handlers import generation
from leaderboard.job_handlers.generation import GenerationError, Prompt, queue_generation
from leaderboard.models import Generation, Run
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
    order = protocol.JobSpec.model_validate_json(lease.spec).order
    assert isinstance(order, protocol.GenerateOrder)
    assert (order.prompt, order.tokens, order.temperature, order.seed) == ("The train", 50, 0.5, generation_row.seed)
    assert [file.path for file in order.checkpoint.files] == ["checkpoints/step-00000020/model.safetensors"]
    assert summarize_jobs([generation_row.job])[generation_row.job_id].title == "Smeared keys, visitor prompt"


@pytest.mark.parametrize("result", [{"version": 1, "tokens": 9, "seconds": 2.0, "ended": "length"}, {"tokens": -1}])
def test_generated_text_is_sanitized_limited_and_kept(
    finished_run: Run, capable_node: Node, result: dict[str, Any]
) -> None:
    generation_row = queue_generation(finished_run, PROMPT, "192.0.2.1")
    lease = lease_job(generation_row.job, capable_node)
    assert send_text(generation_row, " leaves", "\x1b[31m at <nine>\x00", 7) == " leaves[31m at <nine>"
    requeue_job(lease)
    lease_job(generation_row.job, capable_node)
    assert send_text(generation_row, " whole") == " whole", "a text starts over"
    assert len(send_text(generation_row, "x" * 30_000)) == generation.MAX_TEXT
    finish_job(generation_row.job, result)
    generation_row.refresh_from_db()
    assert len(generation_row.text) == generation.MAX_TEXT
    expected = (9, 4.5) if result["tokens"] > 0 else (None, None)
    assert (generation_row.written, generation_row.tokens_per_second) == expected


def test_prompts_of_all_visitors_are_limited_by_settings(run: Run, capable_node: Node, settings: Any) -> None:
    with pytest.raises(GenerationError, match="has no weights"):
        queue_generation(run, PROMPT, "192.0.2.1")
    finished_run = finish_run(run, capable_node)
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
