"""Several jobs at a time on one machine, each in a slot with its own GPUs; nothing of them remains for the next."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.agent_process import build_training_job, list_running_processes, run_job, wait_until_finished
from tests.support.fake_gpus import GIB, Card, Nvml, pair
from tests.support.in_process_agent import InProcessAgent
from tests.support.node_api_server import LeaseRecord, NodeApiServer
from tests.support.waits import WAIT_SECONDS, wait_until
from trainer import protocol
from trainer.accounting.cores import WAIT_VARIABLES
from trainer.node import gpu_monitor, slot_cleanup
from trainer.node.datasets import count_compile_workers
from trainer.node.gpu_monitor import GpuMonitor
from trainer.node.gpus import NvmlReader
from trainer.node.hardware import list_processors
from trainer.node.job_handlers.train import choose_devices
from trainer.node.outcome import JobFailedError
from trainer.node.slot_cleanup import SlotCleanup, find_marked_processes
from trainer.node.slots import split_into_slots
from trainer.protocol import Gpu
from trainer.sandbox import ResourceLimits, SandboxSpec, bubblewrap, gpu_devices

pytestmark = pytest.mark.processes

SHARE = "print(json.dumps({'gpus': os.environ.get('CUDA_VISIBLE_DEVICES'), 'cores': sorted(os.sched_getaffinity(0))}))"


@pytest.fixture(autouse=True)
def _quick_cleanup_of_all_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", *WAIT_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(gpu_monitor, "CACHE_SECONDS", -1)
    monkeypatch.setattr(slot_cleanup, "CLEANUP_SECONDS", 1.0)
    monkeypatch.setattr(slot_cleanup, "CHECK_SECONDS", 0.02)


def build_gpus(count: int) -> list[Gpu]:
    return [Gpu(name="NVIDIA GeForce RTX 3090", uuid=f"GPU-{number}") for number in range(count)]


# --- slots ----------------------------------------------------------------------------------------------------------


@given(st.integers(0, 16), st.integers(1, 64), st.integers(1, 20))
def test_split_gives_each_gpu_to_one_slot_and_each_slot_a_core(gpus: int, cores: int, count: int) -> None:
    slots = split_into_slots(build_gpus(gpus), range(cores), count)
    assert [gpu.uuid for slot in slots for gpu in slot.gpus] == [f"GPU-{number}" for number in range(gpus)]
    sizes = [len(slot.gpus) for slot in slots]
    assert max(sizes) - min(sizes) <= 1
    if count == 1:
        return
    assert all(slot.processors for slot in slots)
    if count <= cores:
        assert sorted(core for slot in slots for core in slot.processors) == list(range(cores))


def test_environment_of_a_single_slot_binds_nothing_and_keeps_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    (slot,) = split_into_slots(build_gpus(2), range(8), 1)
    assert slot.build_environment() == {"OMP_NUM_THREADS": "3", "GOMP_SPINCOUNT": "1000"}
    assert (len(slot.gpus), slot.processors) == (2, ())
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert slot.build_environment() == {"OMP_NUM_THREADS": "3", "OMP_WAIT_POLICY": "active"}
    for usable in (0, 1):
        (slot,) = split_into_slots(build_gpus(usable), range(8), 1, has_unusable_gpus=True)
        assert slot.build_environment()["CUDA_VISIBLE_DEVICES"] == ",".join(["GPU-0"][:usable])


def test_slot_environment_lists_gpus_by_uuid() -> None:
    first, second, third = split_into_slots(build_gpus(2), range(6), 3)
    assert second.build_environment() == {
        "CUDA_VISIBLE_DEVICES": "GPU-1",
        "NVIDIA_VISIBLE_DEVICES": "GPU-1",
        "OMP_NUM_THREADS": "2",
        "GOMP_SPINCOUNT": "1000",
    }
    assert third.build_environment()["CUDA_VISIBLE_DEVICES"] == "", "two GPUs for three slots"
    assert str(first) == "Slot 1 of 3"
    (large,) = split_into_slots(build_gpus(8), range(8), 1)
    assert large.limit_gpus(1).build_environment()["CUDA_VISIBLE_DEVICES"] == "GPU-0"
    assert large.limit_gpus(8) is large


@pytest.mark.parametrize(
    ("config", "gpus", "chosen"),
    [
        ({}, 0, {"devices": 1}),
        ({"device": "cpu"}, 4, {"devices": 1}),
        ({}, 8, {"device": "cuda", "devices": 1}),
        ({"devices": 2}, 4, {"device": "cuda", "devices": 2}),
    ],
)
def test_choose_devices_takes_as_many_gpus_as_requested(
    config: dict[str, object], gpus: int, chosen: dict[str, object]
) -> None:
    assert choose_devices(config, gpus) == chosen


@pytest.mark.parametrize(
    ("config", "reason", "fault"),
    [
        ({"devices": 4}, "needs 4 GPUs, and this node has 2 for it", "machine"),
        ({"devices": "all"}, "configuration is invalid", "order"),
        ({"devices": 0}, "configuration is invalid", "order"),
    ],
)
def test_choose_devices_blames_the_order_only_if_it_is_invalid(
    config: dict[str, object], reason: str, fault: str
) -> None:
    with pytest.raises(JobFailedError, match=reason) as failed:
        choose_devices(config, 2)
    assert failed.value.fault == fault


@pytest.mark.parametrize("gpus", [1, 8])
@pytest.mark.parametrize("cores", [1, 16, 256])
def test_compile_workers_fit_the_process_limit_of_tracks(gpus: int, cores: int) -> None:
    from leaderboard.models.tracks import PROCESSES

    workers = count_compile_workers(PROCESSES, gpus, cores)
    assert 1 <= workers <= max(1, cores // gpus)
    in_sandbox = 3  # two of the sandbox, and the process that starts one for each GPU
    each = 2 + 3 * workers  # training, the parent of the workers; a worker, its compiler and that one's assembler
    assert in_sandbox + gpus * each <= PROCESSES
    assert count_compile_workers(128, 1, 16) == 16, "of one GPU they use the cores"


# --- GPUs in a sandbox -----------------------------------------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Two GPUs whose numbers under /dev are in reverse order of the driver's list."""
    dev, driver = tmp_path / "dev", tmp_path / "driver"
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "dri/renderD128"):
        (dev / name).parent.mkdir(parents=True, exist_ok=True)
        (dev / name).touch()
    for number, minor in ((0, 1), (1, 0)):
        folder = driver / f"0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t X\nGPU UUID: \t GPU-{number}\nDevice Minor: \t {minor}\n")
    monkeypatch.setattr(gpu_devices, "DEV", dev)
    monkeypatch.setattr(gpu_devices, "DRIVER", driver)
    return dev


def build_spec(visible: str | None) -> SandboxSpec:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return SandboxSpec(["x"], environment, [], Path("/"), ResourceLimits(1, 1 << 30, 1 << 30, 8))


def list_devices(machine: Path, visible: str | None) -> list[str]:
    found = gpu_devices.list_gpu_devices(build_spec(visible).environment)
    return [str(Path(path).relative_to(machine)) for path in found]


COMMON = ["nvidia-uvm", "nvidiactl"]
EVERYTHING = ["dri/renderD128", "nvidia-uvm", "nvidia0", "nvidia1", "nvidiactl"]


def test_sandbox_shows_only_the_slots_gpu_files(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list_devices(machine, "GPU-0") == ["nvidia-uvm", "nvidia1", "nvidiactl"]
    assert list_devices(machine, "GPU-1,GPU-0") == ["nvidia-uvm", "nvidia0", "nvidia1", "nvidiactl"]
    assert list_devices(machine, "") == COMMON
    assert list_devices(machine, None) == EVERYTHING
    assert list_devices(machine, "0") == EVERYTHING, "programs may number GPUs differently"
    words = bubblewrap.build_bwrap_arguments(build_spec("GPU-0"), None)
    assert str(machine / "nvidia1") in words
    assert str(machine / "nvidia0") not in words
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1")
    assert list_devices(machine, None) == ["nvidia-uvm", "nvidia0", "nvidiactl"], "as the agent itself"


# --- a real agent ----------------------------------------------------------------------------------------------------


def wait_until_running(site: NodeApiServer, leases: list[int]) -> None:
    wait_until(lambda: all(lease in site.leases and site.leases[lease].rows for lease in leases))
    assert all(site.leases[lease].finish is None for lease in leases)


def read_share(held: LeaseRecord) -> dict[str, Any]:
    """Return what the job's process has printed about its share of the machine."""
    return json.loads(held.log.splitlines()[1])  # type: ignore[no-any-return]


def test_two_slots_run_two_jobs_on_separate_cores_until_a_stop(site: NodeApiServer, tmp_path: Path) -> None:
    agent = InProcessAgent(site, tmp_path / "two", lanes=2)
    leases = [site.queue_job(build_training_job(site, steps=100_000, every=100_000, misbehave=SHARE)) for _ in range(2)]
    agent.start()
    wait_until_running(site, leases)
    assert {poll.lane for poll in site.polls} == {0, 1}
    assert {(poll.lanes, poll.lanes_wished) for poll in site.polls} == {(2, 2)}
    wait_until(lambda: all(len(site.leases[lease].log.splitlines()) > 1 for lease in leases))
    cores = [set(read_share(site.leases[lease])["cores"]) for lease in leases]
    if len(list_processors()) > 1:
        assert cores[0] | cores[1] == set(list_processors())
        assert not cores[0] & cores[1]
    agent.stop()
    for lease in leases:
        held = site.leases[lease]
        assert held.end.outcome == "released"
        assert len(held.checkpoints) == 1, "one signal stops all slots, each with its checkpoint"
    assert list_running_processes(agent.home) == []
    assert list((agent.home / "work").iterdir()) == []


def test_slot_count_from_the_site_changes_when_running_jobs_have_ended(
    site: NodeApiServer, agent: InProcessAgent
) -> None:
    site.lanes = 2
    leases = [site.queue_job(build_training_job(site, steps=100_000, every=100_000, misbehave=SHARE)) for _ in range(2)]
    agent.start()
    wait_until_running(site, leases)
    wait_until(lambda: all(len(site.leases[lease].log.splitlines()) > 1 for lease in leases))
    assert {read_share(site.leases[lease])["gpus"] for lease in leases} == {card.uuid for card in pair()}
    assert site.polls[0].lanes == 1, "the node starts with one slot and gets no job before it has two"

    site.lanes = 1
    site.leases[leases[0]].stop = protocol.HeartbeatReply(stop="cancel")
    wait_until(lambda: agent.agent.next_slot_count == 1)
    last = site.queue_job(build_training_job(site, steps=10, misbehave=SHARE))
    assert site.leases[leases[1]].finish is None
    site.leases[leases[1]].stop = protocol.HeartbeatReply(stop="cancel")
    share = read_share(wait_until_finished(site, last))
    assert share["gpus"] == pair()[0].uuid, "the slot has both GPUs, of which a job for one GPU sees one"


# --- cleanup between two jobs -----------------------------------------------------------------------------------------

RUNAWAY = "import subprocess; subprocess.run(['sh', '-c', 'setsid sleep 300 >/dev/null 2>&1 &'])"
"""A process that has left its group and its parents."""


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


@pytest.fixture
def agent(site: NodeApiServer, tmp_path: Path, cards: list[Card]) -> Iterator[InProcessAgent]:
    agent = InProcessAgent(site, tmp_path / "agent", reader=NvmlReader(Nvml(cards)))
    yield agent
    agent.stop()
