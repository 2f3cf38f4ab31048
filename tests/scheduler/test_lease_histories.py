"""Whatever nodes, people and clocks do, in any order: the books are straight after every step."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler import deadlines, lease_sweeper, leases, preemption, storage, transitions, uploads
from scheduler.errors import LeaseEndedError
from scheduler.models import Event, Job, Lease, Node
from tests.support.pool import make_job, make_node, reference
from tests.support.recording_handler import CALLS
from trainer import protocol

NODES = 3
LANES = 2
MOST = 2
"""Attempts without progress."""
JOBS: tuple[dict[str, Any], ...] = (
    {},
    {"checkpoint_seconds": 1200},
    {"preemptible": True},
    {"preemptible": True, "expected_seconds": 60},
    {"priority": Job.Priority.NIGHTLY, "from_core": True, "checkpoint_seconds": 600},
)

node = st.integers(0, NODES - 1)
lane = st.tuples(node, st.integers(0, LANES - 1))
job = st.integers(0, len(JOBS) - 1)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), lane),
        st.tuples(st.just("heartbeat"), lane),
        st.tuples(st.just("checkpoint"), lane),
        st.tuples(st.sampled_from(["done", "released", "infrastructure", "model"]), lane),
        st.tuples(st.just("silence"), lane),
        st.tuples(st.sampled_from(["closes", "opens", "core only"]), node),
        st.tuples(st.sampled_from(["sweep", "make room"]), st.none()),
        st.tuples(st.sampled_from(["cancel_job", "request_hand_back", "hold_job", "queue_job", "retry_job"]), job),
    ),
    max_size=30,
)
WISHES: dict[str, dict[str, Any]] = {
    "opens": {"available": Node.Available.ALWAYS, "serves": Node.Serves.EVERYONE},
    "core only": {"serves": Node.Serves.CORE},
}


class World:
    """Three nodes of two lanes, five jobs; each lane remembers the lease that it got last, as a real one does."""

    def __init__(self) -> None:
        CALLS.clear()
        self.nodes = [
            make_node(f"node-{number}", slots=LANES, state=Node.State.ONLINE, last_seen=timezone.now())[0]
            for number in range(NODES)
        ]
        self.jobs = [
            make_job(max_attempts=MOST, author=f"author-{number}", **fields).pk for number, fields in enumerate(JOBS)
        ]
        self.held: dict[tuple[int, int], int] = {}
        self.ended: dict[int, str] = {}

    def act(self, what: str, which: Any) -> None:
        if what == "claim":
            self.claim(*which)
        elif what == "sweep":
            lease_sweeper.sweep_leases()
        elif what == "make room":
            self.make_room()
        elif what == "closes":
            until = timezone.now() + timedelta(seconds=45)
            Node.objects.filter(pk=self.nodes[which].pk).update(available=Node.Available.UNTIL, available_until=until)
        elif what in WISHES:
            Node.objects.filter(pk=self.nodes[which].pk).update(**WISHES[what])
        elif what in ("cancel_job", "request_hand_back", "hold_job"):
            getattr(transitions, what)(Job.objects.get(pk=self.jobs[which]), "ada", "Because.")
        elif what in ("queue_job", "retry_job"):
            self.ended.pop(self.jobs[which], None) if what == "retry_job" else None
            getattr(transitions, what)(Job.objects.get(pk=self.jobs[which]), "ada")
        elif which in self.held:
            self.speak(what, Lease.objects.select_related("job", "node").get(pk=self.held[which]))

    def claim(self, number: int, lane: int) -> None:
        row = Node.objects.get(pk=self.nodes[number].pk)
        if granted := leases.claim_job(row, lane):
            self.held[number, lane] = granted.lease
            lease = Lease.objects.select_related("job").get(pk=granted.lease)
            assert lease.slot == lane
            assert row.available == Node.Available.ALWAYS, "who is wanted back in a minute begins nothing"
            assert row.serves == Node.Serves.EVERYONE or lease.job.from_core

    def make_room(self) -> None:
        """Only runs that give way are asked, as many as there are nightlies without a place, and none twice."""
        asked = Job.objects.filter(state=Job.State.LEASED, stop_requested="finish")
        before = set(asked.values_list("pk", flat=True))
        preemption.make_room()
        new = asked.exclude(pk__in=before)
        assert all(row.preemptible for row in new)
        waiting = Job.objects.filter(state=Job.State.QUEUED, priority=Job.Priority.NIGHTLY).count()
        assert len(new) <= waiting
        preemption.make_room()
        assert asked.exclude(pk__in=before).count() == len(new), "nobody is asked twice for one nightly"

    def speak(self, what: str, lease: Lease) -> None:
        """What a node says under its lease, whether or not that is over."""
        before = lease.state
        try:
            if what == "silence":
                Lease.objects.filter(pk=lease.pk).update(expires_at=F("expires_at") - timedelta(days=1))
                return
            if what == "heartbeat":
                due = deadlines.find_stop_reason(lease, timezone.now())
                answer = leases.renew_lease(lease, protocol.Heartbeat(phase="running", seconds=1))
                assert answer.stop or not (due or lease.job.stop_requested)
            elif what == "checkpoint":
                step = lease.job.checkpoints.count() + 1
                content = f"job {lease.job_id} step {step}".encode()
                lease.uploads.add(storage.store_bytes(content))
                uploads.record_checkpoint(lease, protocol.Checkpoint(step=step, files=(reference(content),)))
            elif what in ("done", "released"):
                leases.finish_lease(lease, protocol.FinishLease(outcome=what))  # type: ignore[arg-type]
            else:
                leases.finish_lease(lease, protocol.FinishLease(outcome="failed", cause=what, reason="It broke."))  # type: ignore[arg-type]
        except LeaseEndedError:
            assert before != Lease.State.ACTIVE

    def check(self) -> None:
        active = list(Lease.objects.filter(state=Lease.State.ACTIVE).values_list("job", "node", "slot"))
        held = [job for job, _, _ in active]
        assert len(held) == len(set(held)), "no job is held twice"
        lanes = [(node, lane) for _, node, lane in active]
        assert len(lanes) == len(set(lanes)), "no lane holds two"
        for row in Job.objects.all():
            self.check_job(row, row.pk in held)
        self.check_what_the_kind_was_told()

    def check_job(self, row: Job, is_held: bool) -> None:
        assert (row.state == Job.State.LEASED) == is_held
        assert row.attempts == row.leases.count()
        assert row.failures <= MOST
        assert (row.finished_at is not None) == (row.state in transitions.FINAL_STATES)
        assert row.state == Job.State.LEASED or not row.stop_requested
        assert row.state != Job.State.FAILED or row.cause in ("model", "infrastructure")
        if row.state in (Job.State.DONE, Job.State.CANCELLED) or row.cause == "model":
            assert self.ended.setdefault(row.pk, row.state) == row.state, "what is over stays over"

    def check_what_the_kind_was_told(self) -> None:
        told = [name for name, _ in CALLS]
        for name, state in (("done", Job.State.DONE), ("cancelled", Job.State.CANCELLED)):
            assert told.count(name) == Job.objects.filter(state=state).count()
        assert told.count("leased") == Lease.objects.count()
        ended_lost_or_back = Lease.objects.exclude(state=Lease.State.ACTIVE).count()
        assert told.count("requeued") <= ended_lost_or_back
        assert Event.objects.filter(sentence__startswith="Taken by").count() == Lease.objects.count()


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(history=steps)
def test_lease_invariants_hold_after_every_step(db: None, history: list[tuple[str, Any]]) -> None:
    with transaction.atomic():
        world = World()
        for what, which in history:
            world.act(what, which)
            world.check()
        transaction.set_rollback(True)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(history=steps)
def test_queue_completes_after_any_history(db: None, history: list[tuple[str, Any]]) -> None:
    """No history leaves a job stuck: once people keep their hands off, sound nodes finish all that is not held."""
    with transaction.atomic():
        world = World()
        for what, which in history:
            world.act(what, which)
        Lease.objects.filter(state=Lease.State.ACTIVE).update(expires_at=timezone.now() - timedelta(days=1))
        lease_sweeper.sweep_leases()
        Node.objects.update(**WISHES["opens"])
        for _ in range(2 * len(JOBS)):
            for sound in world.nodes:
                if granted := leases.claim_job(Node.objects.get(pk=sound.pk)):
                    lease = Lease.objects.select_related("job", "node").get(pk=granted.lease)
                    leases.finish_lease(lease, protocol.FinishLease(outcome="done"))
        left: list[Any] = list(Job.objects.exclude(state__in=[*transitions.FINAL_STATES, Job.State.HELD]))
        assert left == []
        transaction.set_rollback(True)
