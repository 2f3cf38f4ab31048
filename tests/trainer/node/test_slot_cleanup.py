"""Nothing remains of a job when the next one starts; a slot with leftovers reports them and takes no job."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agent_process import build_training_job, run_job, wait_until_finished
from tests.support.fake_gpus import GIB, Card, Nvml, pair
from tests.support.in_process_agent import InProcessAgent
from tests.support.node_api_server import NodeApiServer
from tests.support.waits import WAIT_SECONDS, wait_until
from trainer import protocol
from trainer.node import gpu_monitor, slot_cleanup
from trainer.node.gpu_monitor import GpuMonitor
from trainer.node.gpus import NvmlReader, UnreadableGpuReader
from trainer.node.slot_cleanup import SlotCleanup, find_marked_processes
from trainer.node.slots import split_into_slots
from trainer.node.workspace import remove_folder

pytestmark = pytest.mark.processes

RUNAWAY = "import subprocess; subprocess.run(['sh', '-c', 'setsid sleep 300 >/dev/null 2>&1 &'])"
"""A process that has left its group and its parents."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_monitor, "CACHE_SECONDS", -1)
    monkeypatch.setattr(slot_cleanup, "CLEANUP_SECONDS", 1.0)
    monkeypatch.setattr(slot_cleanup, "CHECK_SECONDS", 0.02)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


# --- processes and files ---------------------------------------------------------------------------------------------


def test_cleanup_and_start_kill_processes_that_earlier_jobs_left(site: NodeApiServer, tmp_path: Path) -> None:
    home = tmp_path / "agent"
    stray = subprocess.Popen(["sleep", "300"], env={slot_cleanup.MARK_VARIABLE: f"{home}:41:"})
    other = subprocess.Popen(["sleep", "300"], env={slot_cleanup.MARK_VARIABLE: f"{home}-of-another-else:41:"})
    agent = InProcessAgent(site, home)
    try:
        wait_until(lambda: find_marked_processes(f"{home}:41:") == [stray.pid])
        assert find_marked_processes(f"{home}:4:") == []
        lease = site.queue_job(build_training_job(site, steps=100_000, every=100_000, misbehave=RUNAWAY))
        agent.start()
        assert stray.wait(WAIT_SECONDS) == -9, "of an agent that was killed"
        assert other.poll() is None
        wait_until(lambda: lease in site.leases and site.leases[lease].rows)
        assert len(find_marked_processes(f"{home}:{lease}:")) >= 2, "the job and its runaway"
        site.leases[lease].stop = protocol.HeartbeatReply(stop="cancel")
        run_job(site, build_training_job(site, steps=10))
        assert find_marked_processes(f"{home}:") == []
    finally:
        agent.stop()
        for process in (stray, other):
            process.kill()
            process.wait()


def test_cleanup_with_an_unremovable_folder_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "work" / "5"
    folder.mkdir(parents=True)
    cleanup = SlotCleanup(tmp_path, split_into_slots((), (), 1)[0], GpuMonitor(UnreadableGpuReader()))
    cleanup.set_lease(5)
    assert cleanup.clean_up_slot(lambda: False) == ""
    assert folder.is_dir(), "an empty folder tells the next agent of an unreported lease"
    (folder / "left").touch()

    def refuse(path: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as refused:
        refused.setattr(slot_cleanup, "remove_folder", refuse)
        problem = "The last job's folder cannot be removed: Operation not permitted."
        assert cleanup.clean_up_slot(lambda: False) == problem
    assert cleanup.clean_up_once() == ""
    assert not folder.exists()


# --- the memory of GPUs ----------------------------------------------------------------------------------------------


@pytest.fixture
def cards() -> list[Card]:
    return pair()


@pytest.fixture
def cleanups(tmp_path: Path, cards: list[Card]) -> list[SlotCleanup]:
    """Two slots with a GPU each, after a job."""
    monitor = GpuMonitor(NvmlReader(Nvml(cards)))
    cleanups = [SlotCleanup(tmp_path, slot, monitor) for slot in split_into_slots(monitor.reader.gpus, (0, 1), 2)]
    for cleanup in cleanups:
        cleanup.set_lease(1)
    return cleanups


def test_cleanup_reports_a_gpu_that_is_in_use_or_lost(cards: list[Card], cleanups: list[SlotCleanup]) -> None:
    cards[0].used, cards[0].pids = 5 * GIB, [4711]
    assert cleanups[0].clean_up_once() == (
        "NVIDIA GeForce RTX 3090 still holds 5.1 GB (process 4711): no job is taken until that is free."
    )
    assert cleanups[1].clean_up_once() == "", "the other slot's GPU is empty"
    cards[0].used, cards[0].pids = 300 << 20, []
    assert cleanups[0].clean_up_once() == ""
    cards[0].pids = [99]
    assert "is in use by process 99" in cleanups[0].clean_up_once()
    cards[0].error = 15
    assert cleanups[0].clean_up_once() == "NVIDIA GeForce RTX 3090 does not answer (GPU is lost)."
    assert cleanups[1].clean_up_once() == ""


def test_cleanup_ignores_gpu_memory_used_before_the_job(cards: list[Card], tmp_path: Path) -> None:
    cards[0].used, cards[0].pids = 2 * GIB, [7]  # the sponsor's own desktop
    monitor = GpuMonitor(NvmlReader(Nvml(cards)))
    cleanup = SlotCleanup(tmp_path, split_into_slots(monitor.reader.gpus, (0,), 1)[0], monitor)
    cleanup.set_lease(1)
    assert cleanup.clean_up_once() == ""
    cards[0].used += 100 << 20
    assert cleanup.clean_up_once() == "", "memory of the desktop varies"


def test_cleanup_waits_for_the_driver_to_free_memory(
    cards: list[Card], cleanups: list[SlotCleanup], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_cleanup, "CLEANUP_SECONDS", WAIT_SECONDS)
    cards[0].used = 5 * GIB
    checks = 0

    def count_check() -> bool:
        nonlocal checks
        checks += 1
        if checks == 3:
            cards[0].used = 0
        return False

    assert cleanups[0].clean_up_slot(count_check) == ""
    assert checks == 3


@pytest.fixture
def agent(site: NodeApiServer, tmp_path: Path, cards: list[Card]) -> Iterator[InProcessAgent]:
    agent = InProcessAgent(site, tmp_path / "agent", reader=NvmlReader(Nvml(cards)))
    yield agent
    agent.stop()


@pytest.mark.slow
def test_node_with_held_gpu_memory_takes_no_job_until_freed(
    site: NodeApiServer, agent: InProcessAgent, cards: list[Card], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "trainer.node")
    first = site.queue_job(build_training_job(site, steps=100_000, every=100_000))
    agent.start()
    wait_until(lambda: first in site.leases and site.leases[first].rows)
    cards[1].used = 9 * GIB
    second = site.queue_job(build_training_job(site, steps=5))
    site.leases[first].stop = protocol.HeartbeatReply(stop="cancel")
    wait_until_finished(site, first)
    wait_until(lambda: any(poll.health and poll.health.trouble for poll in site.polls))
    assert second not in site.leases
    trouble = next(poll.health.trouble for poll in site.polls if poll.health and poll.health.trouble)
    assert "still holds 9.3 GB" in trouble
    cards[1].used = 0
    assert wait_until_finished(site, second).finish is not None
    assert caplog.text.count("still holds") == 1
    assert "The slot is clean again." in caplog.text


def test_remove_folder_ignores_permissions_and_links(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "out" / "closed" / "deep").mkdir(parents=True)
    (tmp_path / "out" / "closed" / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "out" / "closed").chmod(0)
    remove_folder(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "kept").is_dir()
