"""Polls of a long queue: PostgreSQL, 10,000 nodes, 100,000 jobs, the real site behind real sockets.

Starts a temporary PostgreSQL and one web process per core, fills the database, runs the load and prints a table
(`--json`: JSON only). Half of the polls get a job and the others find none that fits, as after an outage. In one
measurement one poll in a hundred gets a job, as in normal operation: 10,000 nodes with jobs of an hour take three a
second.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import psutil

from benchmarks.pool.postgres import PostgresNotFoundError, run_postgres
from benchmarks.pool.usage import measure_cpu_seconds
from trainer.distributed.ports import find_free_port

ROOT = Path(__file__).resolve().parents[2]
HALF, NORMAL = 2, 100
"""One poll in this many gets a job."""


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


def run_load(
    port: int, site_process: int, postmaster: int, nodes: list[dict[str, Any]], **options: float
) -> dict[str, Any]:
    """Run the load generator in its own process; return its result with the CPU time per poll of site and database."""
    used = measure_cpu_seconds(site_process), measure_cpu_seconds(postmaster)
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.pool.load", "--port", str(port), *words],
        cwd=ROOT, input=json.dumps(nodes), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    for name, process, before in (("site", site_process, used[0]), ("postgresql", postmaster, used[1])):
        result[f"{name}_cpu_ms"] = round(1000 * (measure_cpu_seconds(process) - before) / result["polls"], 2)
    return result


def measure(nodes: int, jobs: int, seconds: float, workers: int, rate: float, pool: int) -> dict[str, Any]:
    with run_postgres() as (address, postmaster), tempfile.TemporaryDirectory() as home:
        environment = {
            **os.environ, "DATABASE_URL": address, "DAILYTRAIN_HOME": home, "DATABASE_POOL": str(pool),
            "LOG_LEVEL": "ERROR", "DJANGO_SETTINGS_MODULE": "benchmarks.pool.settings", "LEASE_SECONDS": "600",
        }  # fmt: skip
        print_status(f"filling PostgreSQL with {nodes:,} nodes and {jobs:,} jobs")
        fill = [sys.executable, "-m", "benchmarks.pool.fill", "--nodes", str(nodes), "--jobs", str(jobs)]
        filled = json.loads(subprocess.run(fill, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True).stdout)
        sequence, polls = NodeSequence(filled["nodes"]), int(rate * seconds * 1.1)
        with run_site(environment, workers, Path(home) / "site.log") as (port, process):
            print_status("warming up")
            target = port, process, postmaster
            run_load(*target, sequence.take(nodes // 20, HALF), seconds=3)
            print_status(f"{rate:g} polls a second, one in {NORMAL} gets a job, for {seconds:g} s")
            life = run_load(*target, sequence.take(polls, NORMAL), seconds=seconds, rate=rate)
            print_status(f"{rate:g} polls a second, for {seconds:g} s")
            steady = run_load(*target, sequence.take(polls, HALF), seconds=seconds, rate=rate)
            print_status(f"closed loop, for {seconds:g} s")
            flat = run_load(*target, sequence.take(nodes, HALF), seconds=seconds)
    return {"nodes": nodes, "jobs": jobs, "workers": workers, "cores": os.cpu_count(), "rate": rate,
            "life": life, "steady": steady, "flat_out": flat, "queries": filled["queries"]}  # fmt: skip


class NodeSequence:
    """The order in which nodes poll: those that fit a job once, the others repeatedly."""

    def __init__(self, nodes: list[dict[str, Any]]) -> None:
        self._able = iter([node for node in nodes if node["able"]])
        self._others = cycle([node for node in nodes if not node["able"]])

    def take(self, count: int, share: int) -> list[dict[str, Any]]:
        """Return `count` nodes, of which one in `share` fits a job; fewer if those run out."""
        taken: list[dict[str, Any]] = []
        for number in range(count):
            node = next(self._others) if number % share else next(self._able, None)
            if node is None:
                break
            taken.append(node)
        return taken


def format_table(found: dict[str, Any]) -> str:
    lines = [
        f"{found['nodes']:,} nodes, {found['jobs']:,} jobs in the queue, PostgreSQL",
        f"{found['workers']} web processes on {found['cores']} cores",
        "",
        f"{'':26}{'polls/s':>9}{'median':>9}{'95 %':>9}{'99 %':>9}   generator     answers",
    ]
    titles = {"life": f"{found['rate']:g} a second, normal", "steady": f"{found['rate']:g} a second, half get a job"}
    for name, title in {**titles, "flat_out": "closed loop, half"}.items():
        row = found[name]
        lines.append(
            f"{title:26}{row['per_second']:9,.0f}"
            f"{row['median_ms']:6.1f} ms{row['p95_ms']:6.1f} ms{row['p99_ms']:6.1f} ms"
            f"   {row['generator_cpu_share']:.0%} of a core   {row['answers']}"
        )
        lines.append(f"{'':26}CPU for a poll: site {row['site_cpu_ms']} ms, PostgreSQL {row['postgresql_cpu_ms']} ms")
    lines += ["", f"queries of a poll: {found['queries']}"]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pool", description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=10, help="of each of the three measurements (10)")
    parser.add_argument("--rate", type=float, default=300, help="polls a second in the first two (300)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="web processes (one for each core)")
    parser.add_argument(
        "--pool", type=int, default=8, help="connections of each process (8); 0: a new one for each request"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        found = measure(options.nodes, options.jobs, options.seconds, options.workers, options.rate, options.pool)
    except PostgresNotFoundError as error:
        print_status(str(error))
        return 2
    print(json.dumps(found) if options.json else format_table(found))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
