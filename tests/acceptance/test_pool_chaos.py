"""Agents are killed, frozen, stopped and cut off at random: no job is lost, and no second is charged twice.

`make chaos-pool` does it to twenty agents for five minutes; in the suite it is a few of them and some seconds.
"""

from __future__ import annotations

import os
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest
from chaos import LEASE_SECONDS, PACE, STEPS, books, make_pool, steps
from live import LiveSite, database

AGENTS = int(os.environ.get("CHAOS_AGENTS", "6"))
SECONDS = float(os.environ.get("CHAOS_SECONDS", "12"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
JOBS = int(2 + AGENTS * SECONDS / 10)
"""About as many as keep the pool busy that long: half of the time goes into coming back."""
CLOCK = 0.5
"""Seconds by which a meter and the site's clock may disagree."""


@pytest.mark.timeout(SECONDS + 400)
def test_no_job_is_lost_and_no_second_is_charged_twice(tmp_path: Path) -> None:
    with database(tmp_path) as address:
        site = LiveSite(tmp_path, address)
        site.environment |= {
            "DJANGO_SETTINGS_MODULE": "chaos_site",
            "PYTHONPATH": str(Path(__file__).parent),
            "LEASE_SECONDS": str(LEASE_SECONDS),
        }
        site.manage("migrate", "--verbosity", "0")
        site.start_web()
        pool = make_pool(site, AGENTS, JOBS, SEED)
        try:
            pool.disturb(SECONDS, pause=6 / AGENTS)
            pool.mend(all_of_them=True)
            site.wait(lambda: all_over(site), 60 + SECONDS, "the pool to finish what was asked of it")
        finally:
            pool.stop()
            site.stop_all()
        check(site, books(site))
        print(f"{JOBS} jobs, {AGENTS} agents, {SECONDS:g} s: {dict(pool.done)}")  # noqa: T201


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


def check_times(leases: list[dict[str, Any]]) -> None:
    """One node after the other, each charged for no longer than it had the job."""
    for before, after in pairwise(leases):
        assert before["ended"] <= after["began"], "no two nodes have a job at once"
    for lease in leases:
        assert lease["state"] != "active"
        assert 0 <= lease["seconds"] <= lease["ended"] - lease["began"] + CLOCK


def check_steps(heard: list[int], leases: list[dict[str, Any]]) -> None:
    """Every step was made, and what was charged is the time that they took."""
    assert set(heard) == set(range(1, STEPS + 1)), "every step was heard of"
    charged = sum(lease["seconds"] for lease in leases)
    # Of a node that is killed the site knows what its last heartbeat said, a quarter of a lease ago at most.
    unheard = len(leases) * LEASE_SECONDS / 4
    assert charged >= len(heard) * PACE - unheard - CLOCK
