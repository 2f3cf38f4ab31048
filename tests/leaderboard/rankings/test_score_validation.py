from __future__ import annotations

import math
from typing import Any

import pytest

from leaderboard import runs
from leaderboard.job_handlers import train
from leaderboard.models import Run
from leaderboard.runs import RunError
from scheduler.job_kinds import get_job_kind
from scheduler.models import Event, Job, JobFile, Node
from tests.leaderboard.conftest import VERDICT, finish, lease, train_row, upload
from trainer import protocol


def test_a_run_goes_from_the_queue_to_the_board(run: Run, node: Node) -> None:
    finish(run, node)
    assert (run.state, run.trust, run.reason) == ("finished", "scored", "")
    assert (run.bits_per_byte, run.bits_per_byte_stderr, run.parameters) == (2.5, 0.01, 123456)
    assert run.checks == VERDICT["checks"]
    assert run.suite_missing == ["hellaswag"]
    assert {score.name: (score.value, score.stderr, score.count) for score in run.scores.all()} == {
        "bits_per_byte": (2.5, 0.01, 1000),
        "nats_per_token": (5.5, None, 1000),
        "blimp/acc": (0.55, 0.02, None),
    }
    assert list(Run.objects.on_board(run.track)) == [run]
    assert [event.sentence for event in Event.objects.about(run)] == [
        f"Run of Smeared keys on Small with seed {run.seed}.",
        "Queued for training.",
        "Training on cellar.",
        "Trained to the end, step 20.",
        "Queued for scoring on a trusted node.",
        "Being scored on cellar.",
        "Scored on cellar: 2.5000 bits per byte.",
    ]
    assert (run.node_name, run.node_class) == ("cellar", "2 CPU cores")


def test_the_order_to_train_carries_the_pin_and_the_merged_configuration(run: Run) -> None:
    assert run.job
    run.entry.config = {"model": {"width": 32}, "train": {"batch": 4}}
    run.entry.save()
    resume = protocol.Checkpoint(step=5, files=())
    order = get_job_kind(run.job).build_order(run.job, resume)
    assert isinstance(order, protocol.TrainOrder)
    assert order.dataset == run.season.dataset()
    assert order.resume == resume
    assert order.config == {
        "arch": "smear",
        "budget": "20steps",
        "seed": run.seed,
        "model": {"depth": 2, "width": 32},
        "train": {"batch": 4, "sequence_length": 64},
    }


def test_the_order_to_score_names_the_final_checkpoint(run: Run, node: Node) -> None:
    assert run.job
    lease(run.job, node)
    upload(run.job, 10)
    final = upload(run.job, 20)
    get_job_kind(run.job).handle_done(run.job, {"step": 20})
    run.refresh_from_db()
    assert (run.state, run.checkpoint) == ("scoring", final)
    assert run.score_job
    assert run.score_job.needs_trusted
    assert run.score_job.priority == Job.Priority.SCORE
    order = get_job_kind(run.score_job).build_order(run.score_job, None)
    assert isinstance(order, protocol.ScoreOrder)
    assert (order.checkpoint.step, order.run.path) == (20, "run.json")
    assert (order.suite, order.suite_limit) == (("blimp",), 25)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"bits_per_byte": math.nan}, "bits_per_byte"),
        ({"bits_per_byte": -0.1}, "bits_per_byte"),
        ({"bits_per_byte": 1e9}, "bits_per_byte"),
        ({"nats_per_token": math.inf}, "nats_per_token"),
        ({"stderr": -1}, "stderr"),
        ({"tokens": 0}, "tokens"),
        ({"parameters": 2**80}, "parameters"),
        ({"train_flops": None}, "train_flops"),
        ({"suite": []}, "suite"),
    ],
)
def test_a_verdict_that_cannot_be_right_is_not_recorded(
    run: Run, node: Node, wrong: dict[str, Any], field: str
) -> None:
    finish(run, node, {**VERDICT, **wrong})
    assert (run.state, run.cause, run.bits_per_byte) == ("failed", "infrastructure", None)
    assert f"({field})" in run.reason
    assert not run.scores.exists()


def test_odd_numbers_in_the_suite_are_left_out(run: Run, node: Node) -> None:
    suite = {"blimp": {"acc": [0.5, "N/A"], "alias": "blimp", "bad": [math.nan, 0.1], "flag": True}}
    finish(run, node, {**VERDICT, "suite": suite})
    found = {score.name: (score.value, score.stderr) for score in run.scores.all()}
    assert {name: found[name] for name in found if "/" in name} == {"blimp/acc": (0.5, None)}


def test_the_word_of_an_untrusted_scorer_does_not_count(run: Run, node: Node) -> None:
    node.trusted = False
    node.save()
    finish(run, node)
    assert (run.state, run.bits_per_byte) == ("failed", None)


def test_a_models_own_failure_is_shown_and_stands(run: Run, node: Node) -> None:
    assert run.job
    lease(run.job, node)
    get_job_kind(run.job).handle_failure(run.job, "model", "The loss became NaN at step 12.\x00")
    run.refresh_from_db()
    assert (run.state, run.cause, run.reason) == ("failed", "model", "The loss became NaN at step 12.")
    with pytest.raises(RunError, match="because of the infrastructure"):
        runs.retry_run(run, actor="mara")


def test_an_infrastructure_failure_goes_on_with_the_same_seed(run: Run, node: Node) -> None:
    assert run.job
    seed = run.seed
    lease(run.job, node)
    Job.objects.update(state=Job.State.FAILED)
    get_job_kind(run.job).handle_failure(run.job, "infrastructure", "Five nodes were lost.")
    run.refresh_from_db()
    assert run.reason == "Five nodes were lost. This was not the model's fault: the same seed can run again."
    runs.retry_run(run, actor="mara")
    run.refresh_from_db()
    assert (run.state, run.seed, run.reason, run.finished_at) == ("queued", seed, "", None)
    assert run.job
    assert run.job.state == Job.State.QUEUED
    assert Run.objects.count() == 1


def test_a_run_that_could_not_be_scored_is_scored_again(run: Run, node: Node) -> None:
    finish(run, node, {**VERDICT, "tokens": 0})
    failed_job = run.score_job
    runs.retry_run(run, actor="mara")
    run.refresh_from_db()
    assert run.state == "scoring"
    assert run.score_job != failed_job
    assert run.score_job
    lease(run.score_job, node)
    get_job_kind(run.score_job).handle_done(run.score_job, VERDICT)
    run.refresh_from_db()
    assert run.state == "finished"


def test_another_seed_is_another_run(run: Run, node: Node) -> None:
    finish(run, node)
    again = runs.rerun(run, actor="mara")
    assert (again.state, again.entry) == ("queued", run.entry)
    assert again.seed != run.seed


@pytest.mark.parametrize("missing", ["checkpoint", "run.json"])
def test_a_run_without_its_files_is_nobodys_verdict(run: Run, node: Node, missing: str) -> None:
    assert run.job
    lease(run.job, node)
    if missing == "run.json":
        upload(run.job, 20)
        JobFile.objects.all().delete()
    get_job_kind(run.job).handle_done(run.job, {"step": 20})
    run.refresh_from_db()
    assert (run.state, run.cause) == ("failed", "infrastructure")
    assert missing in run.reason


def test_a_forgotten_score_job_is_queued_once(run: Run, node: Node) -> None:
    assert run.job
    lease(run.job, node)
    final = upload(run.job, 20)
    Run.objects.update(state=Run.State.SCORING, checkpoint=final)
    train.recover_unfinished()
    train.recover_unfinished()
    assert Job.objects.filter(kind="score").count() == 1
    run.refresh_from_db()
    assert run.score_job


def test_done_twice_is_done_once(run: Run, node: Node) -> None:
    assert run.job
    lease(run.job, node)
    upload(run.job, 20)
    get_job_kind(run.job).handle_done(run.job, {"step": 20})
    get_job_kind(run.job).handle_done(run.job, {"step": 20})
    assert Job.objects.filter(kind="score").count() == 1


def test_the_configuration_that_the_node_resolved_is_kept(run: Run, node: Node) -> None:
    finish(run, node)
    train.recover_unfinished()
    run.refresh_from_db()
    assert run.config == {"format": 1, "arch": "smear"}


def test_a_late_cancellation_counts_against_the_entry(run: Run, node: Node) -> None:
    assert run.job
    lease(run.job, node)
    get_job_kind(run.job).handle_metrics(run.job, [train_row(10)])
    get_job_kind(run.job).handle_cancellation(run.job, "Cancelled by mara.")
    run.refresh_from_db()
    assert run.state == "cancelled"
    assert run.reason == "Cancelled by mara. With 50% of its budget used it counts against its entry."


def test_a_waiting_run_is_cancelled_at_once(run: Run) -> None:
    waiting = runs.make_run(run.entry, run.track)
    runs.cancel_run(waiting, "No longer wanted.", "mara")
    assert (waiting.state, waiting.reason) == ("cancelled", "No longer wanted.")


def test_a_queued_run_is_cancelled_with_its_job(run: Run) -> None:
    runs.cancel_run(run, "No longer wanted.", "mara")
    run.refresh_from_db()
    assert run.state == "cancelled"
    assert run.job
    assert run.job.state == Job.State.CANCELLED


def test_a_state_changes_once(run: Run) -> None:
    """Two processes with the same old row: one gets there first, the other learns it."""
    late = Run.objects.get(pk=run.pk)
    assert run.change_state("training", since=["queued"], actor="node:a", message="Training on a.")
    assert not late.change_state("cancelled", since=["queued"], actor="mara", message="Cancelled.")
    assert late.state == "training"
