"""The synthetic stream of jobs: what is asked for, by whom, and how often. All of it invented.

Full load: more is asked for than the pool can do, and people who see a long queue before them do not join it, so
that it stays about as long as `most_waiting` says.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from scheduler.models import Blob, Job
from scheduler.simulation.clock import VirtualClock
from scheduler.simulation.nodes import DAY, GB, HOUR

AUTHORS = 60
LIMITS = {"wall_seconds": 1e6, "memory_bytes": GB, "disk_bytes": GB, "processes": 64}
Priority = Job.Priority


@dataclass(frozen=True)
class JobClass:
    """Jobs of one sort."""

    name: str
    priority: int
    hours: float
    """Of the typical one, on one RTX 3090 (or on as many as it needs)."""
    spread: float
    """Standard deviation of the logarithm."""
    a_day: float
    """Asked for each day, for each node of the pool."""
    most_waiting: float
    """Of these jobs, for each node of the pool: with more in the queue nobody asks for another."""
    gpus: int = 0
    memory_gb: int = 0
    disk_gb: int = 50
    checkpoint_hours: float = 0.5
    track: str = ""
    core: bool = False
    trusted: bool = False
    preemptible: bool = False
    impacts: tuple[int, ...] = (0,)


NIGHTLY = JobClass("nightly", Priority.NIGHTLY, 23 * 13.9, 0, 0, 1, gpus=1, memory_gb=80, disk_gb=500, core=True)
"""Once a day, at two. The hours are an H100's 23."""
SCORE = JobClass("score", Priority.SCORE, 0.1, 0.3, 0, 1, trusted=True, checkpoint_hours=0)
"""After every training of the classes in `SCORED`."""
SCORED_CLASSES = ("nightly", "confirmation", "community", "big")
REQUESTED_CLASSES = (
    JobClass("confirmation", Priority.CONFIRMATION, 26, 0.2, 0.004, 0.01, gpus=1, memory_gb=80, core=True),
    JobClass("maintainers", Priority.MAINTAINER, 4, 0.6, 0.02, 0.02, gpus=1, memory_gb=24, core=True),
    JobClass("community", Priority.COMMUNITY, 14, 0.7, 2, 0.6, gpus=1, memory_gb=16, impacts=(0, 0, 0, 0, 1, 2)),
    JobClass("playground", Priority.COMMUNITY, 3, 0.7, 0.35, 0.2, 1, 12, track="playground", preemptible=True),
    JobClass("ci", Priority.COMMUNITY, 0.25, 0.3, 0.2, 0.1, gpus=1, memory_gb=16, checkpoint_hours=0),
    JobClass("pair", Priority.COMMUNITY, 8, 0.4, 0.4, 0.1, gpus=2, memory_gb=24, disk_gb=150),
    JobClass("big", Priority.COMMUNITY, 44, 0.4, 0.1, 0.03, gpus=4, memory_gb=80, disk_gb=400),
    JobClass("ladder", Priority.LADDER, 2, 0.8, 0.25, 0.2),
)
CLASSES = {sort.name: sort for sort in (NIGHTLY, SCORE, *REQUESTED_CLASSES)}


@dataclass
class SimulatedJob:
    """A job, and what the pool does not know of it."""

    job: int
    sort: JobClass
    author: str
    at: float
    work: float
    """Seconds on one RTX 3090 that it really takes."""
    breaks_at: float | None
    """Work after which the model fails; None: it is sound."""
    done: float = 0.0
    """Work up to the last checkpoint."""
    waited: float | None = None
    """Seconds until a node first took it."""
    finished: bool = False


class JobGenerator:
    """Makes the jobs of the simulation."""

    def __init__(self, nodes: int, draw: random.Random, release: Blob) -> None:
        self.nodes = nodes
        self.draw = draw
        self.release = release
        self.asked: dict[int, SimulatedJob] = {}
        self.waiting: dict[str, int] = dict.fromkeys(CLASSES, 0)
        """Jobs of each class that no node has taken yet."""

    def until_next(self, sort: JobClass) -> float:
        """Return the seconds until somebody next wants such a job."""
        return self.draw.expovariate(sort.a_day * self.nodes) * DAY

    def joins(self, sort: JobClass) -> bool:
        return self.waiting[sort.name] < max(1, sort.most_waiting * self.nodes)

    def make(self, sort: JobClass, now: float) -> SimulatedJob:
        """Queue a job of this class."""
        work = sort.hours * HOUR * self.draw.lognormvariate(0, sort.spread)
        author = "site" if sort.core else self.author()
        row = Job.objects.create(
            kind="score" if sort.trusted else "train",
            priority=sort.priority,
            impact=self.draw.choice(sort.impacts),
            expected_seconds=get_expected_seconds(sort),
            author=author,
            needs_trusted=sort.trusted,
            needs_disk_bytes=sort.disk_gb * GB,
            needs_gpus=sort.gpus,
            needs_gpu_memory_bytes=sort.memory_gb * GB,
            track=sort.track,
            from_core=sort.core,
            checkpoint_seconds=sort.checkpoint_hours * HOUR,
            preemptible=sort.preemptible,
            release=self.release,
            limits=LIMITS,
            queued_at=VirtualClock.at(now),
            state_since=VirtualClock.at(now),
        )
        breaks = self.draw.uniform(0, work) if self.draw.random() < 0.02 else None
        self.asked[row.pk] = made = SimulatedJob(row.pk, sort, author, now, work, breaks)
        self.waiting[sort.name] += 1
        return made

    def author(self) -> str:
        """Return who asks: few ask for much, many for little (Zipf)."""
        number = self.draw.choices(range(AUTHORS), [1 / (number + 1) for number in range(AUTHORS)])[0]
        return f"author-{number:02}"


def get_expected_seconds(sort: JobClass) -> float:
    """Return how long such a job is said to take: its track's word, the same for all of them."""
    return sort.hours * HOUR
