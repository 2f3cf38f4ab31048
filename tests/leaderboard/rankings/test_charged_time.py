"""Time that is charged: probes of a node's speed, and what checkpoints say against their steps and the clock."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from leaderboard import charged_time, runs
from leaderboard.models import Run
from leaderboard.rankings import speed_probes
from scheduler import leases, storage, uploads
from scheduler.errors import InvalidMessageError
from scheduler.job_kinds import get_job_kind
from scheduler.models import JobFile, Lease, Node
from scheduler.node_api import job_reports
from tests.leaderboard.conftest import create_checkpoint
from tests.support.graph_jobs import store_graph
from tests.support.node_jobs import finish_job, lease_job, requeue_job
from trainer import protocol


def build_reading(speed: float) -> dict[str, Any]:
    return {"tokens_per_second": speed, "spread": 0.01, "steps": 5, "loss": 8.5}


def build_probes(before: float, after: float) -> dict[str, Any]:
    return {"version": 1, "before": build_reading(before), "after": build_reading(after)}


def finish_training(run: Run, node: Node, probes: Any) -> Run:
    lease_job(run.job, node)
    create_checkpoint(run.job, 20)
    finish_job(run.job, {"step": 20, "probes": probes})
    run.refresh_from_db()
    return run


def create_runs_with_speeds(run: Run, *speeds: float) -> None:
    """Create other runs on nodes of this class with these speeds."""
    for seed, speed in enumerate(speeds):
        fields = {"entry": run.entry, "track": run.track, "season": run.season, "budget": "20steps"}
        Run.objects.create(**fields, seed=seed, node_class="2 CPU cores", probe_speed=speed)


UNKNOWN = "Its node did not report how fast it was before and after the training."


def test_run_on_node_of_usual_speed_has_valid_seconds(run: Run, node: Node) -> None:
    create_runs_with_speeds(run, 1000, 990, 1010, 4000)
    finish_training(run, node, build_probes(1000, 1004))
    assert run.probe_speed == pytest.approx(1002, abs=0.01)
    assert run.kappa == 1.0
    assert run.drift == pytest.approx(0.004)
    assert run.seconds_void == ""


@pytest.mark.parametrize(
    ("probes", "sentence"),
    [
        (build_probes(1000, 1020), "Its node's speed changed by +2.0% during the run; 1.0% is allowed."),
        (build_probes(1100, 1100), "Its node ran at 110.0% of its class's usual speed; 3.0% more or less is allowed."),
        (build_probes(900, 900), "Its node ran at 90.0% of its class's usual speed; 3.0% more or less is allowed."),
        (None, UNKNOWN),
        ({}, UNKNOWN),
        ("fast", UNKNOWN),
        ({**build_probes(1, 1), "after": None}, UNKNOWN),
    ],
)
def test_run_on_node_of_other_or_unknown_speed_has_void_seconds(
    run: Run, node: Node, probes: Any, sentence: str
) -> None:
    create_runs_with_speeds(run, 1000, 1000)
    finish_training(run, node, probes)
    assert (run.state, run.seconds_void) == ("scoring", sentence)
    assert sentence != UNKNOWN or run.kappa is None


def test_interrupted_run_has_void_seconds(run: Run, node: Node) -> None:
    first = lease_job(run.job, node)
    checkpoint = create_checkpoint(run.job, 10)
    checkpoint.lease = first
    checkpoint.save()
    requeue_job(first)
    finish_training(run, node, build_probes(1000, 1000))
    assert run.seconds_void == "It was interrupted, and its nodes' speed is known for the last part only."


def test_track_decides_about_probes_and_their_tolerance(run: Run, node: Node) -> None:
    run.track.kappa_tolerance = run.track.drift_tolerance = 0.15
    run.track.save()
    create_runs_with_speeds(run, 1000, 1000)
    assert finish_training(run, node, build_probes(900, 1000)).seconds_void == ""
    run.track.probe_seconds = 0
    run.track.save()
    without = runs.make_run(run.entry, run.track)
    runs.queue_run(without)
    assert speed_probes.build_probe_spec(run.track) is None
    assert get_job_kind(without.job).build_order(without.job, None).probe is None  # type: ignore[union-attr]
    assert (
        finish_training(without, node, build_probes(1, 1)).seconds_void
        == "This track does not measure how fast its nodes are."
    )


@pytest.fixture
def lease(run: Run, capable_node: Node) -> Lease:
    """A lease of the run's training, ten minutes old."""
    claimed = leases.claim_job(capable_node)
    Lease.objects.filter(pk=claimed.lease).update(started_at=timezone.now() - timedelta(minutes=10))
    return Lease.objects.get(pk=claimed.lease)


def upload_checkpoint(lease: Lease, step: int, state: Any) -> None:
    contents = {"model.safetensors": b"weights of step %d" % step, "state.json": json.dumps(state).encode()}
    files = []
    for path, content in contents.items():
        blob = storage.store_bytes(content)
        lease.uploads.add(blob)
        files.append(storage.build_file_reference(blob, path))
    uploads.record_checkpoint(lease, protocol.Checkpoint(step=step, files=tuple(files)))


def build_state(step: int, seconds: float | None, **spent: Any) -> dict[str, Any]:
    return {"step": step, "spent": {"steps": step, "seconds": seconds} | spent}


@pytest.mark.parametrize(
    "state",
    [
        build_state(20, 300.0, steps=0),
        build_state(20, 10.0, steps=20.0),
        build_state(20, 300.0, steps="20"),
        build_state(20, None),
        build_state(20, 99.0),
        build_state(20, -1.0),
        build_state(20, float("nan")),
        build_state(20, 10**400),
        build_state(20, 700.0),
    ],
)
def test_checkpoint_that_charges_what_cannot_be_is_refused(lease: Lease, state: dict[str, Any]) -> None:
    upload_checkpoint(lease, 10, build_state(10, 100.0))
    with pytest.raises(InvalidMessageError, match=r"charges"):
        upload_checkpoint(lease, 20, state)
    upload_checkpoint(lease, 20, build_state(20, 590.0))
    assert list(lease.job.checkpoints.values_list("step", "seconds")) == [(10, 100.0), (20, 590.0)]


def test_checkpoint_whose_state_is_too_large_to_be_read_is_refused(lease: Lease, monkeypatch: Any) -> None:
    """Spaces make a state of any size, and what the site does not read is charged nowhere."""
    monkeypatch.setattr(charged_time, "STATE_BYTES", 100)
    with pytest.raises(InvalidMessageError, match="at most 100"):
        upload_checkpoint(lease, 10, build_state(10, 100.0, padding=" " * 100))


def test_charged_time_of_earlier_leases_does_not_count(lease: Lease, capable_node: Node) -> None:
    upload_checkpoint(lease, 10, build_state(10, 500.0))
    assert leases.lose_lease(lease, "Its heartbeat stopped.")
    claimed = leases.claim_job(capable_node)
    upload_checkpoint(Lease.objects.get(pk=claimed.lease), 20, build_state(20, 550.0))
    assert lease.job.checkpoints.get(step=20).seconds == 550


PREPARATION = timedelta(hours=20)  # of a dataset on the node, and downloads: no training


@pytest.mark.parametrize(
    ("budget", "charged", "passed", "state"),
    [
        ("1h", (100.0, 500.0), 1000, "provisional"),
        ("1h", (100.0, 3700.0), 7200, "disputed"),  # half of the time
        ("1h", (3600.0,), 4000, "provisional"),
        ("1h", (3600.0,), 7200, "disputed"),  # a lease with one checkpoint
        ("1h", (None,), 1000, "disputed"),
        ("20steps", (None, None), 1000, "disputed"),
        ("20steps", (100.0, 500.0), 7200, "provisional"),
        ("15steps", (100.0, 500.0), 1000, "disputed"),  # step 20 of 15
        ("1h", (3600.0,), 5000, "provisional"),
        ("9000-tokens", (100.0, 500.0), 1000, "disputed"),  # 18 steps of 512
        ("10000-tokens", (100.0, 500.0), 1000, "provisional"),
        ("9.2e6flops", (100.0, 500.0), 1000, "disputed"),  # 19 steps of 512 tokens, 1,000 FLOPs and 1 % less
        ("9.7e6flops", (100.0, 500.0), 1000, "provisional"),
    ],
)
def test_run_that_charges_less_than_the_server_computes_is_disputed(
    run: Run, lease: Lease, budget: str, charged: tuple[float | None, ...], passed: int, state: str
) -> None:
    """A node that charges a part of each step's time, or fewer steps, trains more than its budget."""
    steps = (20,) if len(charged) == 1 else (10, 20)
    began = timezone.now() - timedelta(seconds=passed)
    Lease.objects.filter(pk=lease.pk).update(started_at=began - PREPARATION, running_at=began)
    lease.refresh_from_db()
    for step, seconds in zip(steps, charged, strict=True):
        upload_checkpoint(lease, step, {} if seconds is None else build_state(step, min(seconds, passed)))
    job = lease.job
    if len(steps) == 2:
        job.checkpoints.filter(step=10).update(created_at=timezone.now() - timedelta(seconds=passed))
    JobFile.objects.create(job=job, path="run.json", blob=storage.store_bytes(b"{}"))
    Run.objects.filter(pk=run.pk).update(budget=budget)
    Run.objects.filter(pk=run.pk).update(graph=store_graph(run.entry, flops_per_token=1000))
    run.entry.smoke = {"tokens_per_step": 512}
    run.entry.save()
    finish_job(job, {"step": 20})
    run.refresh_from_db()
    assert run.trust == state, run.reason


def train_in_leases(run: Run, lease: Lease, count: int, *, passed: float, says_running: bool) -> None:
    """Charge ten minutes in equal parts, each in a lease that lasts so many seconds."""
    now = timezone.now()
    for number in range(1, count + 1):
        if number > 1:
            Lease.objects.filter(pk=lease.pk).update(state=Lease.State.LOST)
            lease.pk, lease.token_hash, lease.attempt = None, str(number), number
            lease.state = Lease.State.ACTIVE
            lease.save()
        running_at = now - timedelta(seconds=passed) if says_running else None
        Lease.objects.filter(pk=lease.pk).update(started_at=now - timedelta(hours=9), running_at=running_at)
        lease.refresh_from_db()
        upload_checkpoint(lease, 20 * number, build_state(20 * number, 600.0 * number / count))
    JobFile.objects.create(job=lease.job, path="run.json", blob=storage.store_bytes(b"{}"))
    Run.objects.filter(pk=run.pk).update(budget="10m")
    finish_job(lease.job, {"step": 20 * count})
    run.refresh_from_db()


@pytest.mark.parametrize(
    ("count", "passed", "state"),
    [
        (1, 1300, "provisional"),
        (8, 690, "provisional"),  # each compiles and uploads for ten minutes
        (40, 600, "disputed"),  # 24,000 s for ten minutes
    ],
)
def test_leases_of_one_owner_have_one_limit_of_uncharged_time(
    run: Run, lease: Lease, count: int, passed: float, state: str
) -> None:
    train_in_leases(run, lease, count, passed=passed, says_running=True)
    assert run.trust == state, run.reason


@pytest.mark.parametrize("count", [1, 6])
def test_long_preparation_without_metrics_is_not_disputed(run: Run, lease: Lease, count: int) -> None:
    """A slow line downloads for hours, each node again."""
    train_in_leases(run, lease, count, passed=0, says_running=False)
    assert run.trust == "provisional", run.reason


def test_metrics_tell_that_a_node_trains_while_it_says_it_prepares(run: Run, lease: Lease) -> None:
    batches = [protocol.MetricsBatch(sequence=number, rows=({"step": number},)) for number in (1, 2)]
    job_reports.store_metrics(lease, batches[0])
    lease.refresh_from_db()
    began = lease.running_at
    assert began is not None
    leases.renew_lease(lease, protocol.Heartbeat(phase="preparing", seconds=0.0))
    job_reports.store_metrics(lease, batches[1])
    lease.refresh_from_db()
    assert lease.running_at == began
