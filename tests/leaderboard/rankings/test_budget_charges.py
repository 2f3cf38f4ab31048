"""What a run is charged: what the scorer found, and at least its budget."""

from __future__ import annotations

from typing import Any

import pytest

from leaderboard.models import Run
from scheduler.job_kinds import get_job_kind
from scheduler.models import Node
from tests.leaderboard.conftest import VERDICT, lease, upload


def judged(run: Run, node: Node, budget: str = "20steps", **verdict: Any) -> Run:
    """Take a run through training and scoring."""
    Run.objects.filter(pk=run.pk).update(budget=budget)
    assert run.job
    lease(run.job, node)
    upload(run.job, 20)
    get_job_kind(run.job).handle_done(run.job, {"step": 20})
    run.refresh_from_db()
    assert run.score_job
    lease(run.score_job, node)
    get_job_kind(run.score_job).handle_done(run.score_job, VERDICT | verdict)
    run.refresh_from_db()
    return run


def test_run_is_charged_what_the_scorer_found(run: Run, node: Node) -> None:
    judged(run, node, train_flops=1e12, train_seconds=120.0, parameters_embedding=456)
    assert (run.train_flops, run.train_seconds, run.parameters_embedding) == (1e12, 120.0, 456)


@pytest.mark.parametrize(
    ("budget", "verdict", "flops", "seconds"),
    [
        ("1e12flops", {}, 1e12, 10.0),
        ("600s", {}, 2e10, 600.0),
        ("1M-tokens", {"flops_per_token": 1e6}, 1e12, 10.0),
        ("600s", {"flops_per_token": 1e6, "train_tokens": 5e5}, 5e11, 600.0),
        ("20steps", {"flops_per_token": 1e6, "train_tokens": 5e5}, 5e11, 10.0),
        ("1e12flops", {"flops_per_token": 1e6, "train_tokens": 2e6}, 2e12, 10.0),
    ],
)
def test_run_that_claims_less_is_charged_its_budget(
    run: Run, node: Node, budget: str, verdict: dict[str, Any], flops: float, seconds: float
) -> None:
    judged(run, node, budget=budget, **verdict)
    assert (run.train_flops, run.train_seconds) == (flops, seconds)


def test_run_of_steps_is_charged_for_the_tokens_of_its_metrics(run: Run, node: Node) -> None:
    Run.objects.filter(pk=run.pk).update(tokens=400_000)
    judged(run, node, flops_per_token=1e6, train_tokens=100.0)
    assert run.train_flops == 4e11
