"""Agents are killed, frozen, stopped and cut off at random: no job is lost, and no second is charged twice.

`make chaos-pool` does it to twenty agents for five minutes; in the suite it is a few of them and some seconds.
"""

from __future__ import annotations

import os
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.live_site import LiveSite, database
from tests.support.paths import REPOSITORY
from tests.support.pool_with_faults import LEASE_SECONDS, PACE, STEPS, books, make_pool, steps
from tests.support.waits import WAIT_SECONDS
from trainer.accounting import peak_flops

pytestmark = [pytest.mark.slow, pytest.mark.services]

AGENTS = int(os.environ.get("CHAOS_AGENTS", "6"))
SECONDS = float(os.environ.get("CHAOS_SECONDS", "12"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
JOBS = int(2 + AGENTS * SECONDS / (STEPS * PACE) / 6)
"""About as many as keep the pool busy that long: most of the time goes into coming back, and to the agents' machine,
which has fewer cores than agents."""
SHORT = {"NVIDIA GeForce RTX 3090": "RTX 3090", "NVIDIA H100 80GB HBM3": "H100"}
CLOCK = 0.5
"""Seconds by which a meter and the site's clock may disagree."""


@pytest.mark.timeout(4 * SECONDS + 3600)
def test_no_job_is_lost_and_no_second_is_charged_twice(tmp_path: Path) -> None:
    with database(tmp_path) as address:
        site = LiveSite(tmp_path, address)
        site.environment |= {
            "DJANGO_SETTINGS_MODULE": "tests.support.chaos_settings",
            "PYTHONPATH": str(REPOSITORY),
            "LEASE_SECONDS": str(LEASE_SECONDS),
        }
        site.manage("migrate", "--verbosity", "0")
        site.start_redis()
        site.start_web()
        pool = make_pool(site, AGENTS, JOBS, SEED)
        try:
            site.wait(lambda: any(site.folder.glob("home/steps/*")), "the first step of a job")
            pool.disturb(SECONDS, pause=6 / AGENTS)
            pool.mend(all_of_them=True)
            site.wait(lambda: all_over(site), "the pool to finish what was asked of it", WAIT_SECONDS + 3 * SECONDS)
        finally:
            pool.stop()
            site.stop_all()
        found = books(site)
        site.stop_programs()
        check(site, found)
        print(f"{JOBS} jobs, {AGENTS} agents, {SECONDS:g} s: {dict(pool.done)}; {told(found)}")  # noqa: T201


def told(found: dict[str, Any]) -> str:
    """Return what it came to, in a line."""
    leases, given = found["leases"], found["credited"].values()
    lost = sum(lease["state"] == "lost" for lease in leases)
    charged = sum(lease["seconds"] for lease in leases)
    lent = sum(node["gpu_seconds"] for node in given), sum(node["cpu_seconds"] for node in given)
    hours = sum(node["credit_hours"] for node in given)
    return (
        f"{len(leases)} leases, {lost} of them lost, {charged:.1f} s charged; credited: {lent[0]:.1f} GPU-seconds, "
        f"{lent[1]:.1f} s without one, {hours:.4f} hours of an H100"
    )


def all_over(site: LiveSite) -> bool:
    """Whether every job's last step has been heard of: cheap to ask, unlike the books."""
    folder = site.folder / "home" / "steps"
    ended = [path for path in folder.glob("*") if path.read_text().splitlines()[-1:] == [str(STEPS)]]
    return len(ended) == JOBS and all(job["state"] == "done" for job in books(site)["jobs"])


def check(site: LiveSite, found: dict[str, Any]) -> None:
    assert len(found["jobs"]) == JOBS
    assert [job for job in found["jobs"] if job["state"] != "done"] == [], "no job is lost"
    by_job = {job: list(leases) for job, leases in groupby(found["leases"], key=lambda lease: lease["job"])}
    for job in found["jobs"]:
        leases = by_job[job["id"]]
        assert job["attempts"] == len(leases)
        check_times(leases)
        check_steps(steps(site, job["id"]), leases)
    assert sum(len(leases) for leases in by_job.values()) > JOBS, "somebody was interrupted"
    check_credit(found["leases"], found["credited"])


def check_times(leases: list[dict[str, Any]]) -> None:
    """One node after the other, each charged for no longer than it had the job."""
    for before, after in pairwise(leases):
        assert before["ended"] <= after["began"], "no two nodes have a job at once"
    for lease in leases:
        assert lease["state"] != "active"
        assert 0 <= lease["seconds"] <= lease["ended"] - lease["began"] + CLOCK


def check_credit(leases: list[dict[str, Any]], credited: dict[str, dict[str, float]]) -> None:
    """What nodes are thanked for is what was charged, to the second: nothing twice, nothing left out."""
    by_node: dict[str, list[dict[str, Any]]] = {}
    for lease in leases:
        by_node.setdefault(str(lease["node"]), []).append(lease)
    assert set(credited) == set(by_node)
    for node, theirs in by_node.items():
        assert credited[node] == pytest.approx(due(theirs), rel=1e-9), node
    everything = {name: sum(given[name] for given in credited.values()) for name in due([])}
    assert everything == pytest.approx(due(leases), rel=1e-9)
    assert everything["credit_hours"] > 0, "some nodes have GPUs"


def due(leases: list[dict[str, Any]]) -> dict[str, float]:
    """Return what leases are worth, lease by lease."""
    with_gpu = [(lease, lease["seconds"] * lease["gpus"]) for lease in leases if lease["gpus"]]
    return {
        "gpu_seconds": sum(seconds for _, seconds in with_gpu),
        "cpu_seconds": sum(lease["seconds"] for lease in leases if not lease["gpus"]),
        "credit_hours": sum(
            seconds / 3600 * peak_flops.PEAK_FLOPS[SHORT[lease["accelerator"]]] / peak_flops.H100_PEAK_FLOPS
            for lease, seconds in with_gpu
        ),
    }


def check_steps(heard: list[int], leases: list[dict[str, Any]]) -> None:
    """Every step was made, and what was charged is the time that they took."""
    assert set(heard) == set(range(1, STEPS + 1)), "every step was heard of"
    charged = sum(lease["seconds"] for lease in leases)
    # Of a lease that is lost the site knows what its last heartbeat said; what came until a sweep found it is lent.
    unheard = sum(lease["ended"] - lease["heard"] for lease in leases if lease["state"] == "lost")
    assert charged >= len(heard) * PACE - unheard - CLOCK
