"""Whatever nodes, people and clocks do, in any order: the books are straight after every step."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recorder import CALLS
from station import make_job, make_node, reference

from scheduler import expiry, jobs, leases, storage, uploads
from scheduler.models import Event, Job, Lease, Node
from scheduler.refusals import Over
from trainer import wire

NODES = 3
JOBS = 3
MOST = 2
"""Attempts without progress."""

node = st.integers(0, NODES - 1)
job = st.integers(0, JOBS - 1)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), node),
        st.tuples(st.just("heartbeat"), node),
        st.tuples(st.just("checkpoint"), node),
        st.tuples(st.sampled_from(["done", "released", "infrastructure", "model"]), node),
        st.tuples(st.just("silence"), node),
        st.tuples(st.just("sweep"), st.just(0)),
        st.tuples(st.sampled_from(["cancel", "hand_back", "hold", "queue", "retry"]), job),
    ),
    max_size=30,
)


class World:
    """Three nodes, three jobs; each node remembers the lease that it got last, as a real one does."""

    def __init__(self) -> None:
        CALLS.clear()
        self.nodes = [make_node(f"node-{number}")[0] for number in range(NODES)]
        self.jobs = [make_job(max_attempts=MOST, author=f"author-{number}").pk for number in range(JOBS)]
        self.held: dict[int, int] = {}
        self.ended: dict[int, str] = {}

    def act(self, what: str, which: int) -> None:
        if what == "claim":
            if lease := leases.claim(Node.objects.get(pk=self.nodes[which].pk)):
                self.held[which] = lease.lease
        elif what == "sweep":
            expiry.sweep()
        elif what in ("cancel", "hand_back", "hold"):
            getattr(jobs, what)(Job.objects.get(pk=self.jobs[which]), "ada", "Because.")
        elif what in ("queue", "retry"):
            self.ended.pop(self.jobs[which], None) if what == "retry" else None
            getattr(jobs, what)(Job.objects.get(pk=self.jobs[which]), "ada")
        elif which in self.held:
            self.speak(what, Lease.objects.select_related("job", "node").get(pk=self.held[which]))

    def speak(self, what: str, lease: Lease) -> None:
        """What a node says under its lease, whether or not that is over."""
        before = lease.state
        try:
            if what == "silence":
                Lease.objects.filter(pk=lease.pk).update(expires_at=F("expires_at") - timedelta(days=1))
                return
            if what == "heartbeat":
                leases.heartbeat(lease, wire.Heartbeat(phase="running", seconds=1))
            elif what == "checkpoint":
                step = lease.job.checkpoints.count() + 1
                content = f"job {lease.job_id} step {step}".encode()
                lease.uploads.add(storage.keep(content))
                uploads.checkpoint(lease, wire.Checkpoint(step=step, files=(reference(content),)))
            elif what in ("done", "released"):
                leases.finish(lease, wire.Finish(outcome=what))  # type: ignore[arg-type]
            else:
                leases.finish(lease, wire.Finish(outcome="failed", cause=what, reason="It broke."))  # type: ignore[arg-type]
        except Over:
            assert before != Lease.State.ACTIVE

    def check(self) -> None:
        active = list(Lease.objects.filter(state=Lease.State.ACTIVE).values_list("job", flat=True))
        assert len(active) == len(set(active)), "no job is held twice"
        for row in Job.objects.all():
            assert (row.state == Job.State.LEASED) == (row.pk in active)
            assert row.attempts == row.leases.count()
            assert row.failures <= MOST
            assert (row.finished_at is not None) == (row.state in jobs.OVER)
            assert row.state == Job.State.LEASED or not row.stop_requested
            assert row.state != Job.State.FAILED or row.cause in ("model", "infrastructure")
            if row.state in (Job.State.DONE, Job.State.CANCELLED) or row.cause == "model":
                assert self.ended.setdefault(row.pk, row.state) == row.state, "what is over stays over"
        self.check_what_the_kind_was_told()

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
def test_the_books_are_straight_after_every_step(db: None, history: list[tuple[str, int]]) -> None:
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
def test_whatever_has_happened_the_queue_can_be_worked_off(db: None, history: list[tuple[str, int]]) -> None:
    """No history leaves a job stuck: once people keep their hands off, sound nodes finish all that is not held."""
    with transaction.atomic():
        world = World()
        for what, which in history:
            world.act(what, which)
        Lease.objects.filter(state=Lease.State.ACTIVE).update(expires_at=timezone.now() - timedelta(days=1))
        expiry.sweep()
        for _ in range(2 * JOBS):
            for sound in world.nodes:
                if granted := leases.claim(Node.objects.get(pk=sound.pk)):
                    lease = Lease.objects.select_related("job", "node").get(pk=granted.lease)
                    leases.finish(lease, wire.Finish(outcome="done"))
        left: list[Any] = list(Job.objects.exclude(state__in=[*jobs.OVER, Job.State.HELD]))
        assert left == []
        transaction.set_rollback(True)
