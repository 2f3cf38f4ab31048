"""Interrupted jobs of real agents move between nodes, and no work is repeated."""

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
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.utils import timezone
from pytest_django import Settings

from scheduler import lease_sweeper, leases, node_tokens, storage
from scheduler.models import Job, Lease, Node
from tests.support.pool import create_job
from tests.support.recording_handler import PIN
from tests.support.waits import WAIT_SECONDS

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.services]

EVERY = 10
PAUSE = 45
"""The step at which a job waits for the file `go`, so that no test interrupts it too late."""
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

    def __init__(self, site: str, folder: Path) -> None:
        manifest = folder / "datasets" / PIN.hash / "manifest.json"
        manifest.parent.mkdir(parents=True)
        manifest.write_text(json.dumps({"hash": PIN.hash}))
        self.name = folder.name
        self.output = folder.with_suffix(".stderr")
        arguments = ["--server", site, "--home", str(folder), "--name", self.name, "--sandbox", "none"]
        node = Node.objects.create(name=self.name)  # as the form "Lend a GPU" does
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


StartAgent = Callable[[str], AgentProcess]


@pytest.fixture
def start_agent(
    site_url: str, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StartAgent]:
    """Agents send heartbeats as for short leases. Only `expire_node_lease` ends one, however busy the machine is."""
    settings.LEASE_SECONDS = 1.5
    monkeypatch.setattr(leases, "get_lease_duration", lambda: timedelta(hours=1))
    agents: list[AgentProcess] = []

    def start(name: str) -> AgentProcess:
        agents.append(AgentProcess(site_url, tmp_path / name))
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


def wait_for_checkpoint(job: Job, name: str) -> None:
    """Wait until the node works on the job and the site has a checkpoint."""
    active = job.leases.filter(node__name=name, state=Lease.State.ACTIVE)
    sweep_until(lambda: active.exists() and job.checkpoints.exists())


def finish_job(job: Job, folder: Path) -> list[Lease]:
    """Let the nodes train to the end; return the job's leases."""
    (folder / "go").touch()
    sweep_until(lambda: Job.objects.get(pk=job.pk).state == Job.State.DONE)
    assert set(count_steps(folder)) == set(range(1, STEPS + 1)), "every step was done"
    return list(job.leases.order_by("pk"))


def count_steps(folder: Path) -> Counter[int]:
    return Counter(int(line.split()[0]) for line in (folder / "ledger").read_text().splitlines())


def expire_node_lease(job: Job, node_name: str) -> None:
    """End the node's lease as if the node had been silent for its length.

    It is expired until it has ended, because a heartbeat that the site is still answering renews it.
    """
    active = job.leases.filter(node__name=node_name, state=Lease.State.ACTIVE)

    def expire() -> bool:
        active.update(expires_at=timezone.now())
        return not active.exists()

    sweep_until(expire)


def test_suspended_node_returns_after_job_moved(start_agent: StartAgent, job: Job, tmp_path: Path) -> None:
    cellar = start_agent("cellar")
    wait_for_checkpoint(job, "cellar")
    cellar.send_signal_to_all(signal.SIGSTOP)
    expire_node_lease(job, "cellar")
    start_agent("lab")
    wait_for_checkpoint(job, "lab")
    cellar.send_signal_to_all(signal.SIGCONT)
    sweep_until(lambda: "the lease is lost" in cellar.output.read_text())
    *lost_leases, last_lease = finish_job(job, tmp_path)
    sweep_until(lambda: not list((tmp_path / "cellar" / "work").iterdir()))
    assert lost_leases, "the suspended node lost its lease"
    assert all(lease.state == Lease.State.LOST for lease in lost_leases)
    assert last_lease.state == Lease.State.FINISHED
    cellar.process.send_signal(signal.SIGTERM)
    assert cellar.process.wait(WAIT_SECONDS) == 0, "the agent must exit cleanly after it was suspended"


def test_job_moves_at_window_end_without_repeated_work(start_agent: StartAgent, job: Job, tmp_path: Path) -> None:
    cellar = start_agent("cellar")
    wait_for_checkpoint(job, "cellar")
    cellar.process.send_signal(signal.SIGTERM)
    assert cellar.process.wait(WAIT_SECONDS) == 0
    start_agent("lab")
    first, last = finish_job(job, tmp_path)
    assert max(count_steps(tmp_path).values()) == 1
    assert (first.state, first.reason) == (Lease.State.RELEASED, "The sponsor needs the machine.")
    for lease in (first, last):
        assert lease.ended_at is not None
        assert 0 < lease.seconds <= (lease.ended_at - lease.started_at).total_seconds() + 0.1
    assert first.ended_at <= last.started_at, "one node at a time"  # type: ignore[operator]
