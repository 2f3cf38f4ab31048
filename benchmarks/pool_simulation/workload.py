"""The synthetic workload: which jobs are requested, by whom, and how often. All numbers are invented.

Full load: authors request more than the pool can do, but none while `max_waiting` jobs wait.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from benchmarks.pool_simulation.clock import VirtualClock
from benchmarks.pool_simulation.nodes import DAY, GB, HOUR
from scheduler.models import Blob, Job

AUTHORS = 60
LIMITS = {"wall_seconds": 1e6, "memory_bytes": GB, "disk_bytes": GB, "processes": 64}
Priority = Job.Priority


@dataclass(frozen=True)
class JobClass:
    name: str
    priority: int
    hours: float
    """Median duration on one RTX 3090, or on as many as it needs."""
    spread: float
    """Standard deviation of the logarithm."""
    jobs_per_day: float
    """Requested per day and node of the pool."""
    max_waiting: float
    """Waiting jobs per node of the pool from which on authors request no more."""
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
"""Once a day at 02:00 UTC: 23 hours of an H100."""
SCORE = JobClass("score", Priority.SCORE, 0.1, 0.3, 0, 1, trusted=True, checkpoint_hours=0)
"""After every finished job of `SCORED_CLASSES`."""
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
CLASSES = {job_class.name: job_class for job_class in (NIGHTLY, SCORE, *REQUESTED_CLASSES)}


@dataclass
class SimulatedJob:
    """A job, with properties that the pool does not know."""

    job_class: JobClass
    author: str
    queued_at: float
    work: float
    """Its true duration in seconds on one RTX 3090."""
    fails_at: float | None
    """Work after which the model fails; None: it does not fail."""
    done: float = 0.0
    """Work up to the last checkpoint."""
    wait_seconds: float | None = None
    """Seconds until its first lease."""
    finished: bool = False


class JobGenerator:
    def __init__(self, nodes: int, rng: random.Random, release: Blob) -> None:
        self.nodes = nodes
        self.rng = rng
        self.release = release
        self.jobs: dict[int, SimulatedJob] = {}
        self.waiting: dict[str, int] = dict.fromkeys(CLASSES, 0)
        """Jobs of each class without a lease so far."""

    def draw_seconds_to_next(self, job_class: JobClass) -> float:
        """Return the seconds until the next request for such a job (Poisson process)."""
        return self.rng.expovariate(job_class.jobs_per_day * self.nodes) * DAY

    def has_room(self, job_class: JobClass) -> bool:
        return self.waiting[job_class.name] < max(1, job_class.max_waiting * self.nodes)

    def create_job(self, job_class: JobClass, now: float) -> None:
        work = job_class.hours * HOUR * self.rng.lognormvariate(0, job_class.spread)
        author = "site" if job_class.core else self.draw_author()
        row = Job.objects.create(
            kind="score" if job_class.trusted else "train",
            priority=job_class.priority,
            impact=self.rng.choice(job_class.impacts),
            expected_seconds=job_class.hours * HOUR,
            author=author,
            needs_trusted=job_class.trusted,
            needs_disk_bytes=job_class.disk_gb * GB,
            needs_gpus=job_class.gpus,
            needs_gpu_memory_bytes=job_class.memory_gb * GB,
            track=job_class.track,
            from_core=job_class.core,
            checkpoint_seconds=job_class.checkpoint_hours * HOUR,
            preemptible=job_class.preemptible,
            release=self.release,
            limits=LIMITS,
            queued_at=VirtualClock.to_datetime(now),
            state_since=VirtualClock.to_datetime(now),
        )
        fails_at = self.rng.uniform(0, work) if self.rng.random() < 0.02 else None
        self.jobs[row.pk] = SimulatedJob(job_class, author, now, work, fails_at)
        self.waiting[job_class.name] += 1

    def draw_author(self) -> str:
        """Return an author: few request many jobs, many request few (Zipf)."""
        number = self.rng.choices(range(AUTHORS), [1 / (number + 1) for number in range(AUTHORS)])[0]
        return f"author-{number:02}"
