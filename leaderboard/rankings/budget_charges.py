"""What a scored run is charged: at least its budget, and only what the time metered by the agents can explain."""

from __future__ import annotations

from typing import Any

from django.db.models import Count, Sum

from leaderboard.models import Run
from leaderboard.rankings.score_validation import Verdict
from trainer.accounting import plausibility
from trainer.accounting.budget import Budget
from trainer.accounting.peak_flops import lookup_peak_flops


def compute_charges(run: Run, verdict: Verdict) -> dict[str, Any]:
    """Return the run's compute fields: as scored, at least the budget, void where implausible."""
    floor = minimum_compute(Budget.parse(run.budget), verdict.flops_per_token)
    flops = max(verdict.train_flops, floor.get("flops", 0.0))
    seconds = max(verdict.train_seconds, floor.get("seconds", 0.0))
    metered, leases = sum_metered_seconds(run)
    void = {"flops_void": verdict.flops_void, "seconds_void": run.seconds_void}
    if metered > 0:
        working = max(seconds, metered - leases * plausibility.SETUP_SECONDS)
        peak = lookup_peak_flops(run.node_class)
        void["flops_void"] = void["flops_void"] or plausibility.explain_implausible_flops(
            flops, working, peak, find_baseline_pace(run)
        )
        void["seconds_void"] = void["seconds_void"] or plausibility.explain_implausible_seconds(
            seconds, metered, leases
        )
    return {"train_flops": flops, "train_seconds": seconds, **void}


def minimum_compute(budget: Budget, flops_per_token: float | None) -> dict[str, float]:
    """Return a lower bound of what a budget costs, without trusting the node."""
    if budget.kind in ("flops", "seconds"):
        return {budget.kind: budget.amount}
    if budget.kind == "tokens" and flops_per_token is not None:
        return {"flops": budget.amount * flops_per_token}
    return {}


def sum_metered_seconds(run: Run) -> tuple[float, int]:
    """Return (metered seconds, leases) of the run's training."""
    if run.job is None:
        return 0.0, 0
    found = run.job.leases.filter(seconds__gt=0).aggregate(seconds=Sum("seconds"), leases=Count("pk"))
    return found["seconds"] or 0.0, found["leases"]


def find_baseline_pace(run: Run) -> float | None:
    """Return the baseline's seconds per FLOP on the same track, season and node class."""
    ladder = Run.objects.filter(
        track=run.track_id, season=run.season_id, purpose=Run.Purpose.LADDER, state=Run.State.FINISHED
    )
    found = ladder.filter(node_class=run.node_class, seconds_void="", flops_void="").aggregate(
        seconds=Sum("train_seconds"), flops=Sum("train_flops")
    )
    return found["seconds"] / found["flops"] if found["flops"] and found["seconds"] else None
