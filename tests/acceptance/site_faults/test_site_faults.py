"""Processes crash, Redis loses its data, PostgreSQL restarts, disks fill, clocks jump: nothing is lost or done twice.

`make chaos SEED=7 SECONDS=600` chooses other faults, for longer. `oracle.py` lists what holds.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.postgres import PostgresNotFoundError
from tests.acceptance.site_faults.oracle import find_violations
from tests.acceptance.site_faults.postgres import PostgresServer
from tests.acceptance.site_faults.site import SiteWithFaults
from tests.support import github_server, hub_server
from tests.support.waits import WAIT_SECONDS

pytestmark = [pytest.mark.processes, pytest.mark.slow]  # not `services`: its PostgreSQL and Redis are its own

SECONDS = float(os.environ.get("CHAOS_SECONDS", "20"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
PULL_REQUESTS = int(3 + SECONDS / 20)


def wait_for_violations(site: SiteWithFaults) -> list[str]:
    """Return the violations that remain. Messages to GitHub may follow the last work; losses and duplicates stay."""
    deadline = time.monotonic() + WAIT_SECONDS
    while (violations := find_violations(site, site.read())) and time.monotonic() < deadline:
        time.sleep(2)
    return violations


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    if os.geteuid() == 0 and not shutil.which("runuser"):
        pytest.skip("PostgreSQL does not run as root")
    try:
        server = PostgresServer()
    except PostgresNotFoundError as error:
        pytest.skip(str(error))
    server.start()
    try:
        yield server
    finally:
        server.close()


@pytest.mark.timeout(4 * SECONDS + 3 * WAIT_SECONDS)
def test_site_after_faults_has_lost_and_doubled_nothing(tmp_path: Path, postgres: PostgresServer) -> None:
    with github_server.run_github_server() as github, hub_server.run_hub_server() as hub:
        site = SiteWithFaults(tmp_path, postgres, github, hub, SEED, PULL_REQUESTS)
        try:
            site.inject_faults(SECONDS)
            site.finish(WAIT_SECONDS + SECONDS)
            violations = wait_for_violations(site)
        finally:
            site.close()
        nodes = [
            {**node.faults, **{f"answer {status}": n for status, n in node.statuses.items()}} for node in site.nodes
        ]
        print(f"seed {SEED}, {SECONDS:g} s, {len(site.shas)} pull requests: {dict(site.fault_counts)}; nodes: {nodes}")  # noqa: T201
        assert violations == [], "\n".join(violations)
