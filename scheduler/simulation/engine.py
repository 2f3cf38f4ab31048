"""The simulation's loop: events in the order of their time, each answered by the site's own code.

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
from django.db.models import BigIntegerField, DateTimeField

from scheduler import job_groups, lease_sweeper, leases, preemption, storage
from scheduler.models import Job, Lease, Node, Sweep
from scheduler.node_api import polls, uploads
from scheduler.prepared import Later, Prepared, PreparedUpdate
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

NODE = Prepared(lambda: Node.objects.filter(pk=Later("node", BigIntegerField())).order_by())
LEASE = Prepared(lambda: Lease.objects.filter(pk=Later("lease", BigIntegerField())).select_related("job", "node"))
KEEP = PreparedUpdate(
    lambda: (
        Lease.objects.filter(pk=Later("lease", BigIntegerField())),
        {"expires_at": Later("until", DateTimeField())},
    )
)
ASKED_TO_STOP = Prepared(lambda: Job.objects.filter(state=Job.State.LEASED).exclude(stop_requested=""))
SWEPT = PreparedUpdate(lambda: (Sweep.objects.filter(pk=1), {"at": Later("at", DateTimeField())}))


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
        self.draw = random.Random(seed)
        self.books = Ledger()
        self.machines = create_pool(nodes, days, self.draw)
        self.by_node = {machine.node: machine for machine in self.machines}
        self.demand = JobGenerator(nodes, self.draw, storage.store_bytes(b"a release"))
        self.runs: dict[int, SimulatedLease] = {}
        """By lease."""
        self.parked: dict[int, polls.Question] = {}
        """Questions of machines for which there was nothing, by node: as if they were held open."""
        self.stirred = False
        """Something has come into the queue since the parked machines last asked."""
        self._events: list[tuple[float, int, Callback]] = []
        self._number = 0

    def at(self, time: float, happening: Callback) -> None:
        if time < self.horizon:
            self._number += 1
            heapq.heappush(self._events, (time, self._number, happening))

    def run(self, told: Callable[[float], None]) -> None:
        """Let all of it happen; `told` hears the seconds that have gone by."""
        self.begin()
        while self._events:
            time, _, happening = heapq.heappop(self._events)
            self.clock.seconds = time
            happening()
            if happening == self.beat:
                told(time)
        self.clock.seconds = self.horizon
        self.end()

    def begin(self) -> None:
        Sweep.objects.create(pk=1, at=self.clock.now)
        for sort in REQUESTED_CLASSES:
            while self.demand.joins(sort):
                self.demand.make(sort, 0.0)
            self.at(self.demand.until_next(sort), partial(self.ask_for, sort))
        for machine in self.machines:
            for begin, end in machine.offered:
                self.at(begin, partial(self.opens, machine, end))
                self.at(end, partial(self.closes, machine))
            self.at(self.until_failure(machine), partial(self.falls_silent, machine))
        self.at(NIGHTLY_AT, self.night)
        self.at(SWEEP_SECONDS, self.beat)

    def end(self) -> None:
        """Close the books on what still runs."""
        for run in list(self.runs.values()):
            self.books.ran(run.asked, min(run.begins, self.horizon), self.horizon)
        for machine in self.machines:
            self.gone(machine)
        broken = Job.objects.filter(state=Job.State.FAILED, cause="infrastructure")
        self.books.given_up = broken.count()

    # --- what is asked for --------------------------------------------------------------------------------------------

    def ask_for(self, sort: JobClass) -> None:
        if self.demand.joins(sort):
            self.demand.make(sort, self.clock.seconds)
            self.stirred = True
        self.at(self.clock.seconds + self.demand.until_next(sort), partial(self.ask_for, sort))

    def night(self) -> None:
        self.demand.make(NIGHTLY, self.clock.seconds)
        self.stirred = True
        self.at(self.clock.seconds + DAY, self.night)

    # --- what machines do ---------------------------------------------------------------------------------------------

    def opens(self, machine: SimulatedNode, end: float) -> None:
        extend_burst(machine, end)
        self.comes(machine)

    def comes(self, machine: SimulatedNode, abandoned: tuple[int, ...] = ()) -> None:
        """It is lent, and up: it asks for work."""
        if not machine.up:
            machine.up, machine.up_since = True, self.clock.seconds
            Node.objects.filter(pk=machine.node).update(last_seen=VirtualClock.at(2 * self.horizon))
        self.asks(machine, abandoned)

    def gone(self, machine: SimulatedNode) -> None:
        """It is not lent any more, or not there."""
        self.parked.pop(machine.node, None)
        if machine.up:
            machine.up = False
            Node.objects.filter(pk=machine.node).update(last_seen=self.clock.now)
            machine.offered_seconds += self.clock.seconds - machine.up_since
            self.books.was_there(machine.up_since, self.clock.seconds)

    def closes(self, machine: SimulatedNode) -> None:
        """Its window is over. What it has not handed back by now is lost: its owner turns it off."""
        if not machine.up or self.is_lent(machine):
            return
        if machine.lease is not None:
            self.loses(self.runs[machine.lease], "window")
        self.gone(machine)

    def until_failure(self, machine: SimulatedNode) -> float:
        return self.clock.seconds + self.draw.expovariate(1 / machine.hardware.hours_between_failures) * HOUR

    def falls_silent(self, machine: SimulatedNode) -> None:
        """Its lid is closed, its network is gone, its container is killed; after a while it is back."""
        if machine.up:
            held = machine.lease
            if held is not None:
                self.loses(self.runs[held], "silence")
            self.gone(machine)
            restarts = held is not None and self.draw.random() < 0.5
            away = self.draw.uniform(5, 30) if restarts else self.draw.uniform(120, 4 * HOUR)
            back = self.clock.seconds + away
            self.at(back, partial(self.returns, machine, (held,) if restarts and held else ()))
        self.at(self.until_failure(machine), partial(self.falls_silent, machine))

    def returns(self, machine: SimulatedNode, abandoned: tuple[int, ...]) -> None:
        if self.is_lent(machine) and not machine.up:
            self.comes(machine, abandoned)

    def is_lent(self, machine: SimulatedNode) -> bool:
        return any(begin <= self.clock.seconds < end for begin, end in machine.offered)

    def asks(self, machine: SimulatedNode, abandoned: tuple[int, ...] = ()) -> None:
        """It asks what to do, with the site's own answer."""
        if not machine.up or machine.lease is not None:
            return
        self.parked.pop(machine.node, None)
        node = NODE.rows(node=machine.node)[0]
        message = machine.message.model_copy(update={"abandoned": abandoned}) if abandoned else machine.message
        question = polls.Question(node, message)
        answer = question.first()
        if answer is not None and answer.lease is not None:
            self.starts(machine, answer.lease)
        elif node.rest_until and node.rest_until > self.clock.now:
            self.at((node.rest_until - VirtualClock.at(0)).total_seconds() + 1, partial(self.asks, machine))
        else:
            self.parked[machine.node] = question

    def wake(self) -> None:
        """Let those parked machines ask again for which there may be something now."""
        self.stirred = False
        parked = list(self.parked.items())
        self.draw.shuffle(parked)
        for node, question in parked:
            now = self.clock.now
            if next(job_groups.get_queue(now).fitting(question.seeker(now)), None) is not None:
                self.asks(self.by_node[node])

    # --- what leases do -----------------------------------------------------------------------------------------------

    def starts(self, machine: SimulatedNode, lease: protocol.Lease) -> None:
        self.keep(lease.lease)
        asked = self.demand.asked[protocol.JobSpec.model_validate_json(lease.spec).job]
        now = self.clock.seconds
        if asked.waited is None:
            asked.waited = now - asked.at
            self.demand.waiting[asked.sort.name] -= 1
        self.books.leases += 1
        machine.lease = lease.lease
        run = SimulatedLease(machine, lease.lease, asked, now + self.draw.uniform(*PREPARE_SECONDS), machine.speed)
        self.runs[run.lease] = run
        self.plan(run)

    def plan(self, run: SimulatedLease) -> None:
        """Put down how this lease will end if nothing comes between."""
        asked, now = run.asked, self.clock.seconds
        ends = asked.work if asked.breaks_at is None else asked.breaks_at
        self.at(run.begins + max(0.0, ends - asked.done) / run.speed, partial(self.ends, run))
        if self.draw.random() < run.machine.flaw:
            self.at(run.begins + self.draw.expovariate(1 / HOUR), partial(self.breaks, run))
        for begin, end in run.machine.offered:
            if begin <= now < end:
                for seconds in FINAL_HEARTBEATS:
                    self.at(max(now + 1, end - seconds), partial(self.beats, run))
        if run.machine.max_hours is not None:
            for seconds in FINAL_HEARTBEATS:
                self.at(now + run.machine.max_hours * HOUR - seconds, partial(self.beats, run))

    def alive(self, run: SimulatedLease) -> bool:
        return self.runs.get(run.lease) is run

    def row(self, run: SimulatedLease) -> Lease:
        return LEASE.rows(lease=run.lease)[0]

    def heartbeat(self, run: SimulatedLease, lease: Lease) -> protocol.HeartbeatReply:
        return leases.renew_lease(lease, protocol.Heartbeat(phase="running", seconds=run.ran(self.clock.seconds)))

    def beats(self, run: SimulatedLease) -> None:
        """A heartbeat that may be told to stop: then the job is saved and handed back."""
        if not self.alive(run):
            return
        if self.heartbeat(run, self.row(run)).stop:
            self.hands_back(run)
        else:
            self.keep(run.lease)

    def keep(self, lease: int) -> None:
        """Spare a living node the heartbeats that keep its lease."""
        KEEP.run(lease=lease, until=VirtualClock.at(2 * self.horizon))

    def hands_back(self, run: SimulatedLease) -> None:
        """The trainer saves where it is, and stops. One that saves nothing loses what it did."""
        if not self.alive(run):
            return
        lease = self.row(run)
        before = run.asked.done
        if run.asked.sort.checkpoint_hours:
            self.save(run, lease, run.work(self.clock.seconds))
        self.finish(run, lease, protocol.FinishLease(outcome="released", reason="It was asked to."), "handed back")
        self.lost(run, before, "handed back")
        self.asks(run.machine)

    def ends(self, run: SimulatedLease) -> None:
        """The job is done, or its model fails."""
        if not self.alive(run):
            return
        lease, asked = self.row(run), run.asked
        if asked.breaks_at is None:
            asked.done, asked.finished = asked.work, True
            self.finish(run, lease, protocol.FinishLease(outcome="done"), "done")
            self.books.done += 1
            if asked.sort.name in SCORED_CLASSES:
                self.demand.make(SCORE, self.clock.seconds)
                self.stirred = True
        else:
            word = protocol.FinishLease(outcome="failed", cause="model", reason="The loss is not a number.")
            self.finish(run, lease, word, "model failed")
            self.books.failed += 1
        self.asks(run.machine)

    def breaks(self, run: SimulatedLease) -> None:
        """The machine, not the model, is at fault."""
        if not self.alive(run):
            return
        lease = self.row(run)
        before = run.asked.done
        self.save(run, lease, run.saved(self.clock.seconds))
        word = protocol.FinishLease(outcome="failed", cause="infrastructure", reason="The GPU is gone.")
        self.finish(run, lease, word, "node failed")
        self.lost(run, before, "node failed")
        self.asks(run.machine)

    def loses(self, run: SimulatedLease, why: str) -> None:
        """Nothing more is heard of the lease; its time runs out, and a sweep finds it."""
        before = run.asked.done
        lease = self.row(run)
        self.heartbeat(run, lease)
        self.save(run, lease, run.saved(self.clock.seconds))
        self.over(run, why)
        self.lost(run, before, why)
        self.at(self.clock.seconds + settings.LEASE_SECONDS + 1, self.sweep)

    def save(self, run: SimulatedLease, lease: Lease, work: float) -> None:
        """The job's last checkpoint is here, if there is a new one."""
        if work > run.asked.done:
            uploads.record_checkpoint(lease, protocol.Checkpoint(step=int(work * 1000), files=()))
            run.asked.done = work

    def finish(self, run: SimulatedLease, lease: Lease, word: protocol.FinishLease, why: str) -> None:
        leases.finish_lease(lease, word.model_copy(update={"seconds": run.ran(self.clock.seconds)}))
        self.over(run, why)
        self.stirred = self.stirred or why != "done"

    def over(self, run: SimulatedLease, why: str) -> None:
        now = self.clock.seconds
        del self.runs[run.lease]
        run.machine.lease = None
        self.books.ends[why] += 1
        self.books.ran(run.asked, min(run.begins, now), now)

    def lost(self, run: SimulatedLease, before: float, why: str) -> None:
        """Count the seconds that ran and left nothing."""
        self.books.lost[why] += max(0.0, run.ran(self.clock.seconds) - (run.asked.done - before) / run.speed)

    # --- the site's own rounds ----------------------------------------------------------------------------------------

    def beat(self) -> None:
        self.sweep()
        preemption.make_room(self.clock.now)
        for job in ASKED_TO_STOP.rows():
            self.heard(job)
        if self.stirred:
            self.wake()
        self.at(self.clock.seconds + SWEEP_SECONDS, self.beat)

    def heard(self, job: Job) -> None:
        """The node that was asked to stop hears of it with its next heartbeat."""
        lease = job.leases.filter(state=Lease.State.ACTIVE).first()
        if lease is not None and lease.pk in self.runs:
            self.hands_back(self.runs[lease.pk])

    def sweep(self) -> None:
        """Sweep as the site does, with its last sweep just past."""
        now = self.clock.now
        SWEPT.run(at=now - timedelta(seconds=10))
        if lease_sweeper.sweep_leases(now):
            self.stirred = True


def simulate(nodes: int, days: float, seed: int, told: Callable[[float], None] = lambda seconds: None) -> Outcome:
    """Simulate; `told` hears the seconds of the clock that have gone by. The same seed, the same outcome."""
    with throwaway_database(), virtual_time() as clock:
        simulation = Simulation(clock, nodes, days, seed)
        simulation.run(told)
        return summarize_outcome(
            simulation.books, simulation.machines, list(simulation.demand.asked.values()), days, seed
        )
