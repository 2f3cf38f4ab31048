from __future__ import annotations

import math
from typing import Any

import pytest

from leaderboard.job_handlers import metrics
from leaderboard.models import Run, Sample
from scheduler.models import Event, Node
from tests.leaderboard.conftest import build_train_row, create_checkpoint
from tests.support.node_jobs import lease_job, requeue_job

pytestmark = pytest.mark.sql


@pytest.fixture
def training_run(run: Run, node: Node) -> Run:
    lease_job(run.job, node)
    run.refresh_from_db()
    return run


def list_curve(run: Run) -> list[tuple[Any, ...]]:
    return list(run.points.values_list("series", "step", "loss", "tokens", "learning_rate"))


def test_metrics_of_resumed_run_match_uninterrupted_run(training_run: Run, node: Node) -> None:
    """The run resumes from step 10 and reports steps 11 to 20 a second time."""
    rows = [build_train_row(step, 6 - step / 10) for step in range(1, 21)]
    metrics.store_metrics(training_run, rows)
    uninterrupted = list_curve(training_run)
    create_checkpoint(training_run.job, 10)
    lease = training_run.job.leases.get()
    requeue_job(lease)
    training_run.refresh_from_db()
    assert (training_run.state, training_run.reason) == (
        "paused",
        "The node was switched off. It resumes from step 10 as soon as a node is free.",
    )
    lease_job(training_run.job, node)
    training_run.refresh_from_db()
    assert training_run.state == "training"
    assert [row[1] for row in list_curve(training_run)] == list(range(1, 11))
    metrics.store_metrics(training_run, rows[10:15])
    metrics.store_metrics(training_run, rows[12:])
    assert list_curve(training_run) == uninterrupted
    assert "Resumes from step 10 on cellar." in [event.sentence for event in Event.objects.about(training_run)]


@pytest.mark.parametrize(
    "row",
    [
        build_train_row(1, math.nan),
        build_train_row(1, math.inf),
        build_train_row(1, -1.0),
        build_train_row(-1),
        build_train_row(2**70),
        build_train_row(1, tokens=2**70),
        build_train_row(1, loss="<script>"),
        {"kind": "train"},
        {"kind": "elsewhere", "step": 1, "loss": 1.0},
        {"kind": "sample", "step": 1, "prompt": None, "text": "x"},
        {"kind": "sample", "step": 1},
        {},
    ],
)
def test_metrics_row_that_is_invalid_is_skipped(training_run: Run, row: dict[str, Any]) -> None:
    metrics.store_metrics(training_run, [row, build_train_row(3)])
    assert [point.step for point in training_run.points.all()] == [3]
    assert not training_run.samples.exists()


def test_sample_text_is_sanitized_and_limited(training_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a\x00b\x1b[31mc\ud800d\n" + "e" * 10_000
    metrics.store_metrics(training_run, [{"kind": "sample", "step": 1, "prompt": "p" * 900, "text": text}])
    sample = Sample.objects.get()
    assert sample.text.startswith("ab[31mc?d\ne")
    assert (len(sample.prompt), len(sample.text)) == (500, 4000)
    monkeypatch.setattr(metrics, "MAX_SAMPLES", 3)
    metrics.store_metrics(
        training_run, [{"kind": "sample", "step": step, "prompt": "p", "text": "t"} for step in range(2, 9)]
    )
    assert Sample.objects.count() == 3
