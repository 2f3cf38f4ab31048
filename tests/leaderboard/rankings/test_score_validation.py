from __future__ import annotations

import math
from typing import Any

import pytest
from django.test import Client

from leaderboard import runs
from leaderboard.job_handlers import train
from leaderboard.models import Run
from leaderboard.run_states import RunError, RunEvent, apply_event
from scheduler import storage, transitions
from scheduler.job_kinds import get_job_kind
from scheduler.models import Event, Job, JobFile, Node
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
        "milestones": 10,
        "seed": run.seed,
        "model": {"depth": 2, "width": 32},
        "train": {"batch": 4, "sequence_length": 64},
    }


def test_score_order_has_the_final_checkpoint(run: Run, node: Node) -> None:
    assert run.job
    lease_job(run.job, node)
    create_checkpoint(run.job, 10)
    final = create_checkpoint(run.job, 20)
    finish_job(run.job, {"step": 20})
    run.refresh_from_db()
    assert (run.state, run.checkpoint) == ("scoring", final)
    assert run.score_job
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


def test_score_of_untrusted_node_is_not_stored(run: Run, node: Node) -> None:
    node.trusted = False
    node.save()
    finish_run(run, node)
    assert (run.state, run.bits_per_byte) == ("failed", None)


def test_model_failure_is_shown_and_cannot_be_retried(run: Run, node: Node) -> None:
    assert run.job
    transitions.fail_job(run.job, "site", "model", "The loss became NaN at step 12.\x00")
    run.refresh_from_db()
    assert (run.state, run.cause, run.reason) == ("failed", "model", "The loss became NaN at step 12.")
    with pytest.raises(RunError, match="because of the infrastructure"):
        runs.retry_run(run, actor="mara")


def test_infrastructure_failure_can_be_retried_with_same_seed(run: Run, node: Node) -> None:
    assert run.job
    seed = run.seed
    transitions.fail_job(run.job, "site", "infrastructure", "Five nodes were lost.")
    run.refresh_from_db()
    assert run.reason == "Five nodes were lost. This was not the model's fault: the same seed can run again."
    runs.retry_run(run, actor="mara")
    run.refresh_from_db()
    assert (run.state, run.seed, run.reason, run.finished_at) == ("queued", seed, "", None)
    assert run.job
    assert run.job.state == Job.State.QUEUED
    assert Run.objects.count() == 1


def test_failed_scoring_can_be_retried(run: Run, node: Node) -> None:
    finish_run(run, node, {**SCORE_RESULT, "tokens": 0})
    failed_job = run.score_job
    runs.retry_run(run, actor="mara")
    run.refresh_from_db()
    assert run.state == "scoring"
    assert run.score_job != failed_job
    assert run.score_job
    lease_job(run.score_job, node)
    finish_job(run.score_job, SCORE_RESULT)
    run.refresh_from_db()
    assert run.state == "finished"


def test_rerun_creates_run_with_another_seed(run: Run, node: Node) -> None:
    finish_run(run, node)
    second_run = runs.rerun(run, actor="mara")
    assert (second_run.state, second_run.entry) == ("queued", run.entry)
    assert second_run.seed != run.seed


@pytest.mark.parametrize("missing", ["checkpoint", "run.json"])
def test_result_of_run_without_files_is_refused(run: Run, node: Node, missing: str) -> None:
    assert run.job
    lease_job(run.job, node)
    if missing == "run.json":
        create_checkpoint(run.job, 20)
        JobFile.objects.all().delete()
    assert missing in get_job_kind(run.job).find_result_problem(run.job, {"step": 20})


def test_training_reported_done_twice_queues_one_score_job(run: Run, node: Node) -> None:
    assert run.job
    lease = lease_job(run.job, node)
    create_checkpoint(run.job, 20)
    for _ in range(2):
        end_lease(lease, "done", result={"step": 20})
    assert Job.objects.filter(kind="score").count() == 1


def test_resolved_config_of_node_is_stored(run: Run, node: Node) -> None:
    finish_run(run, node)
    train.store_configurations()
    run.refresh_from_db()
    assert run.config == {"format": 1, "arch": "smear"}


def test_cancellation_after_half_the_budget_counts_for_entry(run: Run, node: Node) -> None:
    assert run.job
    lease_job(run.job, node)
    get_job_kind(run.job).handle_metrics(run.job, [build_train_row(10)])
    get_job_kind(run.job).handle_cancellation(run.job, "Cancelled by mara.")
    run.refresh_from_db()
    assert run.state == "cancelled"
    assert run.reason == "Cancelled by mara. With 50% of its budget used it counts as an attempt of its entry."


def test_waiting_run_is_cancelled_at_once(run: Run) -> None:
    waiting_run = runs.make_run(run.entry, run.track)
    runs.cancel_run(waiting_run, "No longer wanted.", "mara")
    assert (waiting_run.state, waiting_run.reason) == ("cancelled", "No longer wanted.")


def test_queued_run_is_cancelled_with_its_job(run: Run) -> None:
    runs.cancel_run(run, "No longer wanted.", "mara")
    run.refresh_from_db()
    assert run.state == "cancelled"
    assert run.job
    assert run.job.state == Job.State.CANCELLED


def test_state_change_from_stale_row_is_rejected(run: Run) -> None:
    """Two processes have the same old row; only the first change is applied."""
    stale_run = Run.objects.get(pk=run.pk)
    apply_event(run, RunEvent.TAKE, actor="node:a", message="Training on a.")
    with pytest.raises(RunError, match=f"Run {run.pk} is training"):
        apply_event(stale_run, RunEvent.TAKE, actor="node:b", message="Training on b.")
    assert not Event.objects.filter(sentence="Training on b.").exists()


def test_run_page_shows_benchmark_seconds(run: Run, node: Node, client: Client) -> None:
    finish_run(run, node, {**SCORE_RESULT, "suite_seconds": {"core": 213.4, "blimp": 3}})
    run.refresh_from_db()
    assert run.suite_seconds == {"core": 213.4, "blimp": 3}
    assert (
        "<dt>Time of the benchmarks</dt><dd>core 213 s, blimp 3 s</dd>"
        in client.get(run.get_absolute_url()).content.decode()
    )
    assert client.get(f"/api/v1/runs/{run.pk}").json()["suite_seconds"] == run.suite_seconds
