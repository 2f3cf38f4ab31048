"""Only one module queries GPUs, so that another kind of GPU needs changes there only."""

from __future__ import annotations

import re

import pytest
import torch

from tests.support.paths import REPOSITORY
from trainer.ops import devices

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


def test_waiting_for_a_cpu_returns() -> None:
    devices.synchronize(torch.device("cpu"))
    devices.release_cached_memory(torch.device("cpu"))
