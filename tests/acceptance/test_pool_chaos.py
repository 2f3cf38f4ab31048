"""Agents are killed, frozen, stopped and disconnected at random: no job is lost, and no second is charged twice.

The suite runs a few agents for some seconds; `make chaos-pool` runs twenty for five minutes.
"""

from __future__ import annotations

import os
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.live_site import LiveSite, database
from tests.support.paths import REPOSITORY
from tests.support.pool_with_faults import LEASE_SECONDS, PACE, STEPS, make_pool, read_pool, read_steps
from tests.support.waits import WAIT_SECONDS
from trainer.accounting import peak_flops

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.services]

AGENTS = int(os.environ.get("CHAOS_AGENTS", "6"))
SECONDS = float(os.environ.get("CHAOS_SECONDS", "12"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
JOBS = int(2 + AGENTS * SECONDS / (STEPS * PACE) / 6)
"""About as many as keep the pool busy that long. Restarts take most of the time: there are fewer cores than agents."""
SHORT = {"NVIDIA GeForce RTX 3090": "RTX 3090", "NVIDIA H100 80GB HBM3": "H100"}
CLOCK = 0.5
"""Largest difference between a node's meter and the site's clock, in seconds."""


@pytest.mark.timeout(4 * SECONDS + 3600)
def test_pool_with_faults_loses_no_job_and_charges_no_second_twice(tmp_path: Path) -> None:
    with database(tmp_path) as address:
        site = LiveSite(tmp_path, address)
        site.environment |= {
            "DJANGO_SETTINGS_MODULE": "tests.acceptance.chaos_settings",
            "PYTHONPATH": str(REPOSITORY),
            "LEASE_SECONDS": str(LEASE_SECONDS),
        }
        site.manage("migrate", "--verbosity", "0")
        site.start_redis()
        site.start_web()
        pool = make_pool(site, AGENTS, JOBS, SEED)
        try:
            site.wait(lambda: any(site.folder.glob("home/steps/*")), "the first step of a job")
            pool.inject_faults(SECONDS, pause=6 / AGENTS)
            pool.restart_agents(resume_all=True)
            site.wait(lambda: is_finished(site), "the pool to finish all jobs", WAIT_SECONDS + 3 * SECONDS)
        finally:
            pool.stop()
            site.stop_all()
        found = read_pool(site)
        site.stop_programs()
        check(site, found)
        print(f"{JOBS} jobs, {AGENTS} agents, {SECONDS:g} s: {dict(pool.fault_counts)}; {format_summary(found)}")  # noqa: T201


def format_summary(found: dict[str, Any]) -> str:
    """Return leases, charged seconds and credit as one line."""
    leases, given = found["leases"], found["credited"].values()
    lost = sum(lease["state"] == "lost" for lease in leases)
    charged = sum(lease["seconds"] for lease in leases)
    lent = sum(node["gpu_seconds"] for node in given), sum(node["cpu_seconds"] for node in given)
    hours = sum(node["credit_hours"] for node in given)
    return (
        f"{len(leases)} leases, {lost} of them lost, {charged:.1f} s charged; credited: {lent[0]:.1f} GPU-seconds, "
        f"{lent[1]:.1f} s without one, {hours:.4f} hours of an H100"
    )


def is_finished(site: LiveSite) -> bool:
    """Whether every job has reported its last step and is done. Reads the files of steps first, which is cheap."""
    folder = site.folder / "home" / "steps"
    ended = [path for path in folder.glob("*") if path.read_text().splitlines()[-1:] == [str(STEPS)]]
    return len(ended) == JOBS and all(job["state"] == "done" for job in read_pool(site)["jobs"])


def check(site: LiveSite, found: dict[str, Any]) -> None:
    assert len(found["jobs"]) == JOBS
    assert [job for job in found["jobs"] if job["state"] != "done"] == [], "a job is lost"
    by_job = {job: list(leases) for job, leases in groupby(found["leases"], key=lambda lease: lease["job"])}
    for job in found["jobs"]:
        leases = by_job[job["id"]]
        assert job["attempts"] == len(leases)
        check_times(leases)
        check_steps(read_steps(site, job["id"]), leases)
    assert sum(len(leases) for leases in by_job.values()) > JOBS, "no job was interrupted"
    check_credit(found["leases"], found["credited"])


def check_times(leases: list[dict[str, Any]]) -> None:
    """Check that a job's leases do not overlap, and that none is charged for longer than it lasted."""
    for before, after in pairwise(leases):
        assert before["ended"] <= after["began"], "two nodes have the job at once"
    for lease in leases:
        assert lease["state"] != "active"
        assert 0 <= lease["seconds"] <= lease["ended"] - lease["began"] + CLOCK


def check_credit(leases: list[dict[str, Any]], credited: dict[str, dict[str, float]]) -> None:
    """Check that each node's credit is the sum of what its leases were charged, without faults of the machine."""
    leases = [lease for lease in leases if not lease["machine_fault"]]
    by_node: dict[str, list[dict[str, Any]]] = {}
    for lease in leases:
        by_node.setdefault(str(lease["node"]), []).append(lease)
    assert set(credited) == set(by_node)
    for node, node_leases in by_node.items():
        assert credited[node] == pytest.approx(compute_credit(node_leases), rel=1e-9), node
    total = {name: sum(given[name] for given in credited.values()) for name in compute_credit([])}
    assert total == pytest.approx(compute_credit(leases), rel=1e-9)
    assert total["credit_hours"] > 0, "no node has a GPU"


def compute_credit(leases: list[dict[str, Any]]) -> dict[str, float]:
    """Return the credit of leases, computed lease by lease."""
    with_gpu = [(lease, lease["seconds"] * lease["gpus"]) for lease in leases if lease["gpus"]]
    return {
        "gpu_seconds": sum(seconds for _, seconds in with_gpu),
        "cpu_seconds": sum(lease["seconds"] for lease in leases if not lease["gpus"]),
        "credit_hours": sum(
            seconds / 3600 * peak_flops.PEAK_FLOPS[SHORT[lease["accelerator"]]] / peak_flops.H100_PEAK_FLOPS
            for lease, seconds in with_gpu
        ),
    }


def check_steps(steps: list[int], leases: list[dict[str, Any]]) -> None:
    """Check that every step was reported, and that the charged seconds cover the steps."""
    assert set(steps) == set(range(1, STEPS + 1)), "a step was not reported"
    charged = sum(lease["seconds"] for lease in leases)
    # A lost lease is charged up to its last heartbeat. Its steps between that and the sweep are not charged.
    uncharged = sum(lease["ended"] - lease["heard"] for lease in leases if lease["state"] == "lost")
    assert charged >= len(steps) * PACE - uncharged - CLOCK
