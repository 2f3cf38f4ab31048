"""What a run is charged does not rest on what its own process says: budget and metered time bound it."""

from __future__ import annotations

from typing import Any

import pytest

from leaderboard.models import Run
from scheduler.job_kinds import get_job_kind
from scheduler.models import Lease, Node
from tests.leaderboard.conftest import VERDICT, lease, upload
from trainer.accounting import plausibility


def judged(run: Run, node: Node, metered: float, budget: str = "20steps", **verdict: Any) -> Run:
    """Take a run through training, metered by the agent, and scoring."""
    Run.objects.filter(pk=run.pk).update(budget=budget)
    assert run.job
    Lease.objects.filter(pk=lease(run.job, node).pk).update(seconds=metered)
    upload(run.job, 20)
    get_job_kind(run.job).handle_done(run.job, {"step": 20})
    run.refresh_from_db()
    Run.objects.filter(pk=run.pk).update(seconds_void="")
    run.refresh_from_db()
    assert run.score_job
    lease(run.score_job, node)
    get_job_kind(run.score_job).handle_done(run.score_job, VERDICT | verdict)
    run.refresh_from_db()
    return run


def ladder(run: Run, seconds: float, flops: float) -> None:
    """A judged run of the baseline on the same class of node."""
    about = {"entry": run.entry, "track": run.track, "season": run.season, "budget": "1e13flops", "seed": 1}
    Run.objects.create(
        **about,
        purpose=Run.Purpose.LADDER,
        state=Run.State.FINISHED,
        node_class="2 CPU cores",
        train_seconds=seconds,
        train_flops=flops,
    )


def test_an_honest_run_is_charged_what_the_scorer_found(run: Run, node: Node) -> None:
    ladder(run, 100, 1e12)
    judged(run, node, metered=260, train_flops=1e12, train_seconds=120.0, parameters_embedding=456)
    assert (run.train_flops, run.train_seconds, run.flops_void, run.seconds_void) == (1e12, 120.0, "", "")
    assert run.parameters_embedding == 456


@pytest.mark.parametrize(
    ("budget", "verdict", "flops", "seconds"),
    [
        ("1e12flops", {}, 1e12, 10.0),
        ("600s", {}, 2e10, 600.0),
        ("1M-tokens", {"flops_per_token": 1e6}, 1e12, 10.0),
    ],
)
def test_a_run_that_claims_less_is_charged_its_budget(
    run: Run, node: Node, budget: str, verdict: dict[str, Any], flops: float, seconds: float
) -> None:
    judged(run, node, metered=0, budget=budget, **verdict)
    assert (run.train_flops, run.train_seconds) == (flops, seconds)


def test_a_clock_that_stood_still_voids_the_seconds(run: Run, node: Node) -> None:
    judged(run, node, metered=5000, train_seconds=600.0)
    assert run.seconds_void == "It charges 600 s where the agent metered 5,000 s: its clock cannot be right."


def test_work_hidden_from_the_counter_takes_too_long_for_its_count(run: Run, node: Node) -> None:
    ladder(run, 100, 1e12)
    judged(run, node, metered=2000, train_flops=1e12, train_seconds=1900.0)
    assert "19 times as long as the baseline's" in run.flops_void
    assert run.seconds_void == ""


def test_what_the_scorer_found_void_stays_void(run: Run, node: Node) -> None:
    judged(run, node, metered=100, flops_void=plausibility.LEAVES_TORCH)
    assert run.flops_void == plausibility.LEAVES_TORCH
