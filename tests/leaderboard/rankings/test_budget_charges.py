"""Compute charged to a run: the scorer's measurement, and at least its budget."""

from __future__ import annotations

from typing import Any

import pytest

from leaderboard.models import Run
from scheduler.models import Node
from tests.leaderboard.conftest import SCORE_RESULT, create_checkpoint
from tests.support.node_jobs import finish_job, lease_job


def finish_scored_run(run: Run, node: Node, budget: str = "20steps", **score_fields: Any) -> Run:
    """Take a run through training and scoring."""
    Run.objects.filter(pk=run.pk).update(budget=budget)
    assert run.job
    lease_job(run.job, node)
    create_checkpoint(run.job, 20)
    finish_job(run.job, {"step": 20})
    run.refresh_from_db()
    assert run.score_job
    lease_job(run.score_job, node)
    finish_job(run.score_job, SCORE_RESULT | score_fields)
    run.refresh_from_db()
    return run


def test_run_is_charged_the_measured_compute(run: Run, node: Node) -> None:
    finish_scored_run(run, node, train_flops=1e12, train_seconds=120.0, parameters_embedding=456)
    assert (run.train_flops, run.train_seconds, run.parameters_embedding) == (1e12, 120.0, 456)


@pytest.mark.parametrize(
    ("budget", "score_fields", "flops", "seconds"),
    [
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
    finish_scored_run(run, node, budget=budget, **score_fields)
    assert (run.train_flops, run.train_seconds) == (flops, seconds)


def test_run_with_step_budget_is_charged_by_its_tokens(run: Run, node: Node) -> None:
    Run.objects.filter(pk=run.pk).update(tokens=400_000)
    finish_scored_run(run, node, flops_per_token=1e6, train_tokens=100.0)
    assert run.train_flops == 4e11
