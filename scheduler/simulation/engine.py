"""The simulation's loop: events in the order of time, each handled by the site's own code.

What is not simulated: bytes, and the heartbeats between two events. They would keep the lease of a living node from
running out and the node itself from being taken for gone, so both are stamped far ahead; when it falls silent, with
what its last heartbeat would have left. Uploads take no time. A checkpoint is written down when a lease ends.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from django.conf import settings

from scheduler import job_groups, lease_sweeper, leases, preemption, storage, uploads
from scheduler.models import Job, Lease, Node, Sweep
from scheduler.node_api import polls
from scheduler.simulation.clock import VirtualClock, virtual_time
from scheduler.simulation.database import throwaway_database
from scheduler.simulation.nodes import DAY, HOUR, SimulatedNode, create_pool, extend_burst
from scheduler.simulation.statistics import Ledger, Outcome, summarize_outcome
from scheduler.simulation.workload import (
    NIGHTLY,
    REQUESTED_CLASSES,
    SCORE,
    SCORED_CLASSES,
    JobClass,
    JobGenerator,
    SimulatedJob,
)
from trainer import protocol

SWEEP_SECONDS = 1200.0
"""Between two rounds of sweeping and of waking idle nodes; a real site does both every few seconds."""
NIGHTLY_AT = 2 * HOUR
"""When the nightly train leaves."""
PREPARE_SECONDS = (60.0, 240.0)
"""Seconds from the answer to the first step: fetching, unpacking, starting. Not counted as use."""
FINAL_HEARTBEATS = (85, 30)
"""Seconds before the end of a window, or of what an owner lends to one run, at which a heartbeat is simulated."""

Callback = Callable[[], None]


@dataclass
class SimulatedLease:
    """A lease in a machine's hands."""

    machine: SimulatedNode
    lease: int
    asked: SimulatedJob
    begins: float
    """When the first step is made."""
    speed: float

    def ran(self, now: float) -> float:
        return max(0.0, now - self.begins)

    def work(self, now: float) -> float:
        """Return the work behind the job, were it saved now."""
        return min(self.asked.done + self.ran(now) * self.speed, self.asked.work)

    def saved(self, now: float) -> float:
        """Return the work behind the job at its last checkpoint: none but the first where there are none."""
        every = self.asked.sort.checkpoint_hours * HOUR
        return self.asked.done + (self.ran(now) // every * every * self.speed if every else 0.0)


class Simulation:
    """A pool, its queue, and what happens to them."""

    def __init__(self, clock: VirtualClock, nodes: int, days: float, seed: int) -> None:
        self.clock = clock
        self.horizon = days * DAY
        self.rng = random.Random(seed)
        self.ledger = Ledger()
        self.machines = create_pool(nodes, days, self.rng)
        self.by_node = {machine.node: machine for machine in self.machines}
        self.generator = JobGenerator(nodes, self.rng, storage.store_bytes(b"a release"))
        self.runs: dict[int, SimulatedLease] = {}
        """By lease."""
        self.parked: dict[int, polls.PollSession] = {}
        """Questions of machines for which there was nothing, by node: as if they were held open."""
        self.has_new_jobs = False
        """Something has come into the queue since the parked machines last asked."""
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
        for sort in REQUESTED_CLASSES:
            while self.generator.joins(sort):
                self.generator.make(sort, 0.0)
            self.schedule(self.generator.until_next(sort), partial(self.request_job, sort))
        for machine in self.machines:
            for begin, end in machine.offered:
                self.schedule(begin, partial(self.open_window, machine, end))
                self.schedule(end, partial(self.close_window, machine))
            self.schedule(self.draw_failure_time(machine), partial(self.fail_node, machine))
        self.schedule(NIGHTLY_AT, self.queue_nightly)
        self.schedule(SWEEP_SECONDS, self.run_maintenance)

    def finish_run(self) -> None:
        """Close the books on what still runs."""
        for run in list(self.runs.values()):
            self.ledger.ran(run.asked, min(run.begins, self.horizon), self.horizon)
        for machine in self.machines:
            self.stop_node(machine)
        broken = Job.objects.filter(state=Job.State.FAILED, cause="infrastructure")
        self.ledger.given_up = broken.count()

    # --- what is asked for --------------------------------------------------------------------------------------------

    def request_job(self, sort: JobClass) -> None:
        if self.generator.joins(sort):
            self.generator.make(sort, self.clock.seconds)
            self.has_new_jobs = True
        self.schedule(self.clock.seconds + self.generator.until_next(sort), partial(self.request_job, sort))

    def queue_nightly(self) -> None:
        self.generator.make(NIGHTLY, self.clock.seconds)
        self.has_new_jobs = True
        self.schedule(self.clock.seconds + DAY, self.queue_nightly)

    # --- what machines do ---------------------------------------------------------------------------------------------

    def open_window(self, machine: SimulatedNode, end: float) -> None:
        extend_burst(machine, end)
        self.start_node(machine)

    def start_node(self, machine: SimulatedNode, abandoned: tuple[int, ...] = ()) -> None:
        """It is lent, and up: it asks for work."""
        if not machine.up:
            machine.up, machine.up_since = True, self.clock.seconds
            Node.objects.filter(pk=machine.node).update(last_seen=VirtualClock.at(2 * self.horizon))
        self.poll(machine, abandoned)

    def stop_node(self, machine: SimulatedNode) -> None:
        """It is not lent any more, or not there."""
        self.parked.pop(machine.node, None)
        if machine.up:
            machine.up = False
            Node.objects.filter(pk=machine.node).update(last_seen=self.clock.now)
            machine.offered_seconds += self.clock.seconds - machine.up_since
            self.ledger.was_there(machine.up_since, self.clock.seconds)

    def close_window(self, machine: SimulatedNode) -> None:
        """Its window is over. What it has not handed back by now is lost: its owner turns it off."""
        if not machine.up or self.is_lent(machine):
            return
        if machine.lease is not None:
            self.lose_lease(self.runs[machine.lease], "window")
        self.stop_node(machine)

    def draw_failure_time(self, machine: SimulatedNode) -> float:
        return self.clock.seconds + self.rng.expovariate(1 / machine.hardware.hours_between_failures) * HOUR

    def fail_node(self, machine: SimulatedNode) -> None:
        """Its lid is closed, its network is gone, its container is killed; after a while it is back."""
        if machine.up:
            held = machine.lease
            if held is not None:
                self.lose_lease(self.runs[held], "silence")
            self.stop_node(machine)
            restarts = held is not None and self.rng.random() < 0.5
            away = self.rng.uniform(5, 30) if restarts else self.rng.uniform(120, 4 * HOUR)
            back = self.clock.seconds + away
            self.schedule(back, partial(self.restore_node, machine, (held,) if restarts and held else ()))
        self.schedule(self.draw_failure_time(machine), partial(self.fail_node, machine))

    def restore_node(self, machine: SimulatedNode, abandoned: tuple[int, ...]) -> None:
        if self.is_lent(machine) and not machine.up:
            self.start_node(machine, abandoned)

    def is_lent(self, machine: SimulatedNode) -> bool:
        return any(begin <= self.clock.seconds < end for begin, end in machine.offered)

    def poll(self, machine: SimulatedNode, abandoned: tuple[int, ...] = ()) -> None:
        """It asks what to do, with the site's own answer."""
        if not machine.up or machine.lease is not None:
            return
        self.parked.pop(machine.node, None)
        node = Node.objects.get(pk=machine.node)
        message = machine.message.model_copy(update={"abandoned": abandoned}) if abandoned else machine.message
        session = polls.PollSession(node, message)
        reply = session.check()
        if reply is not None and reply.lease is not None:
            self.start_job(machine, reply.lease)
        elif node.rest_until and node.rest_until > self.clock.now:
            self.schedule((node.rest_until - VirtualClock.at(0)).total_seconds() + 1, partial(self.poll, machine))
        else:
            self.parked[machine.node] = session

    def poll_parked_nodes(self) -> None:
        """Let those parked machines ask again for which there may be something now."""
        self.has_new_jobs = False
        parked = list(self.parked.items())
        self.rng.shuffle(parked)
        for node, session in parked:
            now = self.clock.now
            if next(job_groups.get_queue(now).find_fitting(session.build_node_slot(now)), None) is not None:
                self.poll(self.by_node[node])

    # --- what leases do -----------------------------------------------------------------------------------------------

    def start_job(self, machine: SimulatedNode, lease: protocol.Lease) -> None:
        self.extend_lease(lease.lease)
        asked = self.generator.asked[protocol.JobSpec.model_validate_json(lease.spec).job]
        now = self.clock.seconds
        if asked.waited is None:
            asked.waited = now - asked.at
            self.generator.waiting[asked.sort.name] -= 1
        self.ledger.leases += 1
        machine.lease = lease.lease
        run = SimulatedLease(machine, lease.lease, asked, now + self.rng.uniform(*PREPARE_SECONDS), machine.speed)
        self.runs[run.lease] = run
        self.schedule_events(run)

    def schedule_events(self, run: SimulatedLease) -> None:
        """Put down how this lease will end if nothing comes between."""
        asked, now = run.asked, self.clock.seconds
        ends = asked.work if asked.breaks_at is None else asked.breaks_at
        self.schedule(run.begins + max(0.0, ends - asked.done) / run.speed, partial(self.end_job, run))
        if self.rng.random() < run.machine.flaw:
            self.schedule(run.begins + self.rng.expovariate(1 / HOUR), partial(self.break_job, run))
        for begin, end in run.machine.offered:
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
        return leases.renew_lease(lease, protocol.Heartbeat(phase="running", seconds=run.ran(self.clock.seconds)))

    def simulate_heartbeat(self, run: SimulatedLease) -> None:
        """Send a heartbeat whose reply may ask to stop: then the job is saved and handed back."""
        if not self.is_active(run):
            return
        if self.send_heartbeat(run, self.load_lease(run)).stop:
            self.hand_back(run)
        else:
            self.extend_lease(run.lease)

    def extend_lease(self, lease: int) -> None:
        """Spare a living node the heartbeats that keep its lease."""
        Lease.objects.filter(pk=lease).update(expires_at=VirtualClock.at(2 * self.horizon))

    def hand_back(self, run: SimulatedLease) -> None:
        """The trainer saves where it is, and stops. One that saves nothing loses what it did."""
        if not self.is_active(run):
            return
        lease = self.load_lease(run)
        before = run.asked.done
        if run.asked.sort.checkpoint_hours:
            self.save_checkpoint(run, lease, run.work(self.clock.seconds))
        self.finish_lease(
            run, lease, protocol.FinishLease(outcome="released", reason="It was asked to."), "handed back"
        )
        self.count_lost_work(run, before, "handed back")
        self.poll(run.machine)

    def end_job(self, run: SimulatedLease) -> None:
        """The job is done, or its model fails."""
        if not self.is_active(run):
            return
        lease, asked = self.load_lease(run), run.asked
        if asked.breaks_at is None:
            asked.done, asked.finished = asked.work, True
            self.finish_lease(run, lease, protocol.FinishLease(outcome="done"), "done")
            self.ledger.done += 1
            if asked.sort.name in SCORED_CLASSES:
                self.generator.make(SCORE, self.clock.seconds)
                self.has_new_jobs = True
        else:
            word = protocol.FinishLease(outcome="failed", cause="model", reason="The loss is not a number.")
            self.finish_lease(run, lease, word, "model failed")
            self.ledger.failed += 1
        self.poll(run.machine)

    def break_job(self, run: SimulatedLease) -> None:
        """The machine, not the model, is at fault."""
        if not self.is_active(run):
            return
        lease = self.load_lease(run)
        before = run.asked.done
        self.save_checkpoint(run, lease, run.saved(self.clock.seconds))
        word = protocol.FinishLease(outcome="failed", cause="infrastructure", reason="The GPU is gone.")
        self.finish_lease(run, lease, word, "node failed")
        self.count_lost_work(run, before, "node failed")
        self.poll(run.machine)

    def lose_lease(self, run: SimulatedLease, why: str) -> None:
        """Nothing more is heard of the lease; its time runs out, and a sweep finds it."""
        before = run.asked.done
        lease = self.load_lease(run)
        self.send_heartbeat(run, lease)
        self.save_checkpoint(run, lease, run.saved(self.clock.seconds))
        self.close_lease(run, why)
        self.count_lost_work(run, before, why)
        self.schedule(self.clock.seconds + settings.LEASE_SECONDS + 1, self.sweep_leases)

    def save_checkpoint(self, run: SimulatedLease, lease: Lease, work: float) -> None:
        """The job's last checkpoint is here, if there is a new one."""
        if work > run.asked.done:
            uploads.record_checkpoint(lease, protocol.Checkpoint(step=int(work * 1000), files=()))
            run.asked.done = work

    def finish_lease(self, run: SimulatedLease, lease: Lease, word: protocol.FinishLease, why: str) -> None:
        leases.finish_lease(lease, word.model_copy(update={"seconds": run.ran(self.clock.seconds)}))
        self.close_lease(run, why)
        self.has_new_jobs = self.has_new_jobs or why != "done"

    def close_lease(self, run: SimulatedLease, why: str) -> None:
        now = self.clock.seconds
        del self.runs[run.lease]
        run.machine.lease = None
        self.ledger.ends[why] += 1
        self.ledger.ran(run.asked, min(run.begins, now), now)

    def count_lost_work(self, run: SimulatedLease, before: float, why: str) -> None:
        """Count the seconds that ran and left nothing."""
        self.ledger.lost[why] += max(0.0, run.ran(self.clock.seconds) - (run.asked.done - before) / run.speed)

    # --- the site's own rounds ----------------------------------------------------------------------------------------

    def run_maintenance(self) -> None:
        self.sweep_leases()
        preemption.make_room(self.clock.now)
        for job in Job.objects.filter(state=Job.State.LEASED).exclude(stop_requested=""):
            self.deliver_stop_request(job)
        if self.has_new_jobs:
            self.poll_parked_nodes()
        self.schedule(self.clock.seconds + SWEEP_SECONDS, self.run_maintenance)

    def deliver_stop_request(self, job: Job) -> None:
        """The node that was asked to stop hears of it with its next heartbeat."""
        lease = job.leases.filter(state=Lease.State.ACTIVE).first()
        if lease is not None and lease.pk in self.runs:
            self.hand_back(self.runs[lease.pk])

    def sweep_leases(self) -> None:
        """Sweep as the site does, with its last sweep just past."""
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
            simulation.ledger, simulation.machines, list(simulation.generator.asked.values()), days, seed
        )
