"""Each release of a long run is scored by a trusted node, and its card and the milestones say what came of it."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from leaderboard.job_handlers import score
from leaderboard.models import Publication, Run, Sample
from leaderboard.publishing import model_card, publications, weights
from scheduler.job_kinds import get_job_kind
from scheduler.models import Event, Job, JobFile, Node
from tests.leaderboard.conftest import VERDICT, finish, lease, train_row, upload
from trainer import protocol


@pytest.fixture
def kept(run: Run, node: Node) -> Publication:
    """The release of step 10 of a run that trains."""
    type(run.track).objects.filter(pk=run.track_id).update(releases=10)
    assert run.job
    lease(run.job, node)
    get_job_kind(run.job).handle_metrics(run.job, [train_row(10)])
    Sample.objects.create(run=run, step=10, prompt="The ", text="train\n# left <b>on</b> time")
    Sample.objects.create(run=run, step=20, prompt="The ", text="later one")
    made = publications.publish_release(run, upload(run.job, 10), "50-percent")
    return Publication.objects.select_related("run__track").get(pk=made.pk)


@pytest.fixture
def job(kept: Publication) -> Job:
    assert score.queue_release_scores() == 1
    assert score.queue_release_scores() == 0
    kept.refresh_from_db()
    assert kept.score_job
    return kept.score_job


def scored(job: Job, node: Node, **changed: Any) -> Publication:
    given = lease(job, node)
    get_job_kind(job).handle_done(job, {**VERDICT, **changed})
    assert given.node == node
    return Publication.objects.get(score_job=job)


def test_a_trusted_node_is_asked_to_score_that_very_step(kept: Publication, job: Job) -> None:
    order = get_job_kind(job).build_order(job, None)
    assert isinstance(order, protocol.ScoreOrder)
    assert (order.checkpoint.step, order.suite, job.needs_trusted) == (10, ("blimp",), True)


def test_its_numbers_are_the_releases_and_not_the_runs(kept: Publication, job: Job, node: Node, client: Client) -> None:
    found = scored(job, node)
    run = Run.objects.get(pk=kept.run_id)
    assert (found.bits_per_byte, run.bits_per_byte, run.state) == (2.5, None, Run.State.TRAINING)
    assert not run.scores.exists()
    assert "| bits per byte, held-out text | 2.5000 | 0.0100 |" in model_card.build_card(found, "a/b", False)
    assert "<strong>2.5000</strong>" in client.get(run.get_absolute_url()).content.decode()
    assert get_job_kind(job).describe_jobs([job])[job.pk].outcome == "2.5000 bits per byte"


def test_the_card_has_samples_of_its_step_as_text(kept: Publication) -> None:
    card = model_card.build_card(kept, "a/b", False)
    assert "At step 10, the first words given:\n\n    The train\n    # left <b>on</b> time\n" in card
    assert "later one" not in card
    assert "## Scores" not in card


@pytest.mark.parametrize(("changed", "said"), [({"bits_per_byte": -1}, "is invalid"), ({}, "untrusted")])
def test_what_cannot_be_relied_on_is_not_written_down(
    kept: Publication, job: Job, node: Node, changed: dict[str, Any], said: str
) -> None:
    Node.objects.filter(pk=node.pk).update(trusted=bool(changed))
    assert scored(job, Node.objects.get(pk=node.pk), **changed).scores == []
    assert Event.objects.about(kept.run).filter(sentence__contains=said).exists()


def test_a_failed_scoring_leaves_the_run_alone(kept: Publication, job: Job, node: Node) -> None:
    lease(job, node)
    get_job_kind(job).handle_failure(job, "model", "The model looked ahead.")
    assert Run.objects.get(pk=kept.run_id).state == Run.State.TRAINING
    assert Event.objects.about(kept.run).filter(sentence__contains="The model looked ahead.").exists()
    assert score.queue_release_scores() == 0  # not for ever


def test_until_the_run_has_said_what_it_is_nothing_is_scored(kept: Publication) -> None:
    JobFile.objects.filter(job=kept.run.job).delete()
    assert score.queue_release_scores() == 0


def test_a_finished_runs_scoring_is_its_own_still(run: Run, node: Node) -> None:
    assert finish(run, node).bits_per_byte == 2.5
    assert run.score_job
    assert (
        get_job_kind(run.score_job).describe_jobs([run.score_job])[run.score_job.pk].title == "Scoring of Smeared keys"
    )


def test_a_release_can_be_loaded_before_its_run_has_ended(kept: Publication, job: Job) -> None:
    upload(job, 10)  # the scorer's own tokenizer stays with its job
    JobFile.objects.filter(job=job).update(path="tokenizer.json")
    names = [file.path for file in weights.list_weight_files(kept.run, "50-percent")]
    assert names == ["checkpoints/step-00000010/model.safetensors", "run.json", "source.tar", "tokenizer.json"]
