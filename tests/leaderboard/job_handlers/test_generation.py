"""What becomes of a visitor's prompt: who may ask how often, what a node is told, whose words come in."""

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
from tests.leaderboard.conftest import finish, hand_back, lease
from trainer import protocol

PROMPT = Prompt("The train", 50, 0.5)


@pytest.fixture
def arrived(run: Run, able: Node) -> Run:
    return finish(run, able)


def say(asked: Generation, *texts: object) -> str:
    get_job_kind(asked.job).handle_metrics(asked.job, [{"kind": "text", "text": text} for text in texts])
    asked.refresh_from_db()
    return asked.text


def test_a_trusted_node_with_a_sandbox_is_told_the_prompt_and_the_weights(arrived: Run, able: Node) -> None:
    asked = queue_generation(arrived, PROMPT, "192.0.2.1")
    Node.objects.update(trusted=False)
    able.refresh_from_db()
    assert leases.claim_job(able) is None
    Node.objects.update(trusted=True)
    able.refresh_from_db()
    given = leases.claim_job(able)
    assert given is not None
    order = protocol.JobSpec.model_validate_json(given.spec).order
    assert isinstance(order, protocol.GenerateOrder)
    assert (order.prompt, order.tokens, order.temperature, order.seed) == ("The train", 50, 0.5, asked.seed)
    assert [file.path for file in order.checkpoint.files] == ["checkpoints/step-00000020/model.safetensors"]
    assert summarize_jobs([asked.job])[asked.job_id].title == "Smeared keys, visitor prompt"


def test_only_a_run_with_weights_can_write(run: Run) -> None:
    with pytest.raises(GenerationError, match="has no weights"):
        queue_generation(run, PROMPT, "192.0.2.1")


def test_words_come_in_as_text_of_limited_length(arrived: Run, able: Node) -> None:
    asked = queue_generation(arrived, PROMPT, "192.0.2.1")
    lease(asked.job, able)
    assert say(asked, " leaves", "\x1b[31m at <nine>\x00", 7) == " leaves[31m at <nine>"
    assert len(say(asked, "x" * 30_000)) == generation.MAX_TEXT
    get_job_kind(asked.job).handle_done(asked.job, {"version": 1, "tokens": 9, "seconds": 2.0, "ended": "length"})
    asked.refresh_from_db()
    assert (asked.written, asked.tokens_per_second) == (9, 4.5)


def test_another_node_begins_anew(arrived: Run, able: Node) -> None:
    asked = queue_generation(arrived, PROMPT, "192.0.2.1")
    given = lease(asked.job, able)
    say(asked, " half a")
    hand_back(given)
    lease(asked.job, able)
    assert say(asked, " whole") == " whole"


def test_an_answer_that_cannot_be_right_leaves_the_words_alone(arrived: Run) -> None:
    asked = queue_generation(arrived, PROMPT, "192.0.2.1")
    say(asked, " leaves")
    get_job_kind(asked.job).handle_done(asked.job, {"tokens": -1})
    asked.refresh_from_db()
    assert (asked.text, asked.written) == (" leaves", None)


def test_a_visitor_asks_a_few_times_a_minute(arrived: Run) -> None:
    for _ in range(4):
        queue_generation(arrived, PROMPT, "192.0.2.1")
    with pytest.raises(GenerationError, match="Try again in a few minutes"):
        queue_generation(arrived, PROMPT, "192.0.2.1")
    queue_generation(arrived, PROMPT, "192.0.2.2")


def test_all_together_ask_no_more_than_the_site_allows(arrived: Run, settings: Any) -> None:
    settings.GENERATE_WAITING = 1
    first = queue_generation(arrived, PROMPT, "192.0.2.1")
    with pytest.raises(GenerationError, match="waiting for a node"):
        queue_generation(arrived, PROMPT, "192.0.2.2")
    transitions.cancel_job(first.job, "site", "Enough.")
    settings.GENERATE_PER_HOUR = 1
    with pytest.raises(GenerationError, match="limit of prompts for this hour"):
        queue_generation(arrived, PROMPT, "192.0.2.2")
    settings.GENERATE_PER_HOUR = 0
    with pytest.raises(GenerationError, match="does not accept"):
        queue_generation(arrived, PROMPT, "192.0.2.2")


def test_a_household_of_ipv6_is_one_visitor() -> None:
    near = {generation.get_visitor_network(f"2001:db8:1:2::{number}") for number in range(3)}
    assert near == {"2001:db8:1:2::/64"}
    assert generation.get_visitor_network("192.0.2.1") == "192.0.2.1"
    assert generation.get_visitor_network("") == ""


def test_what_no_node_takes_is_given_up_and_what_is_old_is_forgotten(arrived: Run) -> None:
    asked = queue_generation(arrived, PROMPT, "192.0.2.1")
    generation.expire_generations()
    asked.job.refresh_from_db()
    assert asked.job.state == Job.State.QUEUED
    Generation.objects.update(created_at=timezone.now() - timedelta(hours=2))
    generation.expire_generations()
    asked.job.refresh_from_db()
    assert (asked.job.state, asked.job.reason[:10]) == (Job.State.CANCELLED, "No node wa")
    Generation.objects.update(created_at=timezone.now() - timedelta(days=8))
    generation.expire_generations()
    assert not Generation.objects.exists()
    assert Job.objects.filter(pk=asked.job_id).exists(), "what a node has lent stays counted"
    get_job_kind(asked.job).handle_metrics(asked.job, [{"kind": "text", "text": "late"}])


def test_the_best_of_a_track_has_the_fewest_bits_and_is_not_disputed(arrived: Run, idea: Entry) -> None:
    assert arrived.job is not None
    better = Run.objects.get(pk=arrived.pk)
    better.pk, better.seed, better.bits_per_byte, better.score_job = None, 7, 1.0, None
    better.job = Job.objects.create(kind="train", release_id=arrived.job.release_id)
    better.save()
    assert generation.get_best_run(idea.track) == better
    Run.objects.filter(pk=better.pk).update(trust=Run.Trust.DISPUTED)
    assert generation.get_best_run(idea.track) == arrived
