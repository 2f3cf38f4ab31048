"""The other two drivers, and choosing one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waits import WAIT_SECONDS
from trainer.sandbox import Mount, ResourceLimits, SandboxError, SandboxSpec, docker, get_driver

pytestmark = pytest.mark.processes

LIMITS = ResourceLimits(wall_seconds=20, memory_bytes=400_000_000, disk_bytes=20_000_000, processes=8)


def run_unsandboxed(tmp_path: Path, code: str, limits: ResourceLimits = LIMITS) -> tuple[int | None, str | None]:
    box = SandboxSpec([sys.executable, "-S", "-c", code], {}, [Mount(tmp_path, writable=True)], tmp_path, limits)
    process = get_driver("none").start(box, subprocess.DEVNULL, subprocess.DEVNULL)
    return process.wait(WAIT_SECONDS), process.limit_error


def test_unsandboxed_driver_runs_and_meters_a_process(tmp_path: Path) -> None:
    assert get_driver("none").find_problem() is None
    assert run_unsandboxed(tmp_path, "raise SystemExit(3)") == (3, None)
    short = ResourceLimits(0.5, 10**9, 10**9, 8)
    ended = run_unsandboxed(tmp_path, "import time; time.sleep(20)", short)
    assert ended == (137, "It ran longer than 0 seconds.")
    if sys.platform == "linux":  # without /proc only wall time and disk are metered
        code = "import os, time\nfor _ in range(20):\n  if os.fork() == 0: time.sleep(20); os._exit(0)\ntime.sleep(20)"
        assert run_unsandboxed(tmp_path, code) == (137, "It had more than 8 processes at once.")


def test_docker_command_restricts_and_mounts() -> None:
    mounts = [Mount(Path("/data")), Mount(Path("/out"), writable=True)]
    words = docker.build_docker_command(
        SandboxSpec([sys.executable, "-m", "x"], {"A": "b"}, mounts, Path("/out"), LIMITS), "name"
    )
    line = " ".join(words)
    for part in (
        "docker run --rm --init --name name --label dailytrain.sandbox --network none --read-only",
        "--cap-drop ALL --security-opt no-new-privileges",
        f"--user {os.getuid()}:{os.getgid()}",
        "--pids-limit 8",
        "--memory 400000000 --memory-swap 400000000",
        "--tmpfs /tmp:rw,nosuid,nodev,size=50000000",
        "--env A=b",
        "--mount type=bind,source=/data,target=/data,readonly --mount type=bind,source=/out,target=/out",
        "--workdir /out",
    ):
        assert part in line
    assert words[-4:] == ["dailytrain-node", "python", "-m", "x"]
    with pytest.raises(SandboxError, match="comma"):
        docker.build_docker_command(SandboxSpec(["x"], {}, [Mount(Path("/a,b"))], Path("/out"), LIMITS), "name")
    with pytest.raises(SandboxError, match="'chroot'; known: bubblewrap, docker, none"):
        get_driver("chroot")
