"""The simulation's loop: events in the order of time, each handled by the site's own code.

Bytes and the heartbeats between two events are not simulated: until a node falls silent, its `last_seen` and its
lease's expiry lie far ahead. Uploads take no time. A checkpoint is recorded when a lease ends.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from django.conf import settings

from benchmarks.pool_simulation.clock import VirtualClock, virtual_time
from benchmarks.pool_simulation.database import throwaway_database
from benchmarks.pool_simulation.nodes import DAY, HOUR, SimulatedNode, create_pool, extend_burst
from benchmarks.pool_simulation.statistics import Ledger, Outcome, summarize_outcome
from benchmarks.pool_simulation.workload import (
    NIGHTLY,
    REQUESTED_CLASSES,
    SCORE,
    SCORED_CLASSES,
    JobClass,
    JobGenerator,
    SimulatedJob,
)
from scheduler import job_groups, lease_sweeper, leases, node_slots, preemption, storage, uploads
from scheduler.matching import SELF_TEST_KIND
from scheduler.models import Job, Lease, Node, Sweep
from scheduler.node_api import polls
from trainer import protocol

SWEEP_SECONDS = 1200.0
"""Between two sweeps and polls of idle nodes; on a real site both are every few seconds."""
NIGHTLY_AT = 2 * HOUR
PREPARE_SECONDS = (60.0, 240.0)
"""Range of the time from the lease to the first step (download, unpacking, start), which does not count as used."""
FINAL_HEARTBEATS = (85, 30)
"""Seconds before the end of a window or of the owner's limit for one run at which a heartbeat is simulated."""
PASSED_SELF_TEST = protocol.SelfTestResult(
    sandbox="bubblewrap", device="cpu", gpus=0, loss=6.0, bits_per_byte=2.5, train_seconds=2.0, score_seconds=1.0
).model_dump()

Callback = Callable[[], None]


@dataclass
class SimulatedLease:
    machine: SimulatedNode
    lease: int
    job: SimulatedJob
    starts_at: float
    """Time of the first step."""
    speed: float

    def get_seconds_run(self, now: float) -> float:
        return max(0.0, now - self.starts_at)

    def get_work(self, now: float) -> float:
        return min(self.job.done + self.get_seconds_run(now) * self.speed, self.job.work)

    def get_saved_work(self, now: float) -> float:
        """Return the job's work up to its last checkpoint."""
        every = self.job.job_class.checkpoint_hours * HOUR
        return self.job.done + (self.get_seconds_run(now) // every * every * self.speed if every else 0.0)


class Simulation:
    def __init__(self, clock: VirtualClock, nodes: int, days: float, seed: int) -> None:
        self.clock = clock
        self.horizon = days * DAY
        self.rng = random.Random(seed)
        self.ledger = Ledger()
        self.machines = create_pool(nodes, days, self.rng)
        self.by_node = {machine.node: machine for machine in self.machines}
        self.generator = JobGenerator(nodes, self.rng, storage.store_bytes(b"a release"))
        self.runs: dict[int, SimulatedLease] = {}
        """Running jobs by lease id."""
        self.idle_nodes: set[int] = set()
        """Ids of nodes that got no job by their last poll."""
        self.has_new_jobs = False
        """Whether jobs were queued since the idle nodes last polled."""
        self._events: list[tuple[float, int, Callback]] = []
        self._number = 0

    def schedule(self, time: float, callback: Callback) -> None:
        if time < self.horizon:
            self._number += 1
            heapq.heappush(self._events, (time, self._number, callback))

    def run(self, report_progress: Callable[[float], None]) -> None:
        """Process all events."""
        self.start()
        while self._events:
            time, _, callback = heapq.heappop(self._events)
            self.clock.seconds = time
            callback()
            if callback == self.run_maintenance:
                report_progress(time)
        self.clock.seconds = self.horizon
        self.finish_run()

    def start(self) -> None:
        Sweep.objects.create(pk=1, at=self.clock.now)
        for job_class in REQUESTED_CLASSES:
            while self.generator.has_room(job_class):
                self.generator.create_job(job_class, 0.0)
            self.schedule(self.generator.draw_seconds_to_next(job_class), partial(self.request_job, job_class))
        for machine in self.machines:
            for begin, end in machine.lending_times:
                self.schedule(begin, partial(self.open_window, machine, end))
                self.schedule(end, partial(self.close_window, machine))
            self.schedule(self.draw_failure_time(machine), partial(self.fail_node, machine))
        self.schedule(NIGHTLY_AT, self.queue_nightly)
        self.schedule(SWEEP_SECONDS, self.run_maintenance)

    def finish_run(self) -> None:
        """Record the usage of active leases."""
        for run in list(self.runs.values()):
            self.ledger.used += self.horizon - min(run.starts_at, self.horizon)
        for machine in self.machines:
            self.stop_node(machine)
        self.ledger.given_up = Job.objects.filter(state=Job.State.FAILED, cause="infrastructure").count()

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def request_job(self, job_class: JobClass) -> None:
        if self.generator.has_room(job_class):
            self.generator.create_job(job_class, self.clock.seconds)
            self.has_new_jobs = True
        seconds = self.generator.draw_seconds_to_next(job_class)
        self.schedule(self.clock.seconds + seconds, partial(self.request_job, job_class))

    def queue_nightly(self) -> None:
        self.generator.create_job(NIGHTLY, self.clock.seconds)
        self.has_new_jobs = True
        self.schedule(self.clock.seconds + DAY, self.queue_nightly)

    # --- machines -----------------------------------------------------------------------------------------------------

    def open_window(self, machine: SimulatedNode, end: float) -> None:
        extend_burst(machine, end)
        self.start_node(machine)

    def start_node(self, machine: SimulatedNode, abandoned: tuple[int, ...] = ()) -> None:
        if not machine.is_online:
            machine.is_online, machine.online_since = True, self.clock.seconds
            Node.objects.filter(pk=machine.node).update(last_seen=VirtualClock.to_datetime(2 * self.horizon))
        self.poll(machine, abandoned)

    def stop_node(self, machine: SimulatedNode) -> None:
        self.idle_nodes.discard(machine.node)
        if machine.is_online:
            machine.is_online = False
            Node.objects.filter(pk=machine.node).update(last_seen=self.clock.now)
            machine.offered_seconds += self.clock.seconds - machine.online_since

    def close_window(self, machine: SimulatedNode) -> None:
        """End the machine's window. It loses a lease that it has not handed back."""
        if not machine.is_online or self.is_lent(machine):
            return
        if machine.lease is not None:
            self.lose_lease(self.runs[machine.lease], "window")
        self.stop_node(machine)

    def draw_failure_time(self, machine: SimulatedNode) -> float:
        return self.clock.seconds + self.rng.expovariate(1 / machine.hardware.hours_between_failures) * HOUR

    def fail_node(self, machine: SimulatedNode) -> None:
        """Disconnect the machine; it returns after a while."""
        if machine.is_online:
            held = machine.lease
            if held is not None:
                self.lose_lease(self.runs[held], "silence")
            self.stop_node(machine)
            restarts = held is not None and self.rng.random() < 0.5
            downtime = self.rng.uniform(5, 30) if restarts else self.rng.uniform(120, 4 * HOUR)
            self.schedule(
                self.clock.seconds + downtime, partial(self.restore_node, machine, (held,) if restarts and held else ())
            )
        self.schedule(self.draw_failure_time(machine), partial(self.fail_node, machine))

    def restore_node(self, machine: SimulatedNode, abandoned: tuple[int, ...]) -> None:
        if self.is_lent(machine) and not machine.is_online:
            self.start_node(machine, abandoned)

    def is_lent(self, machine: SimulatedNode) -> bool:
        return any(begin <= self.clock.seconds < end for begin, end in machine.lending_times)

    def poll(self, machine: SimulatedNode, abandoned: tuple[int, ...] = ()) -> None:
        """Poll as the machine does, and start its job if it gets one."""
        if not machine.is_online or machine.lease is not None:
            return
        self.idle_nodes.discard(machine.node)
        node = Node.objects.get(pk=machine.node)
        message = machine.message.model_copy(update={"abandoned": abandoned}) if abandoned else machine.message
        reply = polls.answer_poll(node, message)
        if reply.lease is not None:
            lease = Lease.objects.select_related("job", "node").get(pk=reply.lease.lease)
            if lease.job.kind == SELF_TEST_KIND:  # takes no time here
                leases.finish_lease(lease, protocol.FinishLease(outcome="done", result=PASSED_SELF_TEST))
                self.poll(machine)
            else:
                self.start_job(machine, reply.lease)
        elif node.rest_until and node.rest_until > self.clock.now:
            self.schedule(
                (node.rest_until - VirtualClock.to_datetime(0)).total_seconds() + 1, partial(self.poll, machine)
            )
        else:
            self.idle_nodes.add(machine.node)

    def poll_idle_nodes(self) -> None:
        """Let the idle nodes poll again for which there was a job when this began."""
        self.has_new_jobs = False
        queue, idle = job_groups.load_queue(self.clock.now), sorted(self.idle_nodes)
        nodes = Node.objects.in_bulk(idle)
        self.rng.shuffle(idle)
        for pk in idle:
            node_slot = node_slots.build_node_slot(nodes[pk], self.clock.now, slots=1)
            if next(queue.find_fitting(node_slot), None) is not None:
                self.poll(self.by_node[pk])

    # --- leases -------------------------------------------------------------------------------------------------------

    def start_job(self, machine: SimulatedNode, lease: protocol.Lease) -> None:
        self.extend_lease(lease.lease)
        job = self.generator.jobs[protocol.JobSpec.model_validate_json(lease.spec).job]
        now = self.clock.seconds
        if job.wait_seconds is None:
            job.wait_seconds = now - job.queued_at
            self.generator.waiting[job.job_class.name] -= 1
        self.ledger.leases += 1
        machine.lease = lease.lease
        run = SimulatedLease(machine, lease.lease, job, now + self.rng.uniform(*PREPARE_SECONDS), machine.speed)
        self.runs[run.lease] = run
        self.schedule_events(run)

    def schedule_events(self, run: SimulatedLease) -> None:
        job, now = run.job, self.clock.seconds
        end = job.work if job.fails_at is None else job.fails_at
        self.schedule(run.starts_at + max(0.0, end - job.done) / run.speed, partial(self.end_job, run))
        if self.rng.random() < run.machine.failure_rate:
            self.schedule(run.starts_at + self.rng.expovariate(1 / HOUR), partial(self.break_job, run))
        for begin, end in run.machine.lending_times:
            if begin <= now < end:
                for seconds in FINAL_HEARTBEATS:
                    self.schedule(max(now + 1, end - seconds), partial(self.simulate_heartbeat, run))
        if run.machine.max_hours is not None:
            for seconds in FINAL_HEARTBEATS:
                self.schedule(now + run.machine.max_hours * HOUR - seconds, partial(self.simulate_heartbeat, run))

    def is_active(self, run: SimulatedLease) -> bool:
        return self.runs.get(run.lease) is run

    def load_lease(self, run: SimulatedLease) -> Lease:
        return Lease.objects.select_related("job", "node").get(pk=run.lease)

    def send_heartbeat(self, run: SimulatedLease, lease: Lease) -> protocol.HeartbeatReply:
        return leases.renew_lease(
            lease, protocol.Heartbeat(phase="running", seconds=run.get_seconds_run(self.clock.seconds))
        )

    def simulate_heartbeat(self, run: SimulatedLease) -> None:
        """Send a heartbeat. If its reply requests a stop, hand the job back."""
        if self.is_active(run):
            if self.send_heartbeat(run, self.load_lease(run)).stop:
                self.hand_back(run)
            else:
                self.extend_lease(run.lease)

    def extend_lease(self, lease: int) -> None:
        Lease.objects.filter(pk=lease).update(expires_at=VirtualClock.to_datetime(2 * self.horizon))

    def hand_back(self, run: SimulatedLease) -> None:
        """Save a checkpoint, if the job has any, and release the lease."""
        if self.is_active(run):
            work = run.get_work(self.clock.seconds) if run.job.job_class.checkpoint_hours else run.job.done
            self.end_lease(run, "handed back", work, outcome="released", reason="A stop was requested.")
            self.poll(run.machine)

    def end_job(self, run: SimulatedLease) -> None:
        if not self.is_active(run):
            return
        job = run.job
        if job.fails_at is None:
            job.done, job.finished = job.work, True
            self.end_lease(run, "done", outcome="done")
            self.ledger.done += 1
            if job.job_class.name in SCORED_CLASSES:
                self.generator.create_job(SCORE, self.clock.seconds)
                self.has_new_jobs = True
        else:
            self.end_lease(run, "model failed", outcome="failed", cause="model", reason="The loss is not a number.")
            # Otherwise a node of another owner has to agree.
            self.ledger.failed += Job.objects.filter(leases=run.lease, state=Job.State.FAILED).exists()
            self.has_new_jobs = True
        self.poll(run.machine)

    def break_job(self, run: SimulatedLease) -> None:
        if self.is_active(run):
            result = {"outcome": "failed", "cause": "infrastructure", "reason": "The GPU is gone."}
            self.end_lease(run, "node failed", run.get_saved_work(self.clock.seconds), **result)
            self.poll(run.machine)

    def lose_lease(self, run: SimulatedLease, why: str) -> None:
        """End the heartbeats; a sweep ends the lease once it has expired."""
        self.send_heartbeat(run, self.load_lease(run))
        self.end_lease(run, why, run.get_saved_work(self.clock.seconds))
        self.schedule(self.clock.seconds + settings.LEASE_SECONDS + 1, self.sweep_leases)

    def end_lease(self, run: SimulatedLease, why: str, work: float | None = None, **result: Any) -> None:
        """End a lease. `work`: up to the checkpoint of an interrupted job. `result`: what the node reports."""
        lease, job, now = self.load_lease(run), run.job, self.clock.seconds
        if work is not None:
            self.ledger.lost[why] += max(0.0, run.get_seconds_run(now) - max(work - job.done, 0.0) / run.speed)
            if work > job.done:
                uploads.record_checkpoint(lease, protocol.Checkpoint(step=int(work), files=()))
                job.done = work
        if result:
            leases.finish_lease(lease, protocol.FinishLease(seconds=run.get_seconds_run(now), **result))
            self.has_new_jobs = self.has_new_jobs or work is not None
        del self.runs[run.lease]
        run.machine.lease = None
        self.ledger.ends[why] += 1
        self.ledger.used += now - min(run.starts_at, now)

    # --- maintenance --------------------------------------------------------------------------------------------------

    def run_maintenance(self) -> None:
        self.sweep_leases()
        preemption.make_room(self.clock.now)
        for job in Job.objects.filter(state=Job.State.LEASED).exclude(stop_requested=""):
            lease = job.leases.filter(state=Lease.State.ACTIVE).first()
            if lease is not None and lease.pk in self.runs:
                self.hand_back(self.runs[lease.pk])  # as after the next heartbeat
        if self.has_new_jobs:
            self.poll_idle_nodes()
        self.schedule(self.clock.seconds + SWEEP_SECONDS, self.run_maintenance)

    def sweep_leases(self) -> None:
        """Sweep as the site does, ten seconds after its last sweep."""
        now = self.clock.now
        Sweep.objects.filter(pk=1).update(at=now - timedelta(seconds=10))
        if lease_sweeper.sweep_leases(now):
            self.has_new_jobs = True


def simulate(
    nodes: int, days: float, seed: int, report_progress: Callable[[float], None] = lambda seconds: None
) -> Outcome:
    """Run a simulation. `report_progress` gets the simulated seconds. The same seed gives the same outcome."""
    with throwaway_database(), virtual_time() as clock:
        simulation = Simulation(clock, nodes, days, seed)
        simulation.run(report_progress)
        return summarize_outcome(
            simulation.ledger, simulation.machines, list(simulation.generator.jobs.values()), days, seed
        )
