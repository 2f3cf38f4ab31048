"""Assigns and submits packets: PostgreSQL, a million packets, 200 volunteers, batches of 16, over sockets.

Starts a temporary PostgreSQL and one web process per core, fills the database, runs the load and prints a table
(`--json`: JSON only). All checks run on every text. Then measures the producer with all of its filters.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.postgres import PostgresNotFoundError, run_postgres
from benchmarks.processes import ROOT, measure_cpu_seconds, print_status, run_site

RATE = 400.0
"""Packets a second of the open-loop measurement."""


def run_load(port: int, processes: dict[str, int], sessions: list[dict[str, Any]], *words: str) -> dict[str, Any]:
    """Run the load generator in its own process; return its result with the CPU time per packet."""
    used = {name: measure_cpu_seconds(process) for name, process in processes.items()}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.rephrase.load", "--port", str(port), *words],
        cwd=ROOT, input=json.dumps(sessions), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    for name, process in processes.items():
        result[f"{name}_cpu_ms"] = round(
            1000 * (measure_cpu_seconds(process) - used[name]) / max(result["packets"], 1), 2
        )
    return result


def measure(options: argparse.Namespace) -> dict[str, Any]:
    with run_postgres() as (address, postmaster), tempfile.TemporaryDirectory() as home:
        environment = {
            **os.environ, "DATABASE_URL": address, "DAILYTRAIN_HOME": home, "DATABASE_POOL": "20", "LOG_LEVEL": "ERROR",
            "DJANGO_SETTINGS_MODULE": "dailytrain.settings", "LEASE_SECONDS": "10000", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        print_status(f"filling PostgreSQL with {options.packets:,} packets")
        styles = ["--styles", *options.styles]
        fill = [sys.executable, "-m", "benchmarks.rephrase.fill", "--packets", str(options.packets)]
        fill += ["--volunteers", str(options.volunteers), *styles]
        sessions = json.loads(
            subprocess.run(fill, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True).stdout
        )
        common = ["--batch", str(options.batch), *styles]
        with run_site(environment, options.workers, Path(home) / "site.log") as (port, process):
            processes = {"site": process, "postgresql": postmaster}
            print_status("warming up")
            run_load(port, processes, sessions[:8], "--seconds", "3", *common)
            print_status("one volunteer alone")
            alone = run_load(port, processes, sessions[:1], "--seconds", str(options.seconds / 2), *common)
            print_status(f"{RATE:g} packets a second")
            steady = run_load(
                port, processes, sessions, "--seconds", str(options.seconds), "--rate", str(RATE), *common
            )
            print_status("closed loop")
            flat = run_load(port, processes, sessions, "--seconds", str(options.seconds), *common)
        print_status("the producer")
        produce = [sys.executable, "-m", "benchmarks.rephrase.produce", "--documents", str(options.documents)]
        producer = json.loads(
            subprocess.run(produce, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True).stdout
        )
    names = ("packets", "volunteers", "batch", "workers", "styles")
    setup = {name: getattr(options, name) for name in names}
    return {**setup, "cores": os.cpu_count(), "alone": alone, "steady": steady, "flat_out": flat, "producer": producer}


def format_table(found: dict[str, Any]) -> str:
    about = f"{found['packets']:,} packets, {found['volunteers']} volunteers, batches of {found['batch']}, styles: "
    about += f"{' '.join(found['styles'])}; PostgreSQL, {found['workers']} web processes on {found['cores']} cores"
    lines = [
        about,
        f"{'':24}{'packets/s':>10}{'take':>9}{'95 %':>10}{'submit':>10}{'95 %':>10}   generator",
    ]
    titles = (("alone", "one volunteer"), ("steady", f"{RATE:g} a second"), ("flat_out", "closed loop"))
    for name, title in titles:
        row = found[name]
        times = "".join(
            f"{row[key]:7.1f} ms" for key in ("take_median_ms", "take_p95_ms", "submit_median_ms", "submit_p95_ms")
        )
        lines.append(f"{title:24}{row['per_second']:10,.0f}{times}   {row['generator_cpu_share']:.0%} of a core")
        lines.append(
            f"{'':24}CPU for a packet: site {row['site_cpu_ms']} ms, PostgreSQL {row['postgresql_cpu_ms']} ms; "
            f"texts: {row['texts']}"
        )
    producer = found["producer"]
    lines.append(
        f"producer: {producer['documents_per_second']:,.0f} documents, "
        f"{producer['megabytes_per_second']:.2f} MB a second, "
        f"{producer['packets']:,} packets; {producer['cpu_ms']:.2f} ms of CPU a document; {producer['parts']}"
    )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rephrase", description=__doc__)
    parser.add_argument("--packets", type=int, default=1_000_000)
    parser.add_argument("--volunteers", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--styles", nargs="+", default=["medium"], help="of each packet's one chunk (medium)")
    parser.add_argument("--seconds", type=float, default=10, help="of each measurement (10)")
    parser.add_argument("--documents", type=int, default=3000, help="that the producer reads (3000)")
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
