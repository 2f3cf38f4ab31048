from __future__ import annotations

import math
from typing import Any

import pytest
from pytest_django import DjangoAssertNumQueries

from leaderboard.job_handlers import metrics
from leaderboard.models import CurvePoint, Run, Sample
from scheduler.job_kinds import get_job_kind
from scheduler.models import Event, Node
from tests.leaderboard.conftest import hand_back, lease, train_row, upload


@pytest.fixture
def training(run: Run, node: Node) -> Run:
    assert run.job
    lease(run.job, node)
    run.refresh_from_db()
    return run


def curve(run: Run) -> list[tuple[Any, ...]]:
    return list(run.points.values_list("series", "step", "loss", "tokens", "learning_rate"))


def test_lines_become_points_samples_and_progress(training: Run) -> None:
    dev = {"kind": "dev", "step": 2, "fraction": 0.1, "tokens": 1024, "flops": 1e9, "seconds": 1, "loss": 5.0}
    sample = {"kind": "sample", "step": 2, "prompt": "def", "text": "def x():\n\tpass"}
    metrics.store_metrics(training, [train_row(1, 6.0), train_row(2, 5.5), {**dev, "bits_per_byte": 2.1}, sample])
    assert curve(training) == [
        ("dev", 2, 5.0, 1024, None),
        ("train", 1, 6.0, 512, 0.01),
        ("train", 2, 5.5, 1024, 0.01),
    ]
    assert [shown.to_dict() for shown in training.samples.all()] == [
        {"step": 2, "prompt": "def", "text": "def x():\n\tpass"}
    ]
    before = training.revision
    training.refresh_from_db()
    assert (training.step, training.fraction, training.tokens, training.loss) == (2, 0.1, 1024, 5.5)
    assert training.revision > before
    assert training.seconds_left == pytest.approx(9.0)


def test_a_resumed_run_writes_the_same_rows(training: Run, node: Node) -> None:
    """It goes on from step 10, and says steps 11 to 20 once more: the curve is that of an uninterrupted run."""
    assert training.job
    rows = [train_row(step, 6 - step / 10) for step in range(1, 21)]
    metrics.store_metrics(training, rows)
    uninterrupted = curve(training)
    upload(training.job, 10)
    given = training.job.leases.get()
    hand_back(given)
    training.refresh_from_db()
    assert (training.state, training.reason) == (
        "paused",
        "The node was switched off. It resumes from step 10 as soon as a node is free.",
    )
    lease(training.job, node)
    training.refresh_from_db()
    assert training.state == "training"
    assert [row[1] for row in curve(training)] == list(range(1, 11))
    metrics.store_metrics(training, rows[10:15])
    metrics.store_metrics(training, rows[12:])
    assert curve(training) == uninterrupted
    assert "Resumes from step 10 on cellar." in [event.sentence for event in Event.objects.about(training)]


def test_a_run_that_lost_its_node_before_a_checkpoint_starts_over(training: Run, node: Node) -> None:
    assert training.job
    metrics.store_metrics(training, [train_row(1), train_row(2)])
    hand_back(training.job.leases.get())
    lease(training.job, node)
    assert curve(training) == []


@pytest.mark.parametrize(
    "row",
    [
        train_row(1, math.nan),
        train_row(1, math.inf),
        train_row(1, -1.0),
        train_row(-1),
        train_row(2**70),
        train_row(1, tokens=2**70),
        train_row(1, loss="<script>"),
        {"kind": "train"},
        {"kind": "elsewhere", "step": 1, "loss": 1.0},
        {"kind": "sample", "step": 1, "prompt": None, "text": "x"},
        {"kind": "sample", "step": 1},
        {},
    ],
)
def test_a_line_that_cannot_be_right_is_left_out(training: Run, row: dict[str, Any]) -> None:
    metrics.store_metrics(training, [row, train_row(3)])
    assert [point.step for point in training.points.all()] == [3]
    assert not training.samples.exists()


def test_a_step_said_twice_in_one_batch_is_one_point(training: Run) -> None:
    metrics.store_metrics(training, [train_row(1, 6.0), train_row(1, 5.0)])
    assert curve(training) == [("train", 1, 5.0, 512, 0.01)]


def test_texts_are_made_fit_and_bounded(training: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a\x00b\x1b[31mc\ud800d\n" + "e" * 10_000
    metrics.store_metrics(training, [{"kind": "sample", "step": 1, "prompt": "p" * 900, "text": text}])
    sample = Sample.objects.get()
    assert sample.text.startswith("ab[31mc?d\ne")
    assert (len(sample.prompt), len(sample.text)) == (500, 4000)
    monkeypatch.setattr(metrics, "MAX_SAMPLES", 3)
    metrics.store_metrics(
        training, [{"kind": "sample", "step": step, "prompt": "p", "text": "t"} for step in range(2, 9)]
    )
    assert Sample.objects.count() == 3


def test_a_long_curve_is_thinned_and_keeps_its_ends_and_extremes(
    training: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MAX_POINTS", 50)
    for start in range(1, 400, 20):
        metrics.store_metrics(
            training, [train_row(step, 9.0 if step == 77 else 3.0) for step in range(start, start + 20)]
        )
    steps = [point.step for point in training.points.all()]
    assert len(steps) <= 50
    assert (steps[0], steps[-1]) == (1, 400)
    assert 77 in steps


def test_after_the_end_nothing_more_is_taken(training: Run) -> None:
    assert training.job
    Run.objects.filter(pk=training.pk).update(state=Run.State.CANCELLED)
    get_job_kind(training.job).handle_metrics(training.job, [train_row(1)])
    assert not CurvePoint.objects.exists()


def test_a_batch_takes_the_same_number_of_queries_whatever_its_size(
    training: Run, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for size in (2, 60):
        with django_assert_num_queries(4):  # the last step, the points it may outdo, upsert, progress
            metrics.store_metrics(training, [train_row(step) for step in range(size)])
