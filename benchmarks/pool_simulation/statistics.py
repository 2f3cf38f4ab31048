"""Counters of the simulation, and its outcome."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from benchmarks.pool_simulation.nodes import DAY, HOUR, SimulatedNode
from benchmarks.pool_simulation.workload import CLASSES, SimulatedJob

STARVED = 7 * DAY
"""A job without a lease after so long counts as starved: its age ranks it above a new scoring job by then."""


@dataclass
class Ledger:
    """Counters."""

    used: float = 0.0
    """Seconds of jobs on nodes."""
    lost: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds whose work was lost, by reason."""
    ends: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Ended leases, by outcome."""
    leases: int = 0
    done: int = 0
    failed: int = 0
    given_up: int = 0


@dataclass(frozen=True)
class Outcome:
    days: float
    nodes: int
    seed: int
    utilization: float
    """Share of the offered hours in which jobs ran."""
    lost_work: float
    """Share of the used hours whose work was lost."""
    starved: int
    """Jobs that waited for longer than `STARVED`."""
    waits: Mapping[str, tuple[float, ...]]
    """Sorted hours until the first lease, by class; of waiting jobs the hours so far."""
    jobs_done: int
    jobs_failed: int
    """Because of their models."""
    given_up: int
    """Jobs that infrastructure failed too often."""
    leases: int
    ends: Mapping[str, int]
    lost_by_reason: Mapping[str, float]
    """Lost hours by reason, as a share of the used hours."""
    authors: tuple[tuple[float, float], ...]
    """Hours of an RTX 3090 requested and received by each author, smallest request first."""
    fairness: float
    """Jain's index of what authors received over their max-min fair share; 1 is fair."""

    def get_wait(self, name: str, share: float) -> float:
        """Return this quantile of a class's waiting times, in hours."""
        return compute_quantile(self.waits[name], share)

    def build_report(self) -> dict[str, object]:
        """Return the content of `--json`."""
        return {
            "utilization": round(self.utilization, 4),
            "lost_work": round(self.lost_work, 5),
            "starved": self.starved,
            "wait_p95_hours": {name: round(self.get_wait(name, 0.95), 2) for name in self.waits},
            "jobs_done": self.jobs_done,
        }


def summarize_outcome(
    ledger: Ledger, machines: Collection[SimulatedNode], jobs: Collection[SimulatedJob], days: float, seed: int
) -> Outcome:
    now, used = days * DAY, ledger.used
    offered = sum(machine.offered_seconds for machine in machines)
    waits = {name: sorted(get_wait_hours(job, now) for job in jobs if job.job_class.name == name) for name in CLASSES}
    authors = sorted(sum_author_hours(jobs))
    return Outcome(
        days=days,
        nodes=len(machines),
        seed=seed,
        utilization=used / offered if offered else 0.0,
        lost_work=sum(ledger.lost.values()) / used if used else 0.0,
        starved=sum(get_wait_hours(job, now) > STARVED / HOUR for job in jobs),
        waits={name: tuple(found) for name, found in waits.items() if found},
        jobs_done=ledger.done,
        jobs_failed=ledger.failed,
        given_up=ledger.given_up,
        leases=ledger.leases,
        ends=dict(sorted(ledger.ends.items())),
        lost_by_reason={reason: seconds / used for reason, seconds in sorted(ledger.lost.items())},
        authors=tuple(authors),
        fairness=compute_jain_index(
            [received / fair for (_, received), fair in zip(authors, compute_fair_shares(authors), strict=True) if fair]
        ),
    )


def get_wait_hours(job: SimulatedJob, now: float) -> float:
    return (job.wait_seconds if job.wait_seconds is not None else now - job.queued_at) / HOUR


def compute_quantile(values: Collection[float], share: float) -> float:
    """Return the smallest of the sorted values that `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


# --- fairness ---------------------------------------------------------------------------------------------------------


def sum_author_hours(jobs: Collection[SimulatedJob]) -> list[tuple[float, float]]:
    """Return each author's requested and received hours of an RTX 3090, without the site's own jobs."""
    requested: dict[str, float] = defaultdict(float)
    received: dict[str, float] = defaultdict(float)
    for job in jobs:
        if not job.job_class.core and not job.job_class.trusted:
            requested[job.author] += job.work / HOUR
            received[job.author] += job.done / HOUR
    return [(requested[author], received[author]) for author in sorted(requested)]


def compute_fair_shares(authors: Collection[tuple[float, float]]) -> list[float]:
    """Return each author's max-min fair share of all received hours. `authors` are sorted by their requests."""
    left, fair = sum(received for _, received in authors), []
    for number, (requested, _) in enumerate(authors):
        fair.append(min(requested, left / (len(authors) - number)))
        left -= fair[-1]
    return fair


def compute_jain_index(values: Collection[float]) -> float:
    """Return Jain's fairness index, (sum x)^2 / (n sum x^2) (Jain, Chiu, Hawe 1984, DEC-TR-301, equation 1)."""
    squares = sum(value**2 for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0
