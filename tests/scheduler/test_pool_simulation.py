"""The pool simulator: reproducible outcomes, consistent sums, and no changes in the site's database."""

from __future__ import annotations

import json
import math

import pytest
from django.utils import timezone

from benchmarks.pool_simulation.__main__ import main
from benchmarks.pool_simulation.engine import simulate
from scheduler.models import Job, Lease, Node

pytestmark = pytest.mark.django_db


@pytest.mark.slow
def test_simulation_outcome_sums_add_up() -> None:
    outcome = simulate(20, 2, 7)
    assert 0.5 < outcome.utilization <= 1
    assert 0 <= outcome.lost_work < 0.2
    assert outcome.starved == 0
    ended = sum(outcome.ends.values())
    assert ended <= outcome.leases <= ended + 20, "at most 20 leases are active at the end"
    assert outcome.ends["done"] == outcome.jobs_done > 20
    assert outcome.ends.get("model failed", 0) >= outcome.jobs_failed, "some wait for a second node"
    assert math.isclose(sum(outcome.lost_by_reason.values()), outcome.lost_work)
    assert 0 < outcome.fairness <= 1


@pytest.mark.slow
@pytest.mark.self_test
def test_simulation_with_same_seed_repeats_outcome() -> None:
    outcome = simulate(8, 0.7, 7)
    assert (outcome.jobs_done > 0, outcome.starved) == (True, 0), "its nodes prove themselves first"
    assert simulate(8, 0.7, 7) == outcome
    assert simulate(8, 0.7, 8) != outcome


def test_simulation_prints_its_report_and_leaves_database_and_clock_unchanged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = timezone.now()
    assert main(["--nodes", "5", "--days", "0.1", "--seed", "3", "--json"]) == 0
    names = {"utilization", "lost_work", "starved", "wait_p95_hours", "jobs_done"}
    assert set(json.loads(capsys.readouterr().out)) == names
    assert timezone.now() >= before
    assert not Node.objects.exists()
    assert not Job.objects.exists()
    assert not Lease.objects.exists()
