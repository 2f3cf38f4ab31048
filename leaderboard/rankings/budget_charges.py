"""Compute charged to a scored run: the scorer's measurement, and at least the budget."""

from __future__ import annotations

from leaderboard.models import Run
from leaderboard.rankings.score_validation import Verdict
from trainer.accounting.budget import Budget


def compute_charges(run: Run, verdict: Verdict) -> dict[str, float]:
    """Return the run's compute fields."""
    tokens = max(run.tokens, verdict.train_tokens or 0)
    floor = minimum_compute(Budget.parse(run.budget), tokens, verdict.flops_per_token)
    return {
        "train_flops": max(verdict.train_flops, floor.get("flops", 0.0)),
        "train_seconds": max(verdict.train_seconds, floor.get("seconds", 0.0)),
    }


def minimum_compute(budget: Budget, tokens: float, flops_per_token: float | None) -> dict[str, float]:
    """Return a lower bound of the FLOPs and seconds of a run that reported this many tokens of training.

    FLOPs per token are the scorer's count. With a budget in seconds or steps, the number of tokens is what the run
    itself reported.
    """
    floor: dict[str, float] = {budget.kind: budget.amount}
    if budget.kind == "tokens":
        tokens = max(tokens, budget.amount)
    return floor | {"flops": max(floor.get("flops", 0.0), tokens * (flops_per_token or 0.0))}
