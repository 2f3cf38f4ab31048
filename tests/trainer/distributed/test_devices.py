"""Devices: settings before the first use, and the one module that queries GPUs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support.paths import REPOSITORY
from trainer.distributed.devices import configure_allocator
from trainer.ops import devices

pytestmark = pytest.mark.processes


def test_allocator_settings_of_the_environment_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "backend:native")
    configure_allocator("cuda")
    assert os.environ["PYTORCH_ALLOC_CONF"] == "backend:native"


FIRST_USE_OF_CUDA = """
import os, sys, torch

def report(*_):
    # What the allocator itself has read, once and for all: torch 2.11 tells it in builds with CUDA alone.
    if read := getattr(torch._C, "_accelerator_getAllocatorSettings", None):
        print(read(), flush=True)
    else:
        found = torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"]
        print(f"expandable_segments:{found}", flush=True)
    os._exit(0)

torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: 1
torch.cuda._lazy_init = torch.cuda.init = report
from trainer.train import main
main(["--device", "cuda", "--out", sys.argv[1]])
"""


def test_allocator_is_configured_before_cuda_starts(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTORCH_")}
    command = [sys.executable, "-c", FIRST_USE_OF_CUDA, str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "expandable_segments:True", done.stderr


CALLS = re.compile(r"\btorch\.cuda\b|\bfrom torch import cuda\b|\btorch\.version\.(cuda|hip)\b")


def test_torch_cuda_is_called_by_the_devices_module_only() -> None:
    files = (*(REPOSITORY / "trainer").rglob("*.py"), *(REPOSITORY / "leaderboard").rglob("*.py"))
    users = {str(file.relative_to(REPOSITORY)) for file in files if CALLS.search(file.read_text())}
    assert users == {"trainer/ops/devices.py"}


def test_capability_of_another_vendor_is_no_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """An MI300 reports 9.4, which is not Hopper."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _=None: (9, 4))
    assert devices.get_generation() == 9
    assert devices.has_fp8()
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert devices.get_generation() == 0
    assert not devices.has_fp8()
