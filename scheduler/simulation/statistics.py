"""What the simulation counts, and what comes of it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from scheduler.simulation.nodes import DAY, HOUR, SimulatedNode
from scheduler.simulation.workload import CLASSES, SimulatedJob

STARVED = 7 * DAY
"""A job that no node has taken after so long has been forgotten: by then its age lifts it above a fresh score."""


@dataclass
class Ledger:
    """Seconds and counts, as they come."""

    used: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds that jobs of a class ran on nodes."""
    used_by_day: dict[tuple[int, str], float] = field(default_factory=lambda: defaultdict(float))
    offered_by_day: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    lost: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Of them, seconds of which nothing was left, by the reason."""
    ends: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Leases by how they ended."""
    leases: int = 0
    done: int = 0
    failed: int = 0
    given_up: int = 0

    def ran(self, asked: SimulatedJob, begin: float, end: float) -> None:
        """A job ran from `begin` to `end`."""
        self.used[asked.sort.name] += end - begin
        for day, seconds in split_by_day(begin, end):
            self.used_by_day[day, asked.sort.name] += seconds

    def was_there(self, begin: float, end: float) -> None:
        """A machine was lent and up from `begin` to `end`."""
        for day, seconds in split_by_day(begin, end):
            self.offered_by_day[day] += seconds


def split_by_day(begin: float, end: float) -> Iterable[tuple[int, float]]:
    """Yield the days that a stretch touches, and the seconds of it in each."""
    while begin < end:
        day = int(begin // DAY)
        until = min(end, (day + 1) * DAY)
        yield day, until - begin
        begin = until


@dataclass(frozen=True)
class Outcome:
    """A simulation, in numbers."""

    days: float
    nodes: int
    seed: int
    utilisation: float
    """Share of the offered hours in which jobs ran."""
    lost_work: float
    """Share of the hours run of which nothing was left."""
    starved: int
    """Jobs that waited for longer than `STARVED`."""
    waits: Mapping[str, tuple[float, ...]]
    """Hours until a node first took it, by class, sorted; of those that still wait, hours so far."""
    jobs_done: int
    jobs_failed: int
    """By their models' fault."""
    given_up: int
    """Jobs that infrastructure broke too often."""
    leases: int
    ends: Mapping[str, int]
    lost_by_reason: Mapping[str, float]
    """As a share of the hours run."""
    used_by_day: Mapping[str, tuple[float, ...]]
    """By class: share of the hours offered on each day."""
    authors: tuple[tuple[float, float], ...]
    """Hours of an RTX 3090 asked for and got, of each author, those who asked for least first."""
    fairness: float
    """Jain's index of what authors got over their max-min fair share; 1 is fair."""

    def wait(self, name: str, share: float) -> float:
        """Return the hours within which so many of a class were taken."""
        return compute_quantile(self.waits[name], share)

    def report(self) -> dict[str, object]:
        """Return what `--json` prints."""
        return {
            "utilisation": round(self.utilisation, 4),
            "lost_work": round(self.lost_work, 5),
            "starved": self.starved,
            "wait_p95_hours": {name: round(self.wait(name, 0.95), 2) for name in self.waits},
            "jobs_done": self.jobs_done,
        }


def summarize_outcome(
    books: Ledger, machines: Collection[SimulatedNode], asked: Collection[SimulatedJob], days: float, seed: int
) -> Outcome:
    """Sum up."""
    now, ran = days * DAY, sum(books.used.values())
    offered = sum(machine.offered_seconds for machine in machines)
    waits = {name: sorted(get_wait_hours(job, now) for job in asked if job.sort.name == name) for name in CLASSES}
    authors = sorted(sum_author_hours(asked))
    return Outcome(
        days=days,
        nodes=len(machines),
        seed=seed,
        utilisation=ran / offered if offered else 0.0,
        lost_work=sum(books.lost.values()) / ran if ran else 0.0,
        starved=sum(get_wait_hours(job, now) > STARVED / HOUR for job in asked),
        waits={name: tuple(found) for name, found in waits.items() if found},
        jobs_done=books.done,
        jobs_failed=books.failed,
        given_up=books.given_up,
        leases=books.leases,
        ends=dict(sorted(books.ends.items())),
        lost_by_reason={reason: seconds / ran for reason, seconds in sorted(books.lost.items())},
        used_by_day=compute_daily_shares(books, math.ceil(days)),
        authors=tuple(authors),
        fairness=compute_jain_index(
            [got / fair for (_, got), fair in zip(authors, compute_fair_shares(authors), strict=True) if fair]
        ),
    )


def get_wait_hours(job: SimulatedJob, now: float) -> float:
    return (job.waited if job.waited is not None else now - job.at) / HOUR


def compute_daily_shares(books: Ledger, days: int) -> dict[str, tuple[float, ...]]:
    return {
        name: tuple(
            books.used_by_day[day, name] / offered if (offered := books.offered_by_day[day]) else 0.0
            for day in range(days)
        )
        for name in CLASSES
    }


def compute_quantile(values: Collection[float], share: float) -> float:
    """Return the smallest of the sorted values that `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


# --- fairness ---------------------------------------------------------------------------------------------------------


def sum_author_hours(asked: Collection[SimulatedJob]) -> list[tuple[float, float]]:
    """Return, for each author, hours asked for and hours done, of an RTX 3090. The site itself is no author."""
    wanted: dict[str, float] = defaultdict(float)
    got: dict[str, float] = defaultdict(float)
    for job in asked:
        if not job.sort.core and not job.sort.trusted:
            wanted[job.author] += job.work / HOUR
            got[job.author] += job.done / HOUR
    return [(wanted[author], got[author]) for author in sorted(wanted)]


def compute_fair_shares(authors: Collection[tuple[float, float]]) -> list[float]:
    """Return each author's max-min fair share of what they all got: nobody gets more than asked for, the rest is even.

    `authors` are sorted by what they asked for.
    """
    left, fair = sum(got for _, got in authors), []
    for number, (wanted, _) in enumerate(authors):
        fair.append(min(wanted, left / (len(authors) - number)))
        left -= fair[-1]
    return fair


def compute_jain_index(values: Collection[float]) -> float:
    """Return Jain's fairness index, (sum x)^2 / (n sum x^2) (Jain, Chiu, Hawe 1984, DEC-TR-301, equation 1)."""
    squares = sum(value**2 for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0
