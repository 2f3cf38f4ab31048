"""A job goes from node to node as their machines come and go: no second is charged twice, little is done twice."""

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

from scheduler import lease_sweeper, node_tokens, storage, transitions
from scheduler.models import Job, Lease, Node
from scheduler.sponsors import contributions
from tests.support.pool import HARDWARE, Agent, Work, make_job, make_node
from tests.support.recording_handler import PIN
from trainer import protocol

H100, RTX = "NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 3090"


def gpu_node(name: str, *gpus: str) -> Agent:
    hardware = {"gpus": gpus, "gpu_details": tuple(protocol.Gpu(name=gpu) for gpu in gpus)}
    agent = Agent(make_node(name, hardware=hardware)[1])
    agent.hardware = HARDWARE.model_copy(update=hardware)
    return agent


def began(work: Work, seconds_ago: float) -> None:
    """Its lease is that old; the site's clock bounds what a node may say it worked."""
    Lease.objects.filter(pk=work.lease.lease).update(started_at=timezone.now() - timedelta(seconds=seconds_ago))


def fall_silent(work: Work) -> None:
    Lease.objects.filter(pk=work.lease.lease).update(expires_at=F("expires_at") - timedelta(hours=1))
    lease_sweeper.sweep_leases()


# --- GPU-seconds and credit ------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_gpu_seconds_of_two_nodes_add_up() -> None:
    job = make_job()
    cellar, lab = gpu_node("cellar", RTX, RTX), gpu_node("lab", H100)
    first = cellar.work()
    began(first, 5000)
    first.heartbeat(900)
    first.checkpoint(10)
    first.heartbeat(1000)
    fall_silent(first)  # the lid was closed
    second = lab.work()
    assert isinstance(second.spec.order, protocol.TrainOrder)
    assert second.spec.order.resume is not None
    assert second.spec.order.resume.step == 10
    began(second, 3600)
    second.heartbeat(100)
    assert first.heartbeat(4000).status_code == 409, "what the lid's machine says when it is opened again"
    assert first.finish(seconds=4000.0).status_code == 409
    assert second.finish(seconds=1234.5).status_code == 200

    assert job.leases.aggregate(total=Sum("seconds"))["total"] == 1000 + 1234.5
    given = contributions.sum_leases_by_node(Lease.objects.filter(job=job))
    by_name = {Node.objects.get(pk=pk).name: share for pk, share in given.items()}
    assert (by_name["cellar"].gpu_seconds, by_name["lab"].gpu_seconds) == (2 * 1000, 1234.5)
    assert by_name["cellar"].credit_hours == pytest.approx(2000 / 3600 * 71 / 989)
    assert by_name["lab"].credit_hours == pytest.approx(1234.5 / 3600)
    assert contributions.add_totals(given.values()).gpu_seconds == 3234.5


@pytest.mark.django_db
def test_final_seconds_are_exact_and_final() -> None:
    make_job()
    work = gpu_node("cellar", RTX).work()
    began(work, 600)
    work.heartbeat(300)
    work.finish("released", seconds=311.25)
    work.finish("released", seconds=599.0)
    assert work.row.seconds == 311.25


@pytest.mark.django_db
def test_finish_without_seconds_keeps_last_heartbeat() -> None:
    make_job()
    work = gpu_node("cellar", RTX).work()
    began(work, 600)
    work.heartbeat(300)
    work.finish()
    assert work.row.seconds == 300


Word = st.tuples(st.sampled_from(["beat", "late", "silent", "released", "checkpoint"]), st.floats(0, 10_000))


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(words=st.lists(Word, max_size=14))
def test_seconds_are_never_charged_twice(db: None, words: list[tuple[str, float]]) -> None:
    """However nodes come and go: a job's seconds are the last words that the site took, each under one lease."""
    with transaction.atomic():
        job = make_job(max_attempts=1000)
        agents = [Agent(make_node(f"node-{number}")[1]) for number in range(2)]
        taken: dict[int, float] = {}
        over: list[Work] = []
        work: Work | None = None
        for turn, (word, seconds) in enumerate(words):
            if work is None:
                work = agents[turn % 2].work()
                began(work, 20_000)
                taken[work.lease.lease] = 0.0
            if word == "beat":
                work.heartbeat(seconds)
                taken[work.lease.lease] = max(taken[work.lease.lease], seconds)
            elif word == "late":
                assert all(one.heartbeat(20_000).status_code == 409 for one in over)
            elif word == "checkpoint":
                work.checkpoint(turn, f"weights {turn}".encode())
            elif word == "released":
                work.finish("released", seconds=seconds)
                taken[work.lease.lease] = max(taken[work.lease.lease], seconds)
            else:
                fall_silent(work)
            if word in ("released", "silent"):
                over.append(work)
                work = None
        charged = job.leases.aggregate(total=Sum("seconds"))["total"] or 0.0
        assert charged == pytest.approx(sum(taken.values()))
        assert job.leases.filter(state=Lease.State.ACTIVE).count() == (work is not None)
        transaction.set_rollback(True)


# --- real agents -----------------------------------------------------------------------------------------------------

EVERY = 10
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


def release() -> bytes:
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


class Machine:
    """A real agent process of its own, without a sandbox; the dataset is there."""

    def __init__(self, site: str, folder: Path, lanes: int) -> None:
        manifest = folder / "datasets" / PIN.hash / "manifest.json"
        manifest.parent.mkdir(parents=True)
        manifest.write_text(json.dumps({"hash": PIN.hash}))
        self.name = folder.name
        self.output = folder.with_suffix(".stderr")
        words = ["--server", site, "--home", str(folder), "--name", self.name, "--sandbox", "none"]
        node = Node.objects.create(name=self.name, slots=lanes)  # as the form "Lend a GPU" does
        token = node_tokens.create_join_token(renews=node)
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "trainer.cli", "node", *words, "--token", token], stdout=output, stderr=output
            )

    def everything(self, number: int) -> None:
        """Send a signal to the agent and to all that it has started."""
        agent = psutil.Process(self.process.pid)
        for process in (*reversed(agent.children(recursive=True)), agent):
            process.send_signal(number)

    def close(self) -> None:
        if self.process.poll() is None:
            self.everything(signal.SIGCONT)
            self.everything(signal.SIGKILL)
        self.process.wait()


Start = Callable[..., Machine]


@pytest.fixture
def machine(site_url: str, tmp_path: Path, settings: Settings) -> Iterator[Start]:
    settings.LEASE_SECONDS = 1.5
    made: list[Machine] = []

    def start(name: str, lanes: int = 1) -> Machine:
        made.append(Machine(site_url, tmp_path / name, lanes))
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.fixture
def job(transactional_db: None, tmp_path: Path) -> Job:
    config = {"steps": STEPS, "every": EVERY, "ledger": str(tmp_path / "ledger")}
    return make_job(release=storage.store_bytes(release()), result=config, needs_sandbox=False)


def until(condition: Callable[[], Any], seconds: float = 30) -> None:
    """Wait, and sweep meanwhile, as Celery's beat does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        lease_sweeper.sweep_leases()
        time.sleep(0.05)


def steps_done(folder: Path) -> Counter[int]:
    text = (folder / "ledger").read_text() if (folder / "ledger").exists() else ""
    return Counter(int(line.split()[0]) for line in text.splitlines())


def is_done(job: Job) -> bool:
    job.refresh_from_db()
    return job.state == Job.State.DONE


def under_way(job: Job, name: str, checkpoint: int) -> Callable[[], bool]:
    def look() -> bool:
        mine = job.leases.filter(node__name=name, state=Lease.State.ACTIVE)
        return mine.exists() and job.checkpoints.filter(step__gte=checkpoint).exists()

    return look


def check_nothing_was_lost(job: Job, folder: Path, stored: int) -> None:
    """`stored`: the step of a checkpoint that the site had before the interruption."""
    done = steps_done(folder)
    assert set(done) == set(range(1, STEPS + 1)), "every step was done"
    assert {done[step] for step in range(1, stored + 1)} == {1}, "and none twice that was stored"
    leases = list(job.leases.order_by("started_at"))
    for before, after in pairwise(leases):
        assert before.ended_at is not None
        assert before.ended_at <= after.started_at, "one node at a time"
    wall = [(lease.ended_at - lease.started_at).total_seconds() for lease in leases if lease.ended_at]
    assert all(lease.seconds <= most + 0.1 for lease, most in zip(leases, wall, strict=True))


@pytest.mark.slow
def test_job_of_switched_off_node_resumes_elsewhere(machine: Start, job: Job, tmp_path: Path) -> None:
    cellar = machine("cellar")
    until(under_way(job, "cellar", 2 * EVERY))
    cellar.everything(signal.SIGKILL)
    machine("lab")
    until(lambda: is_done(job))
    first, second = job.leases.order_by("pk")
    assert (first.state, second.state) == (Lease.State.LOST, Lease.State.FINISHED)
    assert {first.node.name, second.node.name} == {"cellar", "lab"}
    assert first.seconds > 0
    assert second.seconds > 0.5
    check_nothing_was_lost(job, tmp_path, stored=2 * EVERY)


@pytest.mark.slow
def test_suspended_node_returns_after_job_moved(machine: Start, job: Job, tmp_path: Path) -> None:
    cellar = machine("cellar")
    until(under_way(job, "cellar", EVERY))
    cellar.everything(signal.SIGSTOP)
    machine("lab")
    until(under_way(job, "lab", 0))
    cellar.everything(signal.SIGCONT)
    until(lambda: is_done(job))
    until(lambda: "the lease is lost" in cellar.output.read_text())
    until(lambda: not list((tmp_path / "cellar" / "work").iterdir()))
    assert [lease.state for lease in job.leases.order_by("pk")] == [Lease.State.LOST, Lease.State.FINISHED]
    done = steps_done(tmp_path)
    assert set(done) == set(range(1, STEPS + 1))
    cellar.process.send_signal(signal.SIGTERM)
    assert cellar.process.wait(20) == 0, "it went on, and leaves as ever"


@pytest.mark.slow
def test_job_moves_at_window_end_without_repeated_work(machine: Start, job: Job, tmp_path: Path) -> None:
    cellar = machine("cellar")
    until(under_way(job, "cellar", EVERY))
    cellar.process.send_signal(signal.SIGTERM)
    assert cellar.process.wait(20) == 0
    machine("lab")
    until(lambda: is_done(job))
    assert max(steps_done(tmp_path).values()) == 1
    first, _ = job.leases.order_by("pk")
    assert (first.state, first.reason) == (Lease.State.RELEASED, "The sponsor needs the machine.")
    check_nothing_was_lost(job, tmp_path, stored=STEPS)


def test_node_with_two_slots_runs_two_jobs(machine: Start, job: Job, tmp_path: Path) -> None:
    make_job(release=job.release, result=job.result, needs_sandbox=False)
    cellar = machine("cellar", lanes=2)
    active = Lease.objects.filter(state=Lease.State.ACTIVE, seconds__gt=0)
    until(lambda: active.count() == 2)
    assert sorted(active.values_list("slot", flat=True)) == [0, 1]
    cellar.process.send_signal(signal.SIGTERM)
    assert cellar.process.wait(20) == 0
    assert list(Lease.objects.values_list("state", "reason").distinct()) == [
        (Lease.State.RELEASED, "The sponsor needs the machine.")
    ]


@pytest.mark.django_db
def test_stop_request_for_silent_node_cancels_at_lease_end() -> None:
    job = make_job()
    work = gpu_node("cellar", RTX).work()
    transitions.cancel_job(job, "ada", "not needed")
    fall_silent(work)
    job.refresh_from_db()
    assert job.state == Job.State.CANCELLED
