"""Processes of a site that a benchmark starts and measures."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from trainer.distributed.ports import find_free_port

ROOT = Path(__file__).resolve().parents[1]
TICKS = os.sysconf("SC_CLK_TCK")


def print_status(message: str) -> None:
    print(message, file=sys.stderr, flush=True)  # noqa: T201


@contextmanager
def run_site(environment: dict[str, str], workers: int, log: Path) -> Iterator[tuple[int, int]]:
    """Start the web processes; yield their port and the parent process."""
    port = find_free_port()
    serve = ["-m", "uvicorn", "dailytrain.asgi:application", "--port", str(port), "--workers", str(workers)]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, *serve, "--lifespan", "on", "--log-level", "warning", "--no-access-log",
             "--no-proxy-headers", "--timeout-worker-healthcheck", "60"],
            cwd=ROOT, env=environment, stdout=out, stderr=out,
        )  # fmt: skip
    try:
        wait_until_ready(f"http://127.0.0.1:{port}/healthz", process, log)
        yield port, process.pid
    finally:
        stop_process(process)


def stop_process(process: subprocess.Popen[bytes]) -> None:
    """End a process and those that it started, by force if they take longer than 30 s."""
    if process.poll() is not None:
        return
    children = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for child in psutil.wait_procs(children, timeout=5)[1]:
        child.kill()


def wait_until_ready(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        assert process.poll() is None, f"The site did not start:\n{log.read_text()}"
        try:
            urllib.request.urlopen(address, timeout=5).close()  # noqa: S310
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise AssertionError(f"The site does not answer:\n{log.read_text()}")


# --- CPU time, from Linux's /proc: a busy machine changes it less than the wall time ----------------------------------


def measure_cpu_seconds(root: int) -> float:
    """Return the CPU seconds of a process and its running descendants so far."""
    processes = dict(filter(None, map(read_stat, Path("/proc").glob("[0-9]*/stat"))))
    family = {root}
    while more := {pid for pid, (parent, _) in processes.items() if parent in family} - family:
        family |= more
    return sum(processes[pid][1] for pid in family if pid in processes)


def read_stat(stat: Path) -> tuple[int, tuple[int, float]] | None:
    """Return (process, (parent, CPU seconds)); None if it has just ended. See proc_pid_stat(5)."""
    try:
        words = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(stat.parent.name), (int(words[1]), (int(words[11]) + int(words[12])) / TICKS)
