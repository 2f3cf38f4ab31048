"""The seconds of a run count where its node was as fast as its class, before and after."""

from __future__ import annotations

from typing import Any

import pytest

from leaderboard.models import Run
from leaderboard.rankings import speed_probes
from scheduler.job_kinds import get_job_kind
from scheduler.models import Job, Node
from tests.leaderboard.conftest import hand_back, lease, upload
from trainer import protocol


def reading(speed: float) -> dict[str, Any]:
    return {"tokens_per_second": speed, "spread": 0.01, "steps": 5, "loss": 8.5}


def trained(run: Run, node: Node, before: float, after: float) -> Run:
    assert run.job
    lease(run.job, node)
    upload(run.job, 20)
    word = {"version": 1, "before": reading(before), "after": reading(after)}
    get_job_kind(run.job).handle_done(run.job, {"step": 20, "probes": word})
    run.refresh_from_db()
    return run


def known(run: Run, *speeds: float) -> None:
    """Other runs on nodes of this class."""
    for seed, speed in enumerate(speeds):
        about = {"entry": run.entry, "track": run.track, "season": run.season, "budget": "20steps"}
        Run.objects.create(**about, seed=seed, node_class="2 CPU cores", probe_speed=speed)


def test_a_steady_node_of_its_class_has_seconds_that_count(run: Run, node: Node) -> None:
    known(run, 1000, 990, 1010, 4000)
    trained(run, node, 1000, 1004)
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
def test_another_speed_voids_them_with_a_sentence(
    run: Run, node: Node, before: float, after: float, sentence: str
) -> None:
    known(run, 1000, 1000)
    assert trained(run, node, before, after).seconds_void == sentence


def test_a_track_may_bear_more(run: Run, node: Node) -> None:
    run.track.kappa_tolerance = run.track.drift_tolerance = 0.15
    run.track.save()
    known(run, 1000, 1000)
    assert trained(run, node, 900, 1000).seconds_void == ""


@pytest.mark.parametrize("word", [None, {}, "fast", {"version": 1, "before": reading(1), "after": None}])
def test_an_agent_that_does_not_say_has_no_seconds(run: Run, node: Node, word: Any) -> None:
    assert run.job
    lease(run.job, node)
    upload(run.job, 20)
    get_job_kind(run.job).handle_done(run.job, {"step": 20, "probes": word})
    run.refresh_from_db()
    assert (run.state, run.kappa) == ("scoring", None)
    assert run.seconds_void == "Its node did not report how fast it was before and after the training."


def test_the_probes_know_only_the_last_part_of_an_interrupted_run(run: Run, node: Node) -> None:
    assert run.job
    first = lease(run.job, node)
    checkpoint = upload(run.job, 10)
    checkpoint.lease = first
    checkpoint.save()
    hand_back(first)
    trained(run, node, 1000, 1000)
    assert run.seconds_void == "It was interrupted, and its nodes' speed is known for the last part only."


def test_the_order_carries_the_tracks_shape(run: Run) -> None:
    assert run.job
    order = get_job_kind(run.job).build_order(run.job, None)
    assert isinstance(order, protocol.TrainOrder)
    assert order.probe == protocol.ProbeSpec(seconds=2.0, width=128, sequence_length=64, batch=8)


def test_a_track_without_probes_has_no_seconds(run: Run, node: Node) -> None:
    run.track.probe_seconds = 0
    run.track.save()
    assert speed_probes.build_probe_spec(run.track) is None
    assert run.job
    assert get_job_kind(run.job).build_order(Job.objects.get(pk=run.job.pk), None).probe is None  # type: ignore[union-attr]
    assert trained(run, node, 1, 1).seconds_void == "This track does not measure how fast its nodes are."
