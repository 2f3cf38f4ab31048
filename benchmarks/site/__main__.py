"""Pages of a site with 10,000 runs and 10 million curve points: PostgreSQL, the real site behind real sockets.

Starts a PostgreSQL of its own and as many web processes as there are cores, fills it, asks for pages one after the
other and then for the board so many times a second while runs go on; prints a table, `--json` prints JSON alone.
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

from benchmarks.pool.__main__ import ROOT, say, site
from benchmarks.pool.postgres import NoPostgres, throwaway_postgres
from benchmarks.pool.usage import cpu_seconds


def ask(port: int, processes: tuple[int, int], paths: list[str], *words: str) -> dict[str, Any]:
    """Let an asker of its own process ask; note what the site and its database need for a view."""
    used = [cpu_seconds(process) for process in processes]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.site.load", "--port", str(port), *words],
        cwd=ROOT, input=json.dumps(paths), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    for name, process, before in zip(("site", "postgresql"), processes, used, strict=True):
        result[f"{name}_cpu_ms"] = round(1000 * (cpu_seconds(process) - before) / max(result["views"], 1), 2)
    return result


@contextmanager
def runs_going_on(runs: list[int], environment: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yield what will hold, at the end, what was written meanwhile."""
    told: dict[str, Any] = {}
    writer = [sys.executable, "-m", "benchmarks.site.live"]
    with subprocess.Popen(
        writer, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps(runs) + "\n")
        process.stdin.flush()
        process.stdout.readline()  # it writes
        yield told
        process.stdin.close()
        told.update(json.loads(process.stdout.read()))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    with throwaway_postgres() as (address, postmaster), tempfile.TemporaryDirectory() as home:
        environment = {
            **os.environ, "DATABASE_URL": address, "DAILYTRAIN_HOME": home, "LOG_LEVEL": "ERROR",
            "DJANGO_SETTINGS_MODULE": "dailytrain.settings", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        say(f"filling PostgreSQL with {options.runs:,} runs and {options.points:,} points")
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
        pooled = {**environment, "DATABASE_POOL": "8"}
        with site(pooled, options.workers, Path(home) / "site.log") as (port, process):
            those = process, postmaster
            pages = {}
            for name, paths in filled["paths"].items():
                ask(port, those, paths[:5] * 4)
                say(f"{name}: {options.views} views")
                pages[name] = ask(port, those, (paths * options.views)[: options.views])
            board = filled["paths"]["board, kept"]
            say(f"the board, {options.rate:g} times a second for {options.seconds:g} s, while runs go on")
            with runs_going_on(filled["live"], environment) as told:
                words = ("--rate", str(options.rate), "--seconds", str(options.seconds))
                crowd = ask(port, those, board, *words)
    sizes = {name: filled[name] for name in ("runs", "points", "queries")}
    machine = {"workers": options.workers, "cores": os.cpu_count()}
    return {**sizes, **machine, "rate": options.rate, "pages": pages, "crowd": {**crowd, "live": told}}


def table(found: dict[str, Any]) -> str:
    crowd, live = found["crowd"], found["crowd"]["live"]
    return f"""\
{found["runs"]:,} runs, {found["points"]:,} curve points, PostgreSQL
{found["workers"]} web processes on {found["cores"]} cores

one view after the other      median      95 %      99 %     bytes  queries  CPU: site  database     asker
{chr(10).join(line(name, row, found["queries"][name]) for name, row in found["pages"].items())}

the board {crowd["per_second"]:g} times a second, by visitors who have seen it, while {live["runs"]} runs go on
median {crowd["median_ms"]} ms, 95 % {crowd["p95_ms"]} ms, 99 % {crowd["p99_ms"]} ms; answers {crowd["statuses"]}
CPU for a view: site {crowd["site_cpu_ms"]} ms, PostgreSQL {crowd["postgresql_cpu_ms"]} ms, \
asker {crowd["asker_cpu_ms"]} ms ({crowd["asker_cpu_share"]:.0%} of a core)"""


def line(name: str, row: dict[str, Any], queries: int) -> str:
    times = "".join(f"{row[at]:7.1f} ms" for at in ("median_ms", "p95_ms", "p99_ms"))
    used = "".join(f"{row[whose]:7.2f} ms" for whose in ("site_cpu_ms", "postgresql_cpu_ms", "asker_cpu_ms"))
    odd = "" if set(row["statuses"]) == {"200"} else f"  {row['statuses']}"
    return f"{name:26}{times}{row['bytes']:10,}{queries:9} {used}{odd}"


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
    except NoPostgres as error:
        say(str(error))
        return 2
    print(json.dumps(found) if options.json else table(found))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
