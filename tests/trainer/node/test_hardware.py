"""Detection of a node's hardware: GPUs by NVML, labels, health and network speed."""

from __future__ import annotations

from pathlib import Path

import psutil
import pynvml
import pytest

from tests.support.agent_process import build_training_job, run_job
from tests.support.fake_gpus import GIB, Card, Nvml, pair
from tests.support.in_process_agent import InProcessAgent
from tests.support.node_api_server import NodeApiServer
from trainer.node import gpu_monitor, gpus
from trainer.node.gpu_monitor import GpuMonitor
from trainer.node.gpus import GpuReader, NvmlReader, UnreadableGpuReader, open_gpu_reader, select_visible_gpus
from trainer.node.hardware import derive_labels, describe_gpus, detect_hardware
from trainer.protocol import Gpu
from trainer.sandbox import gpu_devices

pytestmark = pytest.mark.processes

HEAT, POWER_CAP = 0x40, 0x4


@pytest.fixture
def driver_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without a GPU; a test may add files to the folder."""
    monkeypatch.setattr(gpu_devices, "DRIVER", tmp_path / "driver")
    monkeypatch.setattr(gpus, "CONTROL", tmp_path / "nvidiactl")
    monkeypatch.setattr(gpus, "PCI_DEVICES", tmp_path / "pci")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> tuple[GpuReader, list[Card]]:
    """Two 3090s."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    cards = pair()
    return NvmlReader(Nvml(cards)), cards


# --- GPUs ------------------------------------------------------------------------------------------------------------


def test_read_gpus_returns_current_values(two: tuple[GpuReader, list[Card]]) -> None:
    reader, (first, second) = two
    first.temperature, first.reasons = None, POWER_CAP
    second.used, second.temperature, second.busy, second.pids = 5 * GIB, 88, 97, [4711]
    second.reasons = HEAT | POWER_CAP
    one, other = reader.read_gpus()
    assert (one.used_bytes, one.temperature_celsius, one.throttled) == (300 << 20, None, False)
    assert (other.used_bytes, other.temperature_celsius, other.busy_percent) == (5 * GIB, 88, 97)
    assert (other.throttled, other.processes) == (True, frozenset({4711}))
    assert NvmlReader(Nvml([Card(reasons=HEAT)], old_driver=True)).read_gpus()[0].throttled


@pytest.mark.usefixtures("driver_only")
def test_detect_hardware_with_a_failing_gpu_reports_both(tmp_path: Path) -> None:
    cards = [*pair(), Card(uuid="GPU-3", is_split=True)]
    cards[0].error = 999
    reader = NvmlReader(Nvml(cards))
    found = detect_hardware(10**12, ("bubblewrap",), reader)
    working = Gpu(name="NVIDIA GeForce RTX 3090", memory_bytes=24 * GIB, driver="550.54.15", uuid=cards[1].uuid)
    assert found.gpu_details == (working,)
    assert (found.gpus, found.cuda) == (("NVIDIA GeForce RTX 3090",), "12.4")
    assert {"1x3090", "1x24gb"} <= set(found.found_labels)
    assert found.unusable_gpus is not None
    problems = [(gpu.name, gpu.problem) for gpu in found.unusable_gpus]
    assert problems == [("GPU 0", "It does not answer (Unknown Error)."), ("NVIDIA GeForce RTX 3090", gpus.IS_SPLIT)]


def test_read_gpus_with_unified_memory_counts_the_system(driver_only: Path) -> None:
    reader = NvmlReader(Nvml([Card(name="NVIDIA GB10", total=None)]))
    assert [gpu.memory_bytes for gpu in reader.gpus] == [psutil.virtual_memory().total]
    reading = reader.read_gpus()[0]
    assert (reading.used_bytes, reading.temperature_celsius, reading.problem) == (None, 41, "")


def test_fake_nvml_matches_the_real_package() -> None:
    ours = [name for name in dir(Nvml) if name.startswith(("nvml", "NVML_"))]
    assert [name for name in ours if not hasattr(pynvml, name)] == []
    assert issubclass(pynvml.NVMLError, Exception)


def test_open_gpu_reader_with_a_failing_driver_names_the_gpus(
    driver_only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise pynvml.NVMLError_LibRmVersionMismatch

    card = driver_only / "driver" / "0000:01:00.0"
    card.mkdir(parents=True)
    (card / "information").write_text("Model: \t\t NVIDIA A100-SXM4-80GB\nGPU UUID: \t GPU-12\nDevice Minor: \t 0\n")
    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    made = open_gpu_reader()
    problem = "NVIDIA's driver does not answer (RM has detected an NVML/RM version mismatch.)."
    assert made.unusable_gpus == (Gpu(name="NVIDIA A100-SXM4-80GB", uuid="GPU-12", problem=problem),)
    assert (made.gpus, made.read_gpus()) == ((), ())
    assert describe_gpus(made)[1].startswith("Found no usable NVIDIA GPU. Jobs run on ")


def test_open_gpu_reader_with_a_card_without_driver_says_so(driver_only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(driver_only))
    for address, vendor, kind in (("01:00.0", "0x10de", "0x030000"), ("01:00.1", "0x10de", "0x040300")):
        device = driver_only / "pci" / address
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
    assert open_gpu_reader().unusable_gpus == (Gpu(name="NVIDIA GPU", problem=gpus.NO_DRIVER),)


@pytest.mark.parametrize(
    ("words", "found"),
    [(None, [0, 1, 2]), ("", []), ("1", [1]), ("2,0", [2, 0]), ("GPU-b", [1]), ("GPU-b,7,0", [1]), ("-1", [])],
)
def test_select_visible_gpus_follows_cuda_visible_devices(words: str | None, found: list[int]) -> None:
    cards = [Gpu(name="x", uuid=f"GPU-{letter}") for letter in "abc"]
    assert select_visible_gpus(cards, {} if words is None else {"CUDA_VISIBLE_DEVICES": words}) == found


# --- labels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("memory", "label"),
    [
        (25_757_220_864, "1x24gb"),  # RTX 3090
        (24_152_899_584, "1x24gb"),  # L4, with ECC
        (15_843_721_216, "1x12gb"),  # a T4 that reports less than 16 decimal GB is none of 16
        (150_754_820_096, "1x141gb"),  # H200
    ],
)
def test_derive_labels_rounds_memory_to_market_sizes(memory: int, label: str) -> None:
    assert label in derive_labels([Gpu(name="", memory_bytes=memory)], 0)


def test_derive_labels_counts_cards_per_size_and_has_the_disk() -> None:
    mixed = [Gpu(name="NVIDIA GeForce RTX 3090", memory_bytes=24 * GIB), Gpu(name="Tesla T4", memory_bytes=16 * GIB)]
    assert derive_labels(mixed, 610 * 10**9) == ("1x24gb", "1x3090", "1xt4", "2x16gb", "3090", "500gb", "t4")
    assert "pro6000" in derive_labels([Gpu(name="NVIDIA RTX PRO 6000 Blackwell Workstation Edition")], 0)
    assert derive_labels([], 99 * 10**9) == ("50gb",)
    assert derive_labels([], 10**9) == ()


# --- health ----------------------------------------------------------------------------------------------------------


def test_gpu_monitor_with_an_idle_job_warns_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gpu_monitor, "CACHE_SECONDS", -1)
    cards = pair()
    cards[1].busy = 90  # the GPU of another slot
    monitor, without_gpu = GpuMonitor(NvmlReader(Nvml(cards))), GpuMonitor(UnreadableGpuReader())
    for seconds, is_idle in ((0, False), (100, False), (299, False), (301, True), (302, True), (303, False)):
        cards[0].busy = 60 if seconds == 303 else 0
        monitor.update_idle(0, (cards[0].uuid,), is_running=True, now=seconds)
        without_gpu.update_idle(0, (), is_running=True, now=seconds)
        assert (monitor.build_health().idle_gpu, without_gpu.build_health().idle_gpu) == (is_idle, False)
    assert caplog.text.count("has had nothing to do for 5 minutes") == 1


# --- a real agent ----------------------------------------------------------------------------------------------------


def test_node_registers_hardware_and_reports_health(
    site: NodeApiServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    reader = NvmlReader(Nvml([*pair(temperature=77), Card(error=15)]))
    agent = InProcessAgent(site, tmp_path / "agent", reader=reader).start()
    try:
        held = run_job(site, build_training_job(site, steps=10, pace=0.1))
    finally:
        agent.stop()
    registered = site.registered[0].hardware
    assert {"2x3090", "2x24gb"} <= set(registered.found_labels)
    assert [gpu.memory_bytes for gpu in registered.gpu_details] == [24 * GIB] * 2
    assert registered.unusable_gpus is not None
    assert registered.unusable_gpus[0].problem == "It does not answer (GPU is lost)."
    polled, beat = site.polls[0].health, held.heartbeats[-1].health
    assert polled is not None
    assert polled.temperature_celsius == 77
    assert beat is not None
    assert beat.gpu_used_bytes == 600 << 20
