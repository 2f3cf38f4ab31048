"""Scoring of releases of long runs: on trusted nodes, shown on the model card and the run page."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from leaderboard.job_handlers import score
from leaderboard.models import Publication, Run, Sample
from leaderboard.publishing import model_card
from scheduler import transitions
from scheduler.job_kinds import get_job_kind
from scheduler.models import Event, Job, JobFile, Node
from tests.leaderboard.conftest import SCORE_RESULT, build_train_row, create_checkpoint, publish_release
from tests.support.node_jobs import finish_job, lease_job
from trainer import protocol


@pytest.fixture
def released_publication(run: Run, node: Node) -> Publication:
    """The release of step 10 of a run that trains."""
    type(run.track).objects.filter(pk=run.track_id).update(releases=10)
    lease_job(run.job, node)
    get_job_kind(run.job).handle_metrics(run.job, [build_train_row(10)])
    Sample.objects.create(run=run, step=10, prompt="The ", text="train\n# left <b>on</b> time")
    Sample.objects.create(run=run, step=20, prompt="The ", text="later one")
    publication = publish_release(run, create_checkpoint(run.job, 10), "50-percent")
    return Publication.objects.select_related("run__track").get(pk=publication.pk)


@pytest.fixture
def release_score_job(released_publication: Publication) -> Job:
    run_json = JobFile.objects.get(job=released_publication.run.job)
    run_json.delete()
    assert score.queue_release_scores() == 0
    JobFile.objects.create(job=run_json.job, path=run_json.path, blob=run_json.blob)
    assert [score.queue_release_scores() for _ in range(2)] == [1, 0]
    released_publication.refresh_from_db()
    assert released_publication.score_job
    return released_publication.score_job


def finish_release_score(score_job: Job, node: Node, **changed: Any) -> Publication:
    lease = lease_job(score_job, node)
    finish_job(score_job, {**SCORE_RESULT, **changed})
    assert lease.node == node
    return Publication.objects.get(score_job=score_job)


def test_release_score_is_stored_on_release_not_on_run(
    released_publication: Publication, release_score_job: Job, node: Node, client: Client
) -> None:
    order = get_job_kind(release_score_job).build_order(release_score_job, None)
    assert isinstance(order, protocol.ScoreOrder)
    assert (order.checkpoint.step, order.suite, release_score_job.needs_trusted) == (10, ("blimp",), True)
    publication = finish_release_score(release_score_job, node)
    run = Run.objects.get(pk=released_publication.run_id)
    assert (publication.bits_per_byte, run.bits_per_byte, run.state) == (2.5, None, Run.State.TRAINING)
    assert not run.scores.exists()
    assert "| bits per byte, held-out text | 2.5000 | 0.0100 |" in model_card.build_card(publication, "a/b")
    assert "<strong>2.5000</strong>" in client.get(run.get_absolute_url()).content.decode()
    summary = get_job_kind(release_score_job).describe_jobs([release_score_job])[release_score_job.pk]
    assert summary.outcome == "2.5000 bits per byte"


@pytest.mark.parametrize(("changed", "message"), [({"bits_per_byte": -1}, "is invalid"), ({}, "untrusted")])
def test_release_score_that_is_invalid_or_untrusted_is_not_stored(
    released_publication: Publication, release_score_job: Job, node: Node, changed: dict[str, Any], message: str
) -> None:
    Node.objects.filter(pk=node.pk).update(trusted=bool(changed))
    assert finish_release_score(release_score_job, Node.objects.get(pk=node.pk), **changed).scores == []
    assert Event.objects.about(released_publication.run).filter(sentence__contains=message).exists()


def test_failed_release_score_keeps_run_training(
    released_publication: Publication, release_score_job: Job, node: Node
) -> None:
    lease_job(release_score_job, node)
    transitions.fail_job(release_score_job, f"node:{node.name}", "model", "The model looked ahead.")
    assert Run.objects.get(pk=released_publication.run_id).state == Run.State.TRAINING
    assert Event.objects.about(released_publication.run).filter(sentence__contains="The model looked ahead.").exists()
    assert score.queue_release_scores() == 0  # not retried
