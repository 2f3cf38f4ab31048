"""Speed probes: a run's seconds count if its node had the usual speed of its class before and after."""

from __future__ import annotations

from typing import Any

import pytest

from leaderboard.models import Run
from leaderboard.rankings import speed_probes
from scheduler.job_kinds import get_job_kind
from scheduler.models import Job, Node
from tests.leaderboard.conftest import create_checkpoint
from tests.support.node_jobs import finish_job, lease_job, requeue_job
from trainer import protocol


def build_reading(speed: float) -> dict[str, Any]:
    return {"tokens_per_second": speed, "spread": 0.01, "steps": 5, "loss": 8.5}


def finish_training(run: Run, node: Node, before: float, after: float) -> Run:
    assert run.job
    lease_job(run.job, node)
    create_checkpoint(run.job, 20)
    probes = {"version": 1, "before": build_reading(before), "after": build_reading(after)}
    finish_job(run.job, {"step": 20, "probes": probes})
    run.refresh_from_db()
    return run


def create_runs_with_speeds(run: Run, *speeds: float) -> None:
    """Create other runs on nodes of this class with these speeds."""
    for seed, speed in enumerate(speeds):
        fields = {"entry": run.entry, "track": run.track, "season": run.season, "budget": "20steps"}
        Run.objects.create(**fields, seed=seed, node_class="2 CPU cores", probe_speed=speed)


def test_run_on_node_of_usual_speed_has_valid_seconds(run: Run, node: Node) -> None:
    create_runs_with_speeds(run, 1000, 990, 1010, 4000)
    finish_training(run, node, 1000, 1004)
    assert run.probe_speed == pytest.approx(1002, abs=0.01)
    assert run.kappa == 1.0
    assert run.drift == pytest.approx(0.004)
    assert run.seconds_void == ""


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (1000, 1020, "Its node's speed changed by +2.0% during the run; 1.0% is allowed."),
        (1100, 1100, "Its node ran at 110.0% of its class's usual speed; 3.0% more or less is allowed."),
        (900, 900, "Its node ran at 90.0% of its class's usual speed; 3.0% more or less is allowed."),
    ],
)
def test_run_on_node_of_other_speed_has_void_seconds(
    run: Run, node: Node, before: float, after: float, sentence: str
) -> None:
    create_runs_with_speeds(run, 1000, 1000)
    assert finish_training(run, node, before, after).seconds_void == sentence


def test_speed_tolerance_of_track_applies(run: Run, node: Node) -> None:
    run.track.kappa_tolerance = run.track.drift_tolerance = 0.15
    run.track.save()
    create_runs_with_speeds(run, 1000, 1000)
    assert finish_training(run, node, 900, 1000).seconds_void == ""


@pytest.mark.parametrize("probes", [None, {}, "fast", {"version": 1, "before": build_reading(1), "after": None}])
def test_run_without_valid_probes_has_void_seconds(run: Run, node: Node, probes: Any) -> None:
    assert run.job
    lease_job(run.job, node)
    create_checkpoint(run.job, 20)
    finish_job(run.job, {"step": 20, "probes": probes})
    run.refresh_from_db()
    assert (run.state, run.kappa) == ("scoring", None)
    assert run.seconds_void == "Its node did not report how fast it was before and after the training."


def test_interrupted_run_has_void_seconds(run: Run, node: Node) -> None:
    assert run.job
    first = lease_job(run.job, node)
    checkpoint = create_checkpoint(run.job, 10)
    checkpoint.lease = first
    checkpoint.save()
    requeue_job(first)
    finish_training(run, node, 1000, 1000)
    assert run.seconds_void == "It was interrupted, and its nodes' speed is known for the last part only."


def test_train_order_has_probe_of_track(run: Run) -> None:
    assert run.job
    order = get_job_kind(run.job).build_order(run.job, None)
    assert isinstance(order, protocol.TrainOrder)
    assert order.probe == protocol.ProbeSpec(seconds=2.0, width=128, sequence_length=64, batch=8)


def test_run_on_track_without_probes_has_void_seconds(run: Run, node: Node) -> None:
    run.track.probe_seconds = 0
    run.track.save()
    assert speed_probes.build_probe_spec(run.track) is None
    assert run.job
    assert get_job_kind(run.job).build_order(Job.objects.get(pk=run.job.pk), None).probe is None  # type: ignore[union-attr]
    assert finish_training(run, node, 1, 1).seconds_void == "This track does not measure how fast its nodes are."
