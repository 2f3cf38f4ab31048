"""Pages of a site with 10,000 runs and 10 million curve points: PostgreSQL, the real site behind real sockets.

Starts a temporary PostgreSQL and one web process per core and fills the database. Requests each page one after the
other, then the board at a fixed rate while runs report metrics. Prints a table (`--json`: JSON only).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.postgres import PostgresNotFoundError, run_postgres
from benchmarks.processes import ROOT, measure_cpu_seconds, print_status, run_site


def run_load(port: int, processes: tuple[int, int], paths: list[str], *words: str) -> dict[str, Any]:
    """Run the load generator in its own process; return its result with the CPU time per view."""
    used = [measure_cpu_seconds(process) for process in processes]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.site.load", "--port", str(port), *words],
        cwd=ROOT, input=json.dumps(paths), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    for name, process, before in zip(("site", "postgresql"), processes, used, strict=True):
        result[f"{name}_cpu_ms"] = round(1000 * (measure_cpu_seconds(process) - before) / max(result["views"], 1), 2)
    return result


@contextmanager
def run_live_metrics(runs: list[int], environment: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Write metrics of these runs in another process; yield a dict that receives its statistics at the end."""
    statistics: dict[str, Any] = {}
    writer = [sys.executable, "-m", "benchmarks.site.live"]
    with subprocess.Popen(
        writer, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps(runs) + "\n")
        process.stdin.flush()
        process.stdout.readline()  # it writes
        yield statistics
        process.stdin.close()
        statistics.update(json.loads(process.stdout.read()))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    with run_postgres() as (address, postmaster), tempfile.TemporaryDirectory() as home:
        environment = {
            **os.environ, "DATABASE_URL": address, "DAILYTRAIN_HOME": home, "LOG_LEVEL": "ERROR",
            "DJANGO_SETTINGS_MODULE": "dailytrain.settings", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        print_status(f"filling PostgreSQL with {options.runs:,} runs and {options.points:,} points")
        fill = [
            sys.executable,
            "-m",
            "benchmarks.site.fill",
            "--runs",
            str(options.runs),
            "--points",
            str(options.points),
        ]
        filled = json.loads(subprocess.run(fill, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True).stdout)
        pooled = {**environment, "DATABASE_POOL": "20"}
        with run_site(pooled, options.workers, Path(home) / "site.log") as (port, process):
            processes = process, postmaster
            pages = {}
            for name, paths in filled["paths"].items():
                run_load(port, processes, paths[:5] * 4)
                print_status(f"{name}: {options.views} views")
                pages[name] = run_load(port, processes, (paths * options.views)[: options.views])
            board = filled["paths"]["board, cached"]
            print_status(f"the board, {options.rate:g} times a second for {options.seconds:g} s, while runs report")
            with run_live_metrics(filled["live"], environment) as statistics:
                words = ("--rate", str(options.rate), "--seconds", str(options.seconds))
                crowd = run_load(port, processes, board, *words)
    sizes = {name: filled[name] for name in ("runs", "points", "queries")}
    machine = {"workers": options.workers, "cores": os.cpu_count()}
    return {**sizes, **machine, "rate": options.rate, "pages": pages, "crowd": {**crowd, "live": statistics}}


def format_table(found: dict[str, Any]) -> str:
    crowd, live = found["crowd"], found["crowd"]["live"]
    return f"""\
{found["runs"]:,} runs, {found["points"]:,} curve points, PostgreSQL
{found["workers"]} web processes on {found["cores"]} cores

one by one                     median      95 %      99 %     bytes  queries  CPU: site  database generator
{chr(10).join(format_line(name, row, found["queries"][name]) for name, row in found["pages"].items())}

the board {crowd["per_second"]:g} times a second, revalidated by ETag, while {live["runs"]} runs report
median {crowd["median_ms"]} ms, 95 % {crowd["p95_ms"]} ms, 99 % {crowd["p99_ms"]} ms; answers {crowd["statuses"]}
CPU for a view: site {crowd["site_cpu_ms"]} ms, PostgreSQL {crowd["postgresql_cpu_ms"]} ms, \
generator {crowd["generator_cpu_ms"]} ms ({crowd["generator_cpu_share"]:.0%} of a core)"""


def format_line(name: str, row: dict[str, Any], queries: int) -> str:
    times = "".join(f"{row[at]:7.1f} ms" for at in ("median_ms", "p95_ms", "p99_ms"))
    used = "".join(f"{row[whose]:7.2f} ms" for whose in ("site_cpu_ms", "postgresql_cpu_ms", "generator_cpu_ms"))
    statuses = "" if set(row["statuses"]) == {"200"} else f"  {row['statuses']}"
    return f"{name:26}{times}{row['bytes']:10,}{queries:9} {used}{statuses}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.site", description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--points", type=int, default=10_000_000)
    parser.add_argument("--views", type=int, default=200, help="of each page (200)")
    parser.add_argument("--rate", type=float, default=100, help="views of the board a second (100)")
    parser.add_argument("--seconds", type=float, default=15, help="of these (15)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="web processes (one for each core)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        found = measure(options)
    except PostgresNotFoundError as error:
        print_status(str(error))
        return 2
    print(json.dumps(found) if options.json else format_table(found))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
