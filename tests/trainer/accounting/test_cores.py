"""Cores: idle ones are counted, and threads that wait do not spin."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from trainer.accounting import cores

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("busy", "idle"),
    [
        ([0.0, 0.0], 2),
        ([1.0, 0.0], 1),
        ([0.6, 0.5], 1),
        ([0.3, 0.2], 2),
        ([1.0, 1.0], 1),
        ([1.0] + [0.02] * 15, 15),
    ],
)
def test_idle_cores_are_those_that_others_leave(busy: list[float], idle: int) -> None:
    assert cores.count_idle_cores(dict(enumerate(busy))) == idle


def test_thread_count_follows_omp_num_threads_or_leaves_busy_cores_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "measure_busy_shares", lambda: {0: 1.0, 1: 0.0, 2: 0.1, 3: 0.0})
    for chosen, limit, count in (("3", 8, 3), ("3", 2, 2), ("1", 8, 1)):
        monkeypatch.setenv("OMP_NUM_THREADS", chosen)
        assert cores.choose_thread_count(limit) == count
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert [cores.choose_thread_count(limit) for limit in (4, 2)] == [3, 2]


@pytest.mark.skipif(sys.platform != "linux", reason="torch uses libgomp on Linux only")
def test_command_limits_spinning_before_torch_is_loaded() -> None:
    """libgomp prints its settings as it has read them when it is loaded."""
    inherited = {name: value for name, value in os.environ.items() if name not in cores.WAIT_VARIABLES}
    process = subprocess.run(
        [sys.executable, "-m", "trainer.cli", "sample", "--help"],
        env=inherited | {"OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
    )
    assert "GOMP_SPINCOUNT = '1000'" in process.stderr
