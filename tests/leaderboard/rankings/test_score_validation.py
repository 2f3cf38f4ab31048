from __future__ import annotations

import math
from typing import Any

import pytest
from django.test import Client

from leaderboard import runs
from leaderboard.models import Run
from leaderboard.run_states import RunError, RunEvent, apply_event
from scheduler import storage, transitions
from scheduler.job_kinds import get_job_kind
from scheduler.models import Event, Job, Node
from tests.leaderboard.conftest import SCORE_RESULT, build_train_row, create_checkpoint, finish_run
from tests.support.node_jobs import end_lease, finish_job, lease_job
from trainer import protocol


def test_run_from_queue_to_score_is_on_the_board(run: Run, node: Node) -> None:
    finish_run(run, node)
    assert (run.state, run.trust, run.reason) == ("finished", "scored", "")
    assert (run.bits_per_byte, run.bits_per_byte_stderr, run.parameters) == (2.5, 0.01, 123456)
    assert run.checks == SCORE_RESULT["checks"]
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
        "Trained to the end, step 20; queued for scoring on a trusted node.",
        "Being scored on cellar.",
        "Scored on cellar: 2.5000 bits per byte.",
    ]
    assert (run.node_name, run.node_class) == ("cellar", "2 CPU cores")


def test_train_order_has_dataset_pin_and_merged_config(run: Run) -> None:
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
        "milestones": 10,
        "seed": run.seed,
        "model": {"depth": 2, "width": 32},
        "train": {"batch": 4, "sequence_length": 64},
    }


def test_score_order_has_the_final_checkpoint(run: Run, node: Node) -> None:
    lease_job(run.job, node)
    create_checkpoint(run.job, 10)
    final = create_checkpoint(run.job, 20)
    finish_job(run.job, {"step": 20})
    run.refresh_from_db()
    assert (run.state, run.checkpoint) == ("scoring", final)
    assert run.score_job.needs_trusted
    assert run.score_job.priority == Job.Priority.SCORE
    order = get_job_kind(run.score_job).build_order(run.score_job, None)
    assert isinstance(order, protocol.ScoreOrder)
    assert (order.checkpoint.step, order.run.path, order.limit_tokens) == (20, "run.json", 2_000_000)
    assert (order.suite, order.suite_limit, order.suite_files) == (("blimp",), 25, None)
    run.track.season.files.create(kind="evaluation", path="blimp/passive_1.jsonl.gz", blob=storage.store_bytes(b"x"))
    run.track.season.files.create(kind="evaluation", path="piqa/validation.jsonl.gz", blob=storage.store_bytes(b"y"))
    order = get_job_kind(run.score_job).build_order(run.score_job, None)
    assert [file.path for file in order.suite_files] == ["blimp/passive_1.jsonl.gz"]


@pytest.mark.parametrize(
    ("changes", "field"),
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
def test_invalid_score_result_is_not_stored(run: Run, node: Node, changes: dict[str, Any], field: str) -> None:
    finish_run(run, node, {**SCORE_RESULT, **changes})
    assert (run.state, run.cause, run.bits_per_byte) == ("failed", "infrastructure", None)
    assert f"({field})" in run.reason
    assert not run.scores.exists()


def test_invalid_suite_values_are_skipped(run: Run, node: Node) -> None:
    suite = {"blimp": {"acc": [0.5, "N/A"], "alias": "blimp", "bad": [math.nan, 0.1], "flag": True}}
    finish_run(run, node, {**SCORE_RESULT, "suite": suite})
    scores = {score.name: (score.value, score.stderr) for score in run.scores.all()}
    assert {name: scores[name] for name in scores if "/" in name} == {"blimp/acc": (0.5, None)}


def test_failed_training_and_scoring_can_be_retried(run: Run, node: Node, client: Client) -> None:
    seed = run.seed
    transitions.fail_job(run.job, "site", "infrastructure", "Five nodes were lost.")
    run.refresh_from_db()
    assert run.reason == "Five nodes were lost. This was not the model's fault: the same seed can run again."
    runs.retry_run(run, actor="mara")
    run.refresh_from_db()
    assert (run.state, run.seed, run.reason, run.finished_at) == ("queued", seed, "", None)
    node.trusted = False
    node.save()
    finish_run(run, node)
    assert (run.state, run.bits_per_byte) == ("failed", None), "a node that is not trusted scores nothing"
    Node.objects.update(trusted=True)
    failed_job = run.score_job
    runs.retry_run(run, actor="mara")
    run.refresh_from_db()
    assert run.state == "scoring"
    assert run.score_job != failed_job
    finish_job(run.score_job, {**SCORE_RESULT, "suite_seconds": {"core": 213.4, "blimp": 3}})
    run.refresh_from_db()
    assert (run.state, run.suite_seconds) == ("finished", {"core": 213.4, "blimp": 3})
    page = client.get(run.get_absolute_url()).content.decode()
    assert "<dt>Time of the benchmarks</dt><dd>core 213 s, blimp 3 s</dd>" in page


def test_state_change_from_stale_row_is_rejected(run: Run) -> None:
    """Two processes have the same old row; only the first change is applied."""
    stale_run = Run.objects.get(pk=run.pk)
    apply_event(run, RunEvent.TAKE, actor="node:a", message="Training on a.")
    with pytest.raises(RunError, match=f"Run {run.pk} is training"):
        apply_event(stale_run, RunEvent.TAKE, actor="node:b", message="Training on b.")
    assert not Event.objects.filter(sentence="Training on b.").exists()


def test_cancellation_after_half_the_budget_counts_for_entry(run: Run, node: Node) -> None:
    lease = lease_job(run.job, node)
    get_job_kind(run.job).handle_metrics(run.job, [build_train_row(10)])
    runs.cancel_run(run, "Cancelled by mara.", "mara")
    end_lease(lease, "released", reason="A stop was requested.")
    run.refresh_from_db()
    assert run.state == "cancelled"
    assert run.reason == "Cancelled by mara. With 50% of its budget used it counts as an attempt of its entry."


@pytest.mark.parametrize("kind", ["train", "score"])
def test_model_that_fails_by_itself_has_used_an_attempt(run: Run, node: Node, kind: str) -> None:
    """An entry could choose its seed by a NaN in its first steps, or on the scored text."""
    if kind == "train":
        get_job_kind(run.job).handle_metrics(run.job, [build_train_row(1)])
    else:
        create_checkpoint(run.job, 20)
        finish_job(run.job, {"step": 20})
        run.refresh_from_db()
    lease = lease_job(run.job if kind == "train" else run.score_job, node)
    end_lease(lease, "failed", cause="model", reason="The loss is not a number.")
    run.refresh_from_db()
    assert (run.state, run.cause) == ("failed", "model")
    assert runs.has_used_attempt(run)


def finish_scored_run(run: Run, node: Node, budget: str = "20steps", **score_fields: Any) -> Run:
    """Take a run through training and scoring."""
    Run.objects.filter(pk=run.pk).update(budget=budget)
    return finish_run(Run.objects.get(pk=run.pk), node, SCORE_RESULT | score_fields)


@pytest.mark.parametrize(
    ("budget", "score_fields", "flops", "seconds"),
    [
        ("20steps", {"train_flops": 1e12, "train_seconds": 120.0}, 1e12, 120.0),
        ("20steps", {"flops_per_token": 1e8, "train_tokens": 100.0}, 1.024e12, 10.0),
        ("1e12flops", {}, 1e12, 10.0),
        ("600s", {}, 2e10, 600.0),
        ("1M-tokens", {"flops_per_token": 1e6}, 1e12, 10.0),
        ("600s", {"flops_per_token": 1e6, "train_tokens": 5e5}, 5e11, 600.0),
        ("20steps", {"flops_per_token": 1e6, "train_tokens": 5e5}, 5e11, 10.0),
        ("1e12flops", {"flops_per_token": 1e6, "train_tokens": 2e6}, 2e12, 10.0),
    ],
)
def test_run_with_less_compute_is_charged_its_budget(
    run: Run, node: Node, budget: str, score_fields: dict[str, Any], flops: float, seconds: float
) -> None:
    run = finish_scored_run(run, node, budget=budget, **score_fields)
    assert (run.train_flops, run.train_seconds) == (flops, seconds)
