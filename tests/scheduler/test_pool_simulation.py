"""The pool simulator: reproducible outcomes, consistent sums, and no changes in the site's database."""

from __future__ import annotations

import json
import math

import pytest
from django.utils import timezone

from benchmarks.pool_simulation.__main__ import main
from benchmarks.pool_simulation.clock import START, virtual_time
from benchmarks.pool_simulation.engine import simulate
from benchmarks.pool_simulation.nodes import DAY, FLEET, sample_fleet
from benchmarks.pool_simulation.statistics import Outcome, compute_fair_shares, compute_jain_index
from benchmarks.pool_simulation.workload import CLASSES
from scheduler.models import Job, Lease, Node

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def outcome(django_db_setup: None, django_db_blocker: pytest.FixtureRequest) -> Outcome:
    with django_db_blocker.unblock():  # type: ignore[attr-defined]
        return simulate(20, 2, 7)


@pytest.mark.slow
def test_simulation_outcome_sums_add_up(outcome: Outcome) -> None:
    assert 0.5 < outcome.utilization <= 1
    assert 0 <= outcome.lost_work < 0.2
    assert outcome.starved == 0
    assert sum(outcome.ends.values()) <= outcome.leases <= sum(outcome.ends.values()) + 20, (
        "at most 20 leases are active at the end"
    )
    assert outcome.ends["done"] == outcome.jobs_done > 20
    assert outcome.ends.get("model failed", 0) >= outcome.jobs_failed, "some wait for a second node"
    assert math.isclose(sum(outcome.lost_by_reason.values()), outcome.lost_work)
    assert 0 < outcome.fairness <= 1


@pytest.mark.slow
@pytest.mark.self_test
def test_simulated_nodes_prove_themselves_before_their_jobs() -> None:
    outcome = simulate(8, 0.7, 7)
    assert outcome.jobs_done > 0
    assert outcome.starved == 0


@pytest.mark.slow
def test_simulation_with_same_seed_repeats_outcome() -> None:
    outcome = simulate(8, 0.7, 7)
    assert simulate(8, 0.7, 7) == outcome
    assert simulate(8, 0.7, 8) != outcome


@pytest.mark.slow
def test_simulation_report_has_its_keys_and_classes(outcome: Outcome) -> None:
    report = outcome.build_report()
    assert list(report) == ["utilization", "lost_work", "starved", "wait_p95_hours", "jobs_done"]
    assert set(outcome.waits) <= set(CLASSES)
    assert {"community", "ci", "ladder", "score"} <= set(outcome.waits)


def test_simulation_leaves_database_and_clock_unchanged() -> None:
    before = timezone.now()
    simulate(5, 0.1, 1)
    assert timezone.now() >= before
    assert not Node.objects.exists()
    assert not Job.objects.exists()
    assert not Lease.objects.exists()


def test_virtual_clock_sets_row_timestamps() -> None:
    with virtual_time() as clock:
        clock.seconds = 3 * DAY
        assert timezone.now() == Node(name="new").registered_at == clock.now
        assert (timezone.now() - START).days == 3


def test_simulation_json_prints_only_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--nodes", "5", "--days", "0.1", "--seed", "3", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {
        *("utilization", "lost_work", "starved", "wait_p95_hours", "jobs_done")
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "0"], "--nodes is 0"),
        (["--nodes", "many"], "many"),
        (["--days", "-1"], "--days is -1"),
        (["--days", "nan"], "--days is nan"),
    ],
)
def test_simulation_wrong_argument_exits_with_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_sample_fleet_has_exact_shares() -> None:
    fleet = sample_fleet(100)
    assert len(fleet) == 100
    assert [fleet.count(hardware) for hardware in FLEET] == [round(100 * hardware.share) for hardware in FLEET]


def test_fair_share_never_exceeds_request() -> None:
    assert compute_fair_shares([(1, 1), (4, 2), (10, 6)]) == [1, 4, 4]
    assert compute_jain_index([1, 1, 1]) == 1
    assert compute_jain_index([1, 0, 0]) == pytest.approx(1 / 3)
