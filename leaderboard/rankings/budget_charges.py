"""What a scored run is charged: what the scorer found, and at least its budget."""

from __future__ import annotations

from leaderboard.models import Run
from leaderboard.rankings.score_validation import Verdict
from trainer.accounting.budget import Budget


def compute_charges(run: Run, verdict: Verdict) -> dict[str, float]:
    """Return the run's compute fields."""
    floor = minimum_compute(Budget.parse(run.budget), verdict.flops_per_token)
    return {
        "train_flops": max(verdict.train_flops, floor.get("flops", 0.0)),
        "train_seconds": max(verdict.train_seconds, floor.get("seconds", 0.0)),
    }


def minimum_compute(budget: Budget, flops_per_token: float | None) -> dict[str, float]:
    """Return a lower bound of what a budget costs, without trusting the node."""
    if budget.kind in ("flops", "seconds"):
        return {budget.kind: budget.amount}
    if budget.kind == "tokens" and flops_per_token is not None:
        return {"flops": budget.amount * flops_per_token}
    return {}
