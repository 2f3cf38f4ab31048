"""Property tests: leases and jobs stay consistent after any sequence of claims, reports, ends and requests."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.db.models import F
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler import deadlines, lease_sweeper, leases, preemption, storage, transitions, uploads
from scheduler.errors import LeaseEndedError
from scheduler.models import Event, Job, Lease, Node
from tests.support.pool import build_file_reference, create_job, create_node
from tests.support.recording_handler import CALLS
from trainer import protocol

pytestmark = [pytest.mark.slow, pytest.mark.services]

NODES = 3
SLOTS = 2
MAX_FAILURES = 2
"""Attempts without progress before a job fails."""
JOBS: tuple[dict[str, Any], ...] = (
    {},
    {"checkpoint_seconds": 1200},
    {"preemptible": True},
    {"preemptible": True, "expected_seconds": 60},
    {"priority": Job.Priority.NIGHTLY, "from_core": True, "checkpoint_seconds": 600},
)

node_number = st.integers(0, NODES - 1)
slot_key = st.tuples(node_number, st.integers(0, SLOTS - 1))
job_number = st.integers(0, len(JOBS) - 1)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), slot_key),
        st.tuples(st.just("heartbeat"), slot_key),
        st.tuples(st.just("checkpoint"), slot_key),
        st.tuples(st.sampled_from(["done", "released", "infrastructure", "model"]), slot_key),
        st.tuples(st.just("expire"), slot_key),
        st.tuples(st.sampled_from(["close window", "open", "core only"]), node_number),
        st.tuples(st.sampled_from(["sweep", "make room"]), st.none()),
        st.tuples(
            st.sampled_from(["cancel_job", "request_hand_back", "hold_job", "queue_job", "retry_job"]), job_number
        ),
    ),
    max_size=30,
)
NODE_SETTINGS: dict[str, dict[str, Any]] = {
    "open": {"available": Node.Available.ALWAYS, "serves": Node.Serves.EVERYONE},
    "core only": {"serves": Node.Serves.CORE},
}


class PoolWorld:
    """Three nodes of two slots and five jobs; each slot remembers its last lease, as a real one does."""

    def __init__(self) -> None:
        CALLS.clear()
        self.nodes = [
            create_node(f"node-{number}", slots=SLOTS, state=Node.State.ONLINE, last_seen=timezone.now())[0]
            for number in range(NODES)
        ]
        self.jobs = [
            create_job(max_attempts=MAX_FAILURES, author=f"author-{number}", **fields).pk
            for number, fields in enumerate(JOBS)
        ]
        self.last_leases: dict[tuple[int, int], int] = {}
        self.final_states: dict[int, str] = {}

    def run_step(self, step: str, target: Any) -> None:
        if step == "claim":
            self.claim(*target)
        elif step == "sweep":
            lease_sweeper.sweep_leases()
        elif step == "make room":
            self.make_room()
        elif step == "close window":
            until = timezone.now() + timedelta(seconds=45)
            Node.objects.filter(pk=self.nodes[target].pk).update(available=Node.Available.UNTIL, available_until=until)
        elif step in NODE_SETTINGS:
            Node.objects.filter(pk=self.nodes[target].pk).update(**NODE_SETTINGS[step])
        elif step in ("cancel_job", "request_hand_back", "hold_job"):
            getattr(transitions, step)(Job.objects.get(pk=self.jobs[target]), "ada", "Because.")
        elif step in ("queue_job", "retry_job"):
            self.final_states.pop(self.jobs[target], None) if step == "retry_job" else None
            with suppress(transitions.StateError):
                getattr(transitions, step)(Job.objects.get(pk=self.jobs[target]), "ada")
        elif target in self.last_leases:
            self.report_step(step, Lease.objects.select_related("job", "node").get(pk=self.last_leases[target]))

    def claim(self, number: int, slot: int) -> None:
        row = Node.objects.get(pk=self.nodes[number].pk)
        if granted := leases.claim_job(row, slot):
            self.last_leases[number, slot] = granted.lease
            lease = Lease.objects.select_related("job").get(pk=granted.lease)
            assert lease.slot == slot
            assert row.available == Node.Available.ALWAYS, "a node whose window ends in a minute gets no job"
            assert row.serves == Node.Serves.EVERYONE or lease.job.from_core

    def make_room(self) -> None:
        """Check that only preemptible runs are stopped, at most one for each waiting nightly, none twice."""
        stop_requests = Job.objects.filter(state=Job.State.LEASED, stop_requested="finish")
        earlier = set(stop_requests.values_list("pk", flat=True))
        preemption.make_room()
        new_requests = stop_requests.exclude(pk__in=earlier)
        assert all(row.preemptible for row in new_requests)
        waiting = Job.objects.filter(state=Job.State.QUEUED, priority=Job.Priority.NIGHTLY).count()
        assert len(new_requests) <= waiting
        preemption.make_room()
        assert stop_requests.exclude(pk__in=earlier).count() == len(new_requests), (
            "a second run was stopped for one nightly"
        )

    def report_step(self, step: str, lease: Lease) -> None:
        """Report as a node does under its lease, active or ended."""
        state_before = lease.state
        try:
            if step == "expire":
                Lease.objects.filter(pk=lease.pk).update(expires_at=F("expires_at") - timedelta(days=1))
                return
            if step == "heartbeat":
                due = deadlines.find_stop_reason(lease, timezone.now())
                answer = leases.renew_lease(lease, protocol.Heartbeat(phase="running", seconds=1))
                assert answer.stop or not (due or lease.job.stop_requested)
            elif step == "checkpoint":
                checkpoint_step = lease.job.checkpoints.count() + 1
                content = f"job {lease.job_id} step {checkpoint_step}".encode()
                lease.uploads.add(storage.store_bytes(content))
                uploads.record_checkpoint(
                    lease, protocol.Checkpoint(step=checkpoint_step, files=(build_file_reference(content),))
                )
            elif step in ("done", "released"):
                leases.finish_lease(lease, protocol.FinishLease(outcome=step))  # type: ignore[arg-type]
            else:
                leases.finish_lease(lease, protocol.FinishLease(outcome="failed", cause=step, reason="It broke."))  # type: ignore[arg-type]
        except LeaseEndedError:
            assert state_before != Lease.State.ACTIVE

    def check(self) -> None:
        active = list(Lease.objects.filter(state=Lease.State.ACTIVE).values_list("job", "node", "slot"))
        leased_jobs = [job for job, _, _ in active]
        assert len(leased_jobs) == len(set(leased_jobs)), "a job has two active leases"
        slots = [(node, slot) for _, node, slot in active]
        assert len(slots) == len(set(slots)), "a slot has two active leases"
        for row in Job.objects.all():
            self.check_job(row, row.pk in leased_jobs)
        self.check_handler_calls()

    def check_job(self, row: Job, is_held: bool) -> None:
        assert (row.state == Job.State.LEASED) == is_held
        assert row.attempts == row.leases.count()
        assert row.failures <= MAX_FAILURES
        assert (row.finished_at is not None) == (row.state in transitions.FINAL_STATES)
        assert row.state == Job.State.LEASED or not row.stop_requested
        assert row.state != Job.State.FAILED or row.cause in ("model", "infrastructure")
        if row.state in (Job.State.DONE, Job.State.CANCELLED) or row.cause == "model":
            assert self.final_states.setdefault(row.pk, row.state) == row.state, "a final state changed"

    def check_handler_calls(self) -> None:
        calls = [name for name, _ in CALLS]
        for name, state in (("done", Job.State.DONE), ("cancelled", Job.State.CANCELLED)):
            assert calls.count(name) == Job.objects.filter(state=state).count()
        assert calls.count("leased") == Lease.objects.count()
        ended_count = Lease.objects.exclude(state=Lease.State.ACTIVE).count()
        assert calls.count("requeued") <= ended_count
        assert Event.objects.filter(sentence__startswith="Taken by").count() == Lease.objects.count()


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(history=steps)
def test_lease_invariants_hold_after_every_step(db: None, history: list[tuple[str, Any]]) -> None:
    with transaction.atomic():
        world = PoolWorld()
        for step, target in history:
            world.run_step(step, target)
            world.check()
        transaction.set_rollback(True)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(history=steps)
def test_queue_after_any_history_completes(db: None, history: list[tuple[str, Any]]) -> None:
    """After any history, working nodes finish all jobs that are not held."""
    with transaction.atomic():
        world = PoolWorld()
        for step, target in history:
            world.run_step(step, target)
        Lease.objects.filter(state=Lease.State.ACTIVE).update(expires_at=timezone.now() - timedelta(days=1))
        lease_sweeper.sweep_leases()
        Node.objects.update(**NODE_SETTINGS["open"])
        for _ in range(2 * len(JOBS)):
            for working_node in world.nodes:
                if granted := leases.claim_job(Node.objects.get(pk=working_node.pk)):
                    lease = Lease.objects.select_related("job", "node").get(pk=granted.lease)
                    leases.finish_lease(lease, protocol.FinishLease(outcome="done"))
        unfinished: list[Any] = list(Job.objects.exclude(state__in=[*transitions.FINAL_STATES, Job.State.HELD]))
        assert unfinished == []
        transaction.set_rollback(True)
