"""The simulation: events in the order of time, each handled by the site's own code on a throwaway database.

The card does what a node does: it polls, trains, scores, answers a stop request with a checkpoint, and goes away for
two hours a week. The tasks are those of the site's schedule, run after each event and every four hours instead of
every few seconds. Not simulated: tracing (the track trains `main` itself), the monthly runs, entries, failures.
"""

from __future__ import annotations

import heapq
import math
import random
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from django.conf import settings
from django.core.cache import cache
from django.test.utils import override_settings
from django.utils.module_loading import import_string

from benchmarks.pool_simulation.clock import VirtualClock, virtual_time
from benchmarks.pool_simulation.database import throwaway_database
from dailytrain import schedule
from dailytrain.schedule import CRON_TASKS, INTERVAL_TASKS
from leaderboard import run_jobs
from leaderboard.broker import BROKER_DOWN
from leaderboard.models import Run, Season, Track
from leaderboard.schedule import ladder
from leaderboard.schedule.track_templates import TEMPLATES
from scheduler import leases, storage, uploads
from scheduler.models import Blob, Job, Lease, Node, Sweep
from scheduler.node_api import polls
from trainer import protocol
from trainer.accounting.budget import Budget
from trainer.protocol.files import RUN_FILE

TEMPLATE = "night-h100"
HOUR, DAY = 3600.0, 86_400.0
INTERRUPTION_SECONDS = 2 * HOUR
"""Once a week. Assumed, as the other durations of the card."""
NETWORK = 1e8
"""Bytes per second."""
START_SECONDS = 300.0
"""From the lease to the first step: download, data, compilation."""
STOP_SECONDS = 105.0
"""From a due night to the written checkpoint of the run that yields: the task, the next heartbeat, the save."""
EVALUATION_SHARE = 0.01
"""Evaluations in addition to the training time that a budget counts."""
TASKS = (
    "scheduler.tasks.expire_leases",
    "leaderboard.tasks.store_configurations",
    "leaderboard.tasks.start_late_nights",
    "leaderboard.tasks.fill_ladders",
    "scheduler.tasks.make_room",
)
TASK_SECONDS = 15.0
"""From an event to the tasks that react to it."""
IDLE_SECONDS = 4 * HOUR
"""Between two rounds of the tasks without an event."""
MODELS = {
    "trainer/models/__init__.py": 'ARCHITECTURES = {"gpt": "trainer.models.gpt"}\n',
    "trainer/models/gpt.py": "class Model:\n    pass\n",
}
GIT = ("git", "-c", "user.name=main", "-c", "user.email=main@localhost", "-c", "commit.gpgsign=false")
SCORE = {
    "bits_per_byte": 0.8,
    "nats_per_token": 2.5,
    "stderr": 0.001,
    "tokens": 2_000_000,
    "bytes": 9_000_000,
    "documents": 2000,
    "arch": "gpt",
    "parameters": 1_384_125_298,
    "train_flops": 4e19,
    "train_seconds": 75_600.0,
    "step": 1,
    "checks": {"look_ahead": {"nats_per_token": 0.0, "stderr": 1e-6, "is_beyond_rounding": False}},
    "suite": {},
    "suite_missing": [],
}
SELF_TEST = {
    "version": 1,
    "sandbox": "bubblewrap",
    "device": "cuda",
    "gpus": 1,
    "loss": 5.0,
    "bits_per_byte": 3.0,
    "train_seconds": 10.0,
    "score_seconds": 10.0,
}
RESULTS: dict[str, dict[str, Any]] = {"score": SCORE, "self_test": SELF_TEST}
"""What jobs without a run report."""


@dataclass
class Work:
    """A lease of the card."""

    lease: int
    job: Job
    first_step_at: float
    end_at: float
    done_before: float
    """Seconds of its budget before this lease."""
    upload_every: float | None
    """Seconds between two uploaded checkpoints; None: it has none."""

    def compute_done(self, now: float) -> float:
        return self.done_before + max(now - self.first_step_at, 0.0) / (1 + EVALUATION_SHARE)

    def compute_saved(self, now: float) -> float:
        """Return the seconds of its budget up to the last checkpoint that has arrived at the site."""
        if self.upload_every is None:
            return self.done_before
        sent = math.floor(max(now - self.first_step_at, 0.0) / self.upload_every)
        return self.compute_done(self.first_step_at + sent * self.upload_every)


@dataclass
class Figures:
    nights_due: int = 0
    """Nights on which `main` had moved."""
    nights_started: int = 0
    hours_late_at_most: float = 0.0
    """From the time at which a night was due to its first lease, without the time in which the card was away."""
    nights_late: int = 0
    """By more than an hour."""
    ladder_full_day: int | None = None
    """Day on which the last run of the ladder was scored."""
    ladder_done: str = ""
    hours_lost: float = 0.0
    """Hours of training and scoring that were repeated."""
    hours_lost_at_once: float = 0.0

    def build_report(self) -> dict[str, Any]:
        return {name: round(value, 2) if isinstance(value, float) else value for name, value in asdict(self).items()}


class Simulation:
    def __init__(self, clock: VirtualClock, days: int, moves_a_week: int, seed: int, main: Path) -> None:
        self.clock, self.horizon, self.moves, self.main = clock, days * DAY, moves_a_week, main
        self.track = create_track()
        self.blob = storage.store_bytes(b"a file")
        self.run_file = storage.store_bytes(b'{"format": 1, "arch": "gpt"}')
        self.hardware = build_hardware()
        self.node = create_node(self.hardware)
        self.is_online = True
        self.work: Work | None = None
        self.shas: dict[int, str] = {}
        """Commits of main by the day of the night that is to train them."""
        self.figures = Figures()
        self.away = list(draw_interruptions(days, seed))
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def schedule(self, time: float, callback: Callable[[], None]) -> None:
        if time < self.horizon:
            self._number += 1
            heapq.heappush(self._events, (time, self._number, callback))

    def run(self) -> Figures:
        hour, minute = (float(CRON_TASKS["Nightly run"][1][name]) for name in ("hour", "minute"))
        self.due = hour * HOUR + minute * 60
        Sweep.objects.create(pk=1, at=self.clock.now)
        days = math.ceil(self.horizon / DAY)
        for day in range(days):
            if day == 0 or day % 7 < self.moves:  # the first ones of each week
                self.schedule(day * DAY + self.due - HOUR, partial(self.move_main, day))
            self.schedule(day * DAY + self.due, self.start_night)
        for begin, end in self.away:
            self.schedule(begin, self.leave)
            self.schedule(end, self.come_back)
        self.schedule(1.0, self.wait)
        while self._events:
            self.clock.seconds, _, callback = heapq.heappop(self._events)
            callback()
        self.clock.seconds = self.horizon
        return self.summarize()

    # --- the site -----------------------------------------------------------------------------------------------------

    def move_main(self, day: int) -> None:
        self.shas[day] = commit(self.main, f"Day {day}")

    def start_night(self) -> None:
        import_string(CRON_TASKS["Nightly run"][0])()
        self.react()

    def react(self) -> None:
        self.schedule(self.clock.seconds + TASK_SECONDS, self.run_tasks)

    def wait(self) -> None:
        self.run_tasks()
        self.schedule(self.clock.seconds + IDLE_SECONDS, self.wait)

    def run_tasks(self) -> None:
        """Run the periodic tasks and what follows from them: a stop request, a job for the free card."""
        Sweep.objects.update(at=self.clock.now - timedelta(seconds=10))
        scheduled = {task for task, _ in INTERVAL_TASKS.values()}
        for task in TASKS:
            if task in scheduled:
                import_string(task)()
        if self.figures.ladder_full_day is None:
            progress = ladder.get_ladder_progress(self.load_track())
            if progress.wanted and progress.is_full:
                self.figures.ladder_full_day = math.ceil(self.clock.seconds / DAY)
        if self.work is None:
            self.poll()
        elif self.work.upload_every and Job.objects.filter(pk=self.work.job.pk).exclude(stop_requested="").exists():
            work, self.work.end_at = self.work, 0.0  # it does not end by itself any more
            self.work.upload_every = None
            saved_at = self.clock.seconds + STOP_SECONDS - TASK_SECONDS
            upload = self.track.get_checkpoint_sizes().checkpoint / NETWORK
            self.schedule(saved_at + upload, partial(self.hand_back, work, work.compute_done(saved_at)))

    def load_track(self) -> Track:
        return Track.objects.select_related("season__baseline").get(pk=self.track.pk)

    # --- the card -----------------------------------------------------------------------------------------------------

    def poll(self) -> None:
        if not self.is_online or self.work is not None:
            return
        reply = polls.answer_poll(Node.objects.get(pk=self.node.pk), protocol.Poll(hardware=self.hardware, lanes=1))
        Node.objects.update(last_seen=VirtualClock.to_datetime(2 * self.horizon))
        if reply.lease is not None:
            self.begin(reply.lease.lease)

    def begin(self, pk: int) -> None:
        self.extend_lease(pk)
        lease = Lease.objects.select_related("job").get(pk=pk)
        job, now = lease.job, self.clock.seconds
        if job.kind in RESULTS:
            end = now + job.expected_seconds
            self.work = Work(pk, job, now, end, 0.0, None)
        else:
            run = Run.objects.with_entry().get(job=job)
            last = job.checkpoints.uploaded().last()
            done = float(last.step) if last else 0.0
            download = self.track.get_checkpoint_sizes().checkpoint / NETWORK if last else 0.0
            first_step = now + START_SECONDS + download
            trained = first_step + (Budget.parse(run.budget).amount - done) * (1 + EVALUATION_SHARE)
            self.work = Work(pk, job, first_step, trained, done, get_upload_interval(run))
            end = trained + self.track.get_checkpoint_sizes().final / NETWORK
        self.schedule(end, partial(self.finish, self.work))

    def extend_lease(self, pk: int) -> None:
        """Keep the lease without a heartbeat for each of its minutes."""
        Lease.objects.filter(pk=pk).update(expires_at=VirtualClock.to_datetime(2 * self.horizon))

    def finish(self, work: Work) -> None:
        if work is not self.work or not work.end_at:
            return
        lease = self.load_lease(work)
        result = RESULTS.get(work.job.kind, {})
        files: tuple[protocol.FileRef, ...] = ()
        if work.job.kind not in RESULTS:
            step = int(Run.objects.with_entry().get(job=work.job).expected_seconds)
            self.record_checkpoint(lease, step)
            lease.uploads.add(self.run_file)
            result, files = {"step": step}, (storage.build_file_reference(self.run_file, RUN_FILE),)
        leases.finish_lease(lease, self.build_end(work, outcome="done", result=result, files=files))
        self.end(work)

    def hand_back(self, work: Work, done: float) -> None:
        if work is self.work:
            lease = self.load_lease(work)
            if done > work.done_before:
                self.record_checkpoint(lease, int(done))
            leases.finish_lease(lease, self.build_end(work, outcome="released", reason="A stop was requested."))
            self.end(work)

    def build_end(self, work: Work, **fields: Any) -> protocol.FinishLease:
        return protocol.FinishLease(seconds=max(self.clock.seconds - work.first_step_at, 0.0), **fields)

    def end(self, work: Work) -> None:
        self.work = None
        self.poll()  # at once, as a node does; the site's tasks follow
        self.react()

    def record_checkpoint(self, lease: Lease, step: int) -> None:
        lease.uploads.add(self.blob)
        file = storage.build_file_reference(self.blob, "checkpoints/model.safetensors")
        uploads.record_checkpoint(lease, protocol.Checkpoint(step=step, files=(file,)))

    def load_lease(self, work: Work) -> Lease:
        return Lease.objects.select_related("job", "node").get(pk=work.lease)

    def leave(self) -> None:
        """Go away: what has not arrived at the site is lost, and the site notices when the lease expires."""
        self.is_online = False
        Node.objects.update(last_seen=self.clock.now)
        if (work := self.work) is not None:
            lease, now = self.load_lease(work), min(self.clock.seconds, work.end_at or math.inf)
            leases.renew_lease(lease, protocol.Heartbeat(phase="running", seconds=max(now - work.first_step_at, 0.0)))
            saved = work.compute_saved(now)
            if saved > work.done_before:
                self.record_checkpoint(lease, int(saved))
            lost = (work.compute_done(now) - saved) / HOUR
            self.figures.hours_lost += lost
            self.figures.hours_lost_at_once = max(self.figures.hours_lost_at_once, lost)
            self.work = None
        self.schedule(self.clock.seconds + 61 + TASK_SECONDS, self.run_tasks)

    def come_back(self) -> None:
        self.is_online = True
        self.poll()
        self.react()

    # --- the figures --------------------------------------------------------------------------------------------------

    def summarize(self) -> Figures:
        figures, starts = self.figures, self.list_starts()
        figures.nights_due = len(self.shas)
        for day, sha in self.shas.items():
            if (start := starts.get(sha)) is None:
                continue
            figures.nights_started += 1
            due = day * DAY + self.due
            away = sum(max(min(end, start) - max(begin, due), 0.0) for begin, end in self.away)
            late = (start - due - away) / HOUR
            figures.hours_late_at_most = max(figures.hours_late_at_most, late)
            figures.nights_late += late > 1
        progress = ladder.get_ladder_progress(self.load_track())
        figures.ladder_done = f"{progress.done} of {progress.wanted}"
        return figures

    def list_starts(self) -> Mapping[str, float]:
        """Return the time of the first lease of each commit's nightly run."""
        rows = Lease.objects.filter(job__run__purpose=Run.Purpose.NIGHTLY).order_by("-started_at")
        zero = VirtualClock.to_datetime(0)
        return {
            sha: (started - zero).total_seconds()
            for sha, started in rows.values_list("job__run__entry__sha", "started_at")
        }


def draw_interruptions(days: int, seed: int) -> Iterator[tuple[float, float]]:
    """Yield one interruption of each week, at a random time."""
    rng = random.Random(seed)
    for week in range(math.ceil(days / 7)):
        begin = week * 7 * DAY + rng.uniform(0, 7 * DAY - INTERRUPTION_SECONDS)
        yield begin, begin + INTERRUPTION_SECONDS


def get_upload_interval(run: Run) -> float:
    """Return the seconds between two checkpoints that are sent: at the first one after the run's interval."""
    every = run_jobs.get_checkpoint_seconds(run)
    return math.ceil(max(run_jobs.get_upload_seconds(run) or 0.0, every) / every) * every


def create_track() -> Track:
    season = Season.objects.create(
        name="Simulated", corpus="fineweb-edu", tokenizer="bpe:32768", dataset_hash="d" * 64, active=True
    )
    values = TEMPLATES[TEMPLATE] | {"monthly": 0, "is_traced": False}
    return Track.objects.create(slug=TEMPLATE, season=season, **values)


def build_hardware() -> protocol.Hardware:
    gpu = {"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 85 * 10**9}
    return protocol.Hardware(
        hostname="card",
        platform="Linux",
        python="3.11",
        cpus=32,
        memory_bytes=256 * 2**30,
        disk_free_bytes=2 * 10**12,
        gpus=(gpu["name"],),
        gpu_details=(gpu,),
        sandboxes=("bubblewrap",),
        network_bytes_per_second=NETWORK,
        found_labels=("1xh100", "1x80gb"),
    )


def create_node(hardware: protocol.Hardware) -> Node:
    return Node.objects.create(
        name="card",
        state=Node.State.ONLINE,
        trusted=True,
        labels=sorted(hardware.found_labels),
        hardware=hardware.model_dump(mode="json"),
        token_hash="0" * 64,
    )


def commit(main: Path, message: str) -> str:
    run_git(main, "add", "--all")
    run_git(main, "commit", "--quiet", "--allow-empty", "-m", message)
    return run_git(main, "rev-parse", "HEAD")


def run_git(main: Path, *arguments: str) -> str:
    return subprocess.run([*GIT, *arguments], cwd=main, capture_output=True, text=True, check=True).stdout.strip()


@contextmanager
def simulated_site() -> Iterator[Path]:
    """Use a throwaway database, folders and `main`; yield the repository."""
    with TemporaryDirectory() as folder:
        main = Path(folder) / "main"
        for name, source in MODELS.items():
            (main / name).parent.mkdir(parents=True, exist_ok=True)
            (main / name).write_text(source)
        run_git(main, "init", "--quiet", "-b", "main")
        own = {"JOB_KINDS": settings.JOB_KINDS, "MAIN_REPOSITORY": str(main), "MAIN_BRANCH": "main"}
        caches = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
        with throwaway_database("leaderboard"):
            release = storage.store_bytes(b"a release")
            with (
                override_settings(**own, CACHES=caches, REPOSITORIES=Path(folder) / "mirrors"),
                patch.object(storage, "store_release", lambda: Blob.objects.get(pk=release.pk)),  # reads all sources
            ):
                cache.set(BROKER_DOWN, True, None)
                schedule.install()
                yield main


def simulate(days: int, moves_a_week: int, seed: int) -> Figures:
    """Run a simulation. The same seed gives the same figures."""
    with simulated_site() as main, virtual_time() as clock:
        return Simulation(clock, days, moves_a_week, seed, main).run()
