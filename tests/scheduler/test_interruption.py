"""Interrupted jobs move between nodes: no second is charged twice, and little work is repeated."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.db import transaction
from django.db.models import F, Sum
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytest_django import Settings

from scheduler import lease_sweeper, leases, node_tokens, storage, transitions
from scheduler.models import Job, Lease, Node
from tests.support.pool import HARDWARE, LIMITS, Agent, ClaimedJob, create_job, create_node
from tests.support.recording_handler import PIN
from tests.support.waits import WAIT_SECONDS
from trainer import protocol

pytestmark = pytest.mark.processes

H100, RTX = "NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 3090"


def create_gpu_agent(name: str, *gpus: str) -> Agent:
    hardware = {"gpus": gpus, "gpu_details": tuple(protocol.Gpu(name=gpu) for gpu in gpus)}
    agent = Agent(create_node(name, hardware=hardware)[1])
    agent.hardware = HARDWARE.model_copy(update=hardware)
    return agent


def set_lease_age(claimed_job: ClaimedJob, seconds_ago: float) -> None:
    """Set the age of the lease; the site's clock bounds the seconds that a node may report."""
    Lease.objects.filter(pk=claimed_job.lease.lease).update(started_at=timezone.now() - timedelta(seconds=seconds_ago))


def expire_lease(claimed_job: ClaimedJob) -> None:
    Lease.objects.filter(pk=claimed_job.lease.lease).update(expires_at=F("expires_at") - timedelta(hours=1))
    lease_sweeper.sweep_leases()


# --- GPU-seconds and credit ------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_final_seconds_are_exact_and_final() -> None:
    create_job()
    claimed_job = create_gpu_agent("cellar", RTX).claim_job()
    set_lease_age(claimed_job, 600)
    claimed_job.send_heartbeat(300)
    claimed_job.finish("released", seconds=311.25)
    claimed_job.finish("released", seconds=599.0)
    assert claimed_job.row.seconds == 311.25


Step = st.tuples(st.sampled_from(["beat", "late", "silent", "released", "checkpoint"]), st.floats(0, 10_000))


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(steps=st.lists(Step, max_size=14))
def test_seconds_are_never_charged_twice(db: None, steps: list[tuple[str, float]]) -> None:
    """The seconds of a job are the sum of the last accepted reports of its leases."""
    with transaction.atomic():
        job = create_job(max_attempts=1000, limits={**LIMITS.model_dump(), "wall_seconds": 20_000})
        agents = [Agent(create_node(f"node-{number}")[1]) for number in range(2)]
        reported_seconds: dict[int, float] = {}
        ended_jobs: list[ClaimedJob] = []
        claimed_job: ClaimedJob | None = None
        for turn, (step, seconds) in enumerate(steps):
            if claimed_job is None:
                Job.objects.update(excluded_nodes=[])  # of nodes that lose it again and again
                Node.objects.update(rest_until=None)
                claimed_job = agents[turn % 2].claim_job()
                set_lease_age(claimed_job, 20_000)
                reported_seconds[claimed_job.lease.lease] = 0.0
            if step == "beat":
                claimed_job.send_heartbeat(seconds)
                reported_seconds[claimed_job.lease.lease] = max(reported_seconds[claimed_job.lease.lease], seconds)
            elif step == "late":
                assert all(ended_job.send_heartbeat(20_000).status_code == 409 for ended_job in ended_jobs)
            elif step == "checkpoint":
                claimed_job.upload_checkpoint(turn, f"weights {turn}".encode())
            elif step == "released":
                claimed_job.finish("released", seconds=seconds)
                reported_seconds[claimed_job.lease.lease] = max(reported_seconds[claimed_job.lease.lease], seconds)
            else:
                expire_lease(claimed_job)
            if step in ("released", "silent"):
                ended_jobs.append(claimed_job)
                claimed_job = None
        charged = job.leases.aggregate(total=Sum("seconds"))["total"] or 0.0
        assert charged == pytest.approx(sum(reported_seconds.values()))
        assert job.leases.filter(state=Lease.State.ACTIVE).count() == (claimed_job is not None)
        transaction.set_rollback(True)


# --- real agents -----------------------------------------------------------------------------------------------------

EVERY = 10
PAUSE = 45
"""The step at which a job waits for `let_go`, so that no test interrupts it too late."""
STEPS = 80
TRAIN = """
import hashlib, json, os, signal, sys, time
from pathlib import Path

options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
config, out = json.loads(Path(options["--config"]).read_text()), Path(options["--out"])
stopping = []
signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
begun = max((int(folder.name[5:]) for folder in (out / "checkpoints").glob("step-*")), default=0)

def save(step):
    folder = out / "checkpoints" / f"step-{step:08d}"
    aside = folder.with_suffix(".partial")
    aside.mkdir(parents=True)
    (aside / "state.json").write_text(json.dumps({"step": step}))
    content = (aside / "state.json").read_bytes()
    files = [{"path": "state.json", "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}]
    (aside / "manifest.json").write_text(json.dumps({"step": step, "files": files}))
    aside.rename(folder)

(out / "run.json").write_text("{}")
for step in range(begun + 1, config["steps"] + 1):
    time.sleep(0.03)
    while step == config["pause"] and not Path(config["go"]).exists() and not stopping:
        time.sleep(0.01)
    with open(config["ledger"], "a") as ledger:
        ledger.write(f"{step} {os.getpid()}" + chr(10))
    with (out / "metrics.jsonl").open("a") as metrics:
        metrics.write(json.dumps({"kind": "train", "step": step, "loss": 1 / step}) + chr(10))
    if step % config["every"] == 0 or stopping:
        save(step)
    if stopping:
        raise SystemExit(130)
(out / "result.json").write_text(json.dumps({"steps": step}))
"""


def build_release() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, text in {
            "trainer/__init__.py": "",
            "trainer/train.py": TRAIN,
            "trainer/models/__init__.py": "",
        }.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


class AgentProcess:
    """A real agent process without a sandbox, whose cache has the dataset."""

    def __init__(self, site: str, folder: Path, lanes: int) -> None:
        manifest = folder / "datasets" / PIN.hash / "manifest.json"
        manifest.parent.mkdir(parents=True)
        manifest.write_text(json.dumps({"hash": PIN.hash}))
        self.name = folder.name
        self.output = folder.with_suffix(".stderr")
        arguments = ["--server", site, "--home", str(folder), "--name", self.name, "--sandbox", "none"]
        node = Node.objects.create(name=self.name, slots=lanes)  # as the form "Lend a GPU" does
        token = node_tokens.create_join_token(renews=node)
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "trainer.cli", "node", *arguments, "--token", token],
                stdout=output,
                stderr=output,
            )

    def send_signal_to_all(self, number: int) -> None:
        """Send a signal to the agent and all its child processes."""
        agent = psutil.Process(self.process.pid)
        for process in (*reversed(agent.children(recursive=True)), agent):
            process.send_signal(number)

    def close(self) -> None:
        if self.process.poll() is None:
            self.send_signal_to_all(signal.SIGCONT)
            self.send_signal_to_all(signal.SIGKILL)
        self.process.wait()


StartAgent = Callable[..., AgentProcess]


@pytest.fixture
def start_agent(
    site_url: str, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StartAgent]:
    """Agents send heartbeats as for short leases. Only `expire_node_lease` ends one, however busy the machine is."""
    settings.LEASE_SECONDS = 1.5
    monkeypatch.setattr(leases, "get_lease_duration", lambda: timedelta(hours=1))
    agents: list[AgentProcess] = []

    def start(name: str, lanes: int = 1) -> AgentProcess:
        agents.append(AgentProcess(site_url, tmp_path / name, lanes))
        return agents[-1]

    yield start
    for agent in agents:
        agent.close()


@pytest.fixture
def job(transactional_db: None, tmp_path: Path) -> Job:
    config = {
        "steps": STEPS,
        "every": EVERY,
        "pause": PAUSE,
        "ledger": str(tmp_path / "ledger"),
        "go": str(tmp_path / "go"),
    }
    return create_job(release=storage.store_bytes(build_release()), result=config, needs_sandbox=False)


def sweep_until(condition: Callable[[], Any]) -> None:
    """Wait for a condition, sweeping leases meanwhile as Celery beat does."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"the condition is not true after {WAIT_SECONDS} s"
        lease_sweeper.sweep_leases()
        time.sleep(0.05)


def count_steps(folder: Path) -> Counter[int]:
    text = (folder / "ledger").read_text() if (folder / "ledger").exists() else ""
    return Counter(int(line.split()[0]) for line in text.splitlines())


def is_done(job: Job) -> bool:
    job.refresh_from_db()
    return job.state == Job.State.DONE


def build_progress_check(job: Job, name: str, checkpoint: int) -> Callable[[], bool]:
    def check() -> bool:
        active_leases = job.leases.filter(node__name=name, state=Lease.State.ACTIVE)
        return active_leases.exists() and job.checkpoints.filter(step__gte=checkpoint).exists()

    return check


def let_go(folder: Path) -> None:
    (folder / "go").touch()


def expire_node_lease(job: Job, node_name: str) -> None:
    """End the node's lease as if the node had been silent for its length.

    It is expired until it has ended, because a heartbeat that the site is still answering renews it.
    """
    active = job.leases.filter(node__name=node_name, state=Lease.State.ACTIVE)

    def expire() -> bool:
        active.update(expires_at=timezone.now())
        return not active.exists()

    sweep_until(expire)


def check_work_was_kept(job: Job, folder: Path, stored: int) -> None:
    """`stored`: the step of a checkpoint that the site had before the interruption."""
    step_counts = count_steps(folder)
    assert set(step_counts) == set(range(1, STEPS + 1)), "every step was done"
    assert {step_counts[step] for step in range(1, stored + 1)} == {1}, "no stored step was repeated"
    job_leases = list(job.leases.order_by("started_at"))
    for earlier, later in pairwise(job_leases):
        assert earlier.ended_at is not None
        assert earlier.ended_at <= later.started_at, "one node at a time"
    lease_seconds = [(lease.ended_at - lease.started_at).total_seconds() for lease in job_leases if lease.ended_at]
    assert all(lease.seconds <= most + 0.1 for lease, most in zip(job_leases, lease_seconds, strict=True))


@pytest.mark.slow
@pytest.mark.services
def test_job_of_switched_off_node_resumes_elsewhere(start_agent: StartAgent, job: Job, tmp_path: Path) -> None:
    cellar = start_agent("cellar")
    sweep_until(build_progress_check(job, "cellar", 2 * EVERY))
    sweep_until(lambda: job.leases.get().seconds > 0)
    cellar.send_signal_to_all(signal.SIGKILL)
    expire_node_lease(job, "cellar")
    let_go(tmp_path)
    start_agent("lab")
    sweep_until(lambda: is_done(job))
    first, *others, last = job.leases.order_by("pk")
    assert (first.node.name, first.state) == ("cellar", Lease.State.LOST)
    assert (last.node.name, last.state) == ("lab", Lease.State.FINISHED)
    # On a busy machine the second node may lose a lease, too.
    assert all((lease.node.name, lease.state) == ("lab", Lease.State.LOST) for lease in others)
    assert first.seconds > 0
    assert sum(lease.seconds for lease in [*others, last]) > 0.5
    check_work_was_kept(job, tmp_path, stored=2 * EVERY)


@pytest.mark.slow
@pytest.mark.services
def test_suspended_node_returns_after_job_moved(start_agent: StartAgent, job: Job, tmp_path: Path) -> None:
    cellar = start_agent("cellar")
    sweep_until(build_progress_check(job, "cellar", EVERY))
    cellar.send_signal_to_all(signal.SIGSTOP)
    expire_node_lease(job, "cellar")
    start_agent("lab")
    sweep_until(build_progress_check(job, "lab", EVERY))
    cellar.send_signal_to_all(signal.SIGCONT)
    sweep_until(lambda: "the lease is lost" in cellar.output.read_text())
    let_go(tmp_path)
    sweep_until(lambda: is_done(job))
    sweep_until(lambda: not list((tmp_path / "cellar" / "work").iterdir()))
    *lost_leases, last_lease = job.leases.order_by("pk")
    assert lost_leases, "the suspended node lost its lease"
    assert all(lease.state == Lease.State.LOST for lease in lost_leases)
    assert last_lease.state == Lease.State.FINISHED
    step_counts = count_steps(tmp_path)
    assert set(step_counts) == set(range(1, STEPS + 1))
    cellar.process.send_signal(signal.SIGTERM)
    assert cellar.process.wait(WAIT_SECONDS) == 0, "the agent must exit cleanly after it was suspended"


@pytest.mark.slow
@pytest.mark.services
def test_job_moves_at_window_end_without_repeated_work(start_agent: StartAgent, job: Job, tmp_path: Path) -> None:
    cellar = start_agent("cellar")
    sweep_until(build_progress_check(job, "cellar", EVERY))
    cellar.process.send_signal(signal.SIGTERM)
    assert cellar.process.wait(WAIT_SECONDS) == 0
    let_go(tmp_path)
    start_agent("lab")
    sweep_until(lambda: is_done(job))
    assert max(count_steps(tmp_path).values()) == 1
    first, _ = job.leases.order_by("pk")
    assert (first.state, first.reason) == (Lease.State.RELEASED, "The sponsor needs the machine.")
    check_work_was_kept(job, tmp_path, stored=STEPS)


def test_node_with_two_slots_runs_two_jobs(start_agent: StartAgent, job: Job, tmp_path: Path) -> None:
    create_job(release=job.release, result=job.result, needs_sandbox=False)
    cellar = start_agent("cellar", lanes=2)
    active = Lease.objects.filter(state=Lease.State.ACTIVE, seconds__gt=0)
    sweep_until(lambda: active.count() == 2)
    assert sorted(active.values_list("slot", flat=True)) == [0, 1]
    cellar.process.send_signal(signal.SIGTERM)
    assert cellar.process.wait(WAIT_SECONDS) == 0
    assert list(Lease.objects.values_list("state", "reason").distinct()) == [
        (Lease.State.RELEASED, "The sponsor needs the machine.")
    ]


@pytest.mark.django_db
def test_stop_request_for_silent_node_cancels_at_lease_end() -> None:
    job = create_job()
    claimed_job = create_gpu_agent("cellar", RTX).claim_job()
    transitions.cancel_job(job, "ada", "not needed")
    expire_lease(claimed_job)
    job.refresh_from_db()
    assert job.state == Job.State.CANCELLED
