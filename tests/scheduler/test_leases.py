"""The lifecycle of leases: success, failure, expiry, cancellation and node states."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import F, Sum
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler import deadlines, lease_sweeper, leases, pool, signing, storage, transitions
from scheduler.models import Event, Job, Lease, Node, Sweep
from tests.support.pool import HARDWARE, LIMITS, Agent, ClaimedJob, build_file_reference, create_job, create_node
from tests.support.recording_handler import Recorder
from trainer import protocol

pytestmark = pytest.mark.sql


def create_agent_of_new_owner(number: int) -> Agent:
    return Agent(create_node(f"node {number}", owner=User.objects.create_user(f"owner {number}"))[1])


def age_leases(seconds: float = 3600) -> None:
    """Age all leases as if no heartbeat came while the site was up."""
    Lease.objects.update(expires_at=F("expires_at") - timedelta(seconds=seconds))


def lose_leases() -> None:
    """End all leases as if their nodes had been silent."""
    age_leases()
    lease_sweeper.sweep_leases()


def set_lease_age(claimed_job: ClaimedJob, seconds_ago: float) -> None:
    """Set the age of the lease; the site's clock bounds the seconds that a node may report."""
    Lease.objects.filter(pk=claimed_job.lease.lease).update(started_at=timezone.now() - timedelta(seconds=seconds_ago))


def end_node_rest() -> None:
    Node.objects.update(rest_until=None)


def test_running_time_is_that_of_the_first_heartbeat_of_the_job_itself(claimed_job: ClaimedJob) -> None:
    times = []
    for phase in ("preparing", "running", "uploading", "running"):
        assert claimed_job.send_heartbeat(phase=phase).status_code == 200
        times.append(Lease.objects.values_list("running_at", flat=True).get())
    assert times[0] is None
    assert times[1] is not None
    assert times[1:] == [times[1]] * 3


def send_heartbeat(claimed_job: ClaimedJob, seconds: float = 1) -> protocol.HeartbeatReply:
    response = claimed_job.send_heartbeat(seconds)
    assert response.status_code == 200, response.content
    return protocol.HeartbeatReply.model_validate_json(response.content)


# --- done ------------------------------------------------------------------------------------------------------------


def test_job_lifecycle_from_queued_to_done(agent: Agent, calls: list[Any]) -> None:
    job = create_job(entry=storage.store_bytes(b"an entry"))
    claimed_job = agent.claim_job()
    job.refresh_from_db()
    spec, lease = claimed_job.spec, claimed_job.row
    assert (spec.job, spec.lease, spec.attempt, spec.node) == (job.pk, lease.pk, 1, lease.node_id)
    assert (spec.release.path, spec.limits, spec.issued_at) == ("release.tar", LIMITS, lease.started_at.timestamp())
    assert spec.entry is not None
    assert (spec.entry.path, spec.entry.sha256) == ("entry.tar", build_file_reference(b"an entry").sha256)
    assert (job.state, job.attempts, lease.attempt, lease.slot) == (Job.State.LEASED, 1, 1, 0)
    length = timedelta(seconds=django_settings.LEASE_SECONDS)
    assert (lease.started_at, lease.expires_at) == (job.state_since, job.state_since + length)
    assert claimed_job.lease.seconds == django_settings.LEASE_SECONDS
    assert claimed_job.lease.signature == signing.sign_message(claimed_job.lease.spec.encode())
    assert claimed_job.finish(result={"steps": 10}).status_code == 200
    job.refresh_from_db()
    assert (job.state, job.result, bool(job.finished_at)) == (Job.State.DONE, {"steps": 10}, True)
    assert (claimed_job.row.state, claimed_job.row.outcome) == (Lease.State.FINISHED, "done")
    assert calls == [("leased", lease.pk), ("done", {"steps": 10})]
    events = Event.objects.about(job).values_list("actor", "sentence")
    assert list(events) == [("node:loco", "Taken by loco, attempt 1."), ("node:loco", "Done.")]


def test_lease_seconds_grow_and_never_exceed_elapsed_time(claimed_job: ClaimedJob) -> None:
    for seconds in (5, 3, 10**9):
        claimed_job.send_heartbeat(seconds)
    assert 60 <= claimed_job.row.seconds < 120
    set_lease_age(claimed_job, 600)
    for seconds in (311.25, 599.0):
        assert claimed_job.finish("released", seconds=seconds).status_code == 200
        assert claimed_job.row.seconds == 311.25
    assert claimed_job.finish("done").status_code == 409, "a repeat, and not another result"


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["beat", "late", "silent", "released", "checkpoint"]),
            st.floats(0, 10_000),
        ),
        max_size=14,
    )
)
def test_seconds_are_never_charged_twice(db: None, steps: list[tuple[str, float]]) -> None:
    """The seconds of a job are the sum of the last accepted reports of its leases."""
    with transaction.atomic():
        job = create_job(max_attempts=1000, limits={**LIMITS.model_dump(), "wall_seconds": 20_000})
        agents = [Agent(create_node(f"node-{number}")[1]) for number in range(2)]
        reported_seconds: dict[int, float] = {}
        ended_jobs: list[ClaimedJob] = []
        claimed_job: ClaimedJob | None = None
        for turn, (step, seconds) in enumerate(steps):
            if claimed_job is None:
                Job.objects.update(excluded_nodes=[])  # of nodes that lose it again and again
                end_node_rest()
                claimed_job = agents[turn % 2].claim_job()
                set_lease_age(claimed_job, 20_000)
                reported_seconds[claimed_job.lease.lease] = 0.0
            if step in ("beat", "released"):
                claimed_job.send_heartbeat(seconds) if step == "beat" else claimed_job.finish(step, seconds=seconds)
                reported_seconds[claimed_job.lease.lease] = max(reported_seconds[claimed_job.lease.lease], seconds)
            elif step == "late":
                assert all(ended_job.send_heartbeat(20_000).status_code == 409 for ended_job in ended_jobs)
            elif step == "checkpoint":
                claimed_job.upload_checkpoint(turn, f"weights {turn}".encode())
            else:
                lose_leases()
            if step in ("released", "silent"):
                ended_jobs.append(claimed_job)
                claimed_job = None
        charged = job.leases.aggregate(total=Sum("seconds"))["total"] or 0.0
        assert charged == pytest.approx(sum(reported_seconds.values()))
        assert job.leases.filter(state=Lease.State.ACTIVE).count() == (claimed_job is not None)
        transaction.set_rollback(True)


# --- leases without an end -------------------------------------------------------------------------------------------


def test_lease_beyond_its_limit_is_asked_to_finish_and_then_lost(claimed_job: ClaimedJob) -> None:
    longest = timedelta(seconds=deadlines.get_longest_seconds(claimed_job.row))
    with time_machine.travel(claimed_job.row.started_at + longest - timedelta(minutes=1)):
        assert send_heartbeat(claimed_job).stop == ""
    with time_machine.travel(claimed_job.row.started_at + longest + timedelta(minutes=1)):
        assert send_heartbeat(claimed_job).stop == "finish"
    with time_machine.travel(claimed_job.row.started_at + 2 * longest + timedelta(minutes=1)):
        assert claimed_job.send_heartbeat().status_code == 409
    assert claimed_job.row.state == Lease.State.LOST
    assert claimed_job.job.state == Job.State.QUEUED


@pytest.mark.parametrize(("phase", "status"), [("running", 409), ("uploading", 200)])
def test_lease_without_metrics_for_many_checkpoints_is_lost_while_running(
    claimed_job: ClaimedJob, phase: str, status: int
) -> None:
    Job.objects.update(checkpoint_seconds=600, limits={**claimed_job.job.limits, "wall_seconds": 10**6})
    assert claimed_job.send_metrics(1).status_code == 200
    assert claimed_job.send_heartbeat(phase=phase).status_code == 200
    with time_machine.travel(timezone.now() + deadlines.SILENT_CHECKPOINTS * timedelta(seconds=601)):
        assert claimed_job.send_heartbeat(phase=phase).status_code == status


def test_lease_whose_metrics_go_on_has_more_time_up_to_ten_times_its_limit(claimed_job: ClaimedJob) -> None:
    """Its limit is 4,200 s with what every job may take beside; a node may say for ever that it makes progress."""
    Job.objects.update(limits={**claimed_job.job.limits, "wall_seconds": 600}, needs_disk_bytes=0)
    started, stops = timezone.now(), []
    for number in range(1, 8):
        with time_machine.travel(started + number * timedelta(seconds=1500)):
            claimed_job.send_metrics(number)
            stops.append(claimed_job.send_heartbeat(phase="running").json()["stop"])
    assert stops == [""] * 6 + ["finish"]


# --- failures --------------------------------------------------------------------------------------------------------


def test_model_failure_of_trusted_node_is_final(claimed_job: ClaimedJob, calls: list[Any]) -> None:
    Node.objects.update(trusted=True)
    assert claimed_job.finish("failed", cause="model", reason="The loss became NaN at step 12.").status_code == 200
    job = claimed_job.job
    assert (job.state, job.cause, job.reason) == (Job.State.FAILED, "model", "The loss became NaN at step 12.")
    assert calls[-1] == ("failed", ("model", "The loss became NaN at step 12."))
    with pytest.raises(transitions.StateError):
        transitions.retry_job(job, "admin")
    assert claimed_job.agent.request_action().action == "idle"


@pytest.mark.parametrize(("end", "reason"), [("failed", "The disk is broken."), ("lost", "node 1 fell silent.")])
def test_job_without_progress_fails_after_max_attempts_and_can_be_retried(
    agent: Agent, calls: list[Any], end: str, reason: str
) -> None:
    job = create_job(max_attempts=2)
    for number in range(2):
        claimed_job = create_agent_of_new_owner(number).claim_job()
        if end == "failed":
            claimed_job.finish("failed", reason=reason)
        else:
            lose_leases()
    job.refresh_from_db()
    assert (job.state, job.cause) == (Job.State.FAILED, "infrastructure")
    assert job.reason == f"Given up after 2 attempts without progress. The last: {reason}"
    assert calls[-1][0] == "failed"
    assert agent.request_action().action == "idle"
    transitions.retry_job(job, "admin")
    assert (job.state, job.failures, job.cause, job.finished_at) == (Job.State.QUEUED, 0, "", None)
    assert agent.claim_job().spec.attempt == 3


def test_new_checkpoint_resets_failures(db: None) -> None:
    job = create_job(max_attempts=2)
    for step in range(1, 6):
        claimed_job = create_agent_of_new_owner(step).claim_job()
        claimed_job.upload_checkpoint(step, f"weights {step}".encode())
        claimed_job.finish("failed", reason="Power cut.")
        job.refresh_from_db()
        assert (job.state, job.failures) == (Job.State.QUEUED, 1)


def test_failing_node_rests(agent: Agent) -> None:
    for _ in range(3):
        create_job()
    agent.claim_job().finish("failed", reason="No GPU.")
    agent.claim_job().finish("failed", reason="No GPU.")
    action = agent.request_action()
    assert action.action == "idle"
    assert 0 < action.wait_seconds <= 30
    assert "2 jobs in a row failed here" in action.reason
    assert Agent(create_node("sound")[1]).request_action().action == "job"
    end_node_rest()
    agent.claim_job().finish()
    assert Node.objects.get(name="loco").failures == 0


def test_job_without_valid_order_fails_alone(agent: Agent, calls: list[Any]) -> None:
    broken_job = create_job(author="nobody", impact=5)
    valid_job = create_job()
    assert agent.claim_job().spec.job == valid_job.pk
    broken_job.refresh_from_db()
    assert (broken_job.state, broken_job.cause) == (Job.State.FAILED, "infrastructure")
    reason = "The site failed to build this job's order. The error is in the site's log."
    assert broken_job.reason == reason
    assert Event.objects.about(broken_job).get().sentence == f"Failed: {reason}"
    assert Lease.objects.count() == 1


# --- expired leases --------------------------------------------------------------------------------------------------


def test_job_without_heartbeats_resumes_elsewhere(
    claimed_job: ClaimedJob, other_agent: Agent, calls: list[Any]
) -> None:
    claimed_job.upload_checkpoint(100, b"early")
    claimed_job.upload_checkpoint(200, b"late")
    claimed_job.send_heartbeat()
    assert lease_sweeper.sweep_leases() == 0
    age_leases()
    assert lease_sweeper.sweep_leases() == 1
    assert lease_sweeper.sweep_leases() == 0
    assert calls[-1] == ("requeued", "loco fell silent.")
    assert claimed_job.row.state == Lease.State.LOST
    order = other_agent.claim_job().spec.order
    assert isinstance(order, protocol.TrainOrder)
    assert order.resume is not None
    assert order.resume.step == 200


def test_sweep_goes_on_after_a_job_that_cannot_be_requeued(
    claimed_job: ClaimedJob, other_agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_job()
    other_job = other_agent.claim_job().job

    def fail_for_first(kind: Recorder, job: Job, reason: str) -> None:
        if job == claimed_job.job:
            raise LookupError("its rows are gone")

    monkeypatch.setattr(Recorder, "handle_requeue", fail_for_first)
    age_leases()
    assert lease_sweeper.sweep_leases() == 1
    other_job.refresh_from_db()
    assert (claimed_job.job.state, other_job.state) == (Job.State.LEASED, Job.State.QUEUED)


def test_heartbeat_before_or_during_a_sweep_keeps_lease(claimed_job: ClaimedJob) -> None:
    age_leases()
    before = timezone.now()
    assert claimed_job.send_heartbeat(phase="uploading").status_code == 200  # before a sweep no other node gets the job
    assert lease_sweeper.sweep_leases() == 0
    lease = claimed_job.row
    assert lease.heartbeat_at is not None
    assert lease.heartbeat_at >= before
    assert lease.expires_at - lease.heartbeat_at == timedelta(seconds=django_settings.LEASE_SECONDS)
    assert lease.phase == "uploading"
    sweep_time = timezone.now() + timedelta(seconds=61)  # a sweep that found the lease expired
    Lease.objects.update(expires_at=sweep_time + timedelta(seconds=60))  # and then its heartbeat came
    assert not leases.lose_lease(lease, "fell silent", expired_before=sweep_time)
    assert claimed_job.row.state == Lease.State.ACTIVE


def test_sweep_after_site_downtime_extends_leases(claimed_job: ClaimedJob) -> None:
    now = timezone.now()
    lease_sweeper.sweep_leases(now)
    restart = now + timedelta(hours=1)
    assert lease_sweeper.sweep_leases(restart) == 0
    assert claimed_job.row.state == Lease.State.ACTIVE
    assert claimed_job.row.expires_at > restart
    assert lease_sweeper.sweep_leases(restart + timedelta(seconds=20)) == 0
    Sweep.objects.update(at=restart + timedelta(seconds=100))
    assert lease_sweeper.sweep_leases(restart + timedelta(seconds=101)) == 1


def test_polls_without_worker_after_old_sweep_lose_silent_leases(claimed_job: ClaimedJob, other_agent: Agent) -> None:
    """The first poll after an outage extends the lease. Further polls lose it, and mark its node offline."""
    start = timezone.now()
    Sweep.objects.update_or_create(pk=1, defaults={"at": start - timedelta(hours=1)})
    age_leases()
    Node.objects.filter(name="loco").update(last_seen=start - timedelta(hours=1))
    assert other_agent.request_action().action == "idle"
    assert claimed_job.row.state == Lease.State.ACTIVE
    for seconds in range(20, 400, 20):
        with time_machine.travel(start + timedelta(seconds=seconds), tick=False):
            other_agent.request_action()
    assert claimed_job.row.state == Lease.State.LOST
    assert claimed_job.row.node.state == Node.State.OFFLINE


def test_job_of_deleted_node_is_requeued(claimed_job: ClaimedJob) -> None:
    job = claimed_job.job
    Node.objects.all().delete()
    assert lease_sweeper.sweep_leases() == 1
    job.refresh_from_db()
    assert (job.state, job.reason) == (Job.State.QUEUED, "Its node is gone.")


def test_restarted_node_abandons_its_own_lease_only(claimed_job: ClaimedJob, other_agent: Agent) -> None:
    claimed_job.send_heartbeat()
    abandoned = (claimed_job.lease.lease,)
    assert other_agent.request_action(abandoned=abandoned).action == "idle"
    assert claimed_job.row.state == Lease.State.ACTIVE
    assert claimed_job.agent.request_action(abandoned=abandoned).lease is not None
    assert (claimed_job.row.state, claimed_job.row.reason) == (Lease.State.LOST, "loco was restarted.")


def test_lease_of_lost_reply_is_released(claimed_job: ClaimedJob) -> None:
    assert claimed_job.agent.request_action().action == "idle"  # the first heartbeat may still arrive
    Lease.objects.update(started_at=F("started_at") - timedelta(seconds=11))
    assert claimed_job.agent.claim_job().lease.lease != claimed_job.lease.lease


def test_node_holds_one_job(claimed_job: ClaimedJob) -> None:
    create_job()
    claimed_job.send_heartbeat()
    action = claimed_job.agent.request_action()
    assert (action.action, action.wait_seconds) == ("idle", django_settings.POLL_SECONDS)
    assert "still holds" in action.reason
    assert leases.claim_job(claimed_job.row.node) is None  # refused by the claim itself, too


# --- requests by people ----------------------------------------------------------------------------------------------


def test_cancel_queued_job_is_immediate(agent: Agent, calls: list[Any]) -> None:
    job, reason = create_job(), "Wrong seed. " * 50
    assert transitions.cancel_job(job, "ada", reason)
    assert (job.state, job.reason, bool(job.finished_at)) == (Job.State.CANCELLED, reason[:500], True)
    assert calls == [("cancelled", reason[:500])]
    assert not transitions.cancel_job(job, "ada", "Again.")
    event = Event.objects.about(job).get()
    assert (event.actor, event.sentence.startswith("Cancelled: Wrong seed. Wrong")) == ("ada", True)
    assert agent.request_action().action == "idle"


def test_priority_of_a_job_that_another_has_raised_meanwhile_rises_once(db: None) -> None:
    job = create_job(priority=Job.Priority.COMMUNITY)
    stale = Job.objects.get()
    assert transitions.raise_priority(job, "ada")
    assert not transitions.raise_priority(stale, "bob")
    assert stale.priority == Job.Priority.MAINTAINER
    event = Event.objects.about(job).get()
    assert (event.actor, event.sentence) == ("ada", "Its priority is now maintainer.")


@pytest.mark.parametrize("end", ["released", "done", "failed", "lost"])
def test_cancel_running_job_waits_for_the_end_of_its_lease(claimed_job: ClaimedJob, calls: list[Any], end: str) -> None:
    for _ in range(2):
        assert transitions.cancel_job(claimed_job.job, "ada", "Wrong seed.")
    assert claimed_job.job.state == Job.State.LEASED
    assert not transitions.request_hand_back(claimed_job.job, "site", "Make room."), "it does not replace this"
    assert send_heartbeat(claimed_job) == protocol.HeartbeatReply(stop="cancel", reason="Wrong seed.")
    if end == "lost":
        lose_leases()
    else:
        assert claimed_job.finish(end).status_code == 200
    assert (claimed_job.job.state, claimed_job.job.stop_requested) == (Job.State.CANCELLED, "")
    assert calls[-1] == ("cancelled", "Wrong seed.")
    _, request, cancellation = Event.objects.about(claimed_job.job).values_list("actor", "sentence")
    assert request == ("ada", "Requested the node to cancel it: Wrong seed.")
    assert cancellation == ("site" if end == "lost" else "node:loco", "Cancelled: Wrong seed.")


def test_released_job_resumes(claimed_job: ClaimedJob, other_agent: Agent) -> None:
    reason = "The nightly train needs the node. " * 20
    assert transitions.request_hand_back(claimed_job.job, "site", reason)
    assert send_heartbeat(claimed_job) == protocol.HeartbeatReply(stop="finish", reason=reason[:500])
    event = Event.objects.about(claimed_job.job).last()
    assert event is not None
    assert event.sentence.startswith("Requested the node to hand back it: The nightly")
    claimed_job.upload_checkpoint(50)
    claimed_job.finish("released")
    job = claimed_job.job
    assert (job.state, job.failures, job.stop_requested, job.stop_reason) == (Job.State.QUEUED, 0, "", "")
    assert (claimed_job.row.state, job.reason) == (Lease.State.RELEASED, "The node handed it back.")
    assert not transitions.request_hand_back(job, "site", reason), "no node has it"
    assert other_agent.request_action().action == "job"


def test_held_job_waits_until_queued(claimed_job: ClaimedJob, other_agent: Agent) -> None:
    assert transitions.hold_job(claimed_job.job, "ada", "Let me look first.")
    assert send_heartbeat(claimed_job).stop == "finish"
    claimed_job.finish("released")
    job = claimed_job.job
    assert (job.state, job.reason, job.hold_requested) == (Job.State.HELD, "Let me look first.", False)
    assert other_agent.request_action().action == "idle"
    queued_at = job.queued_at
    transitions.queue_job(job, "ada")
    assert job.queued_at > queued_at
    assert other_agent.request_action().action == "job"
    assert [event.actor for event in Event.objects.about(job)] == ["node:loco", "ada", "node:loco", "ada", "node:other"]


# --- the node's state ------------------------------------------------------------------------------------------------


def test_node_state_follows_its_polls(agent: Agent) -> None:
    agent.request_action()
    assert Node.objects.get().state == Node.State.ONLINE
    later = timezone.now() + timedelta(minutes=3)
    Sweep.objects.update(at=later - timedelta(seconds=5))
    lease_sweeper.sweep_leases(later)
    assert Node.objects.get().state == Node.State.OFFLINE
    Node.objects.update(last_seen=None)
    agent.request_action()
    assert Node.objects.get().state == Node.State.ONLINE


def test_drained_node_finishes_job_and_stops(claimed_job: ClaimedJob) -> None:
    pool.drain_node(claimed_job.row.node, "ada")
    assert send_heartbeat(claimed_job).stop == ""
    claimed_job.finish()
    assert claimed_job.agent.request_action().action == "stop"


def test_paused_node_releases_job_and_waits(claimed_job: ClaimedJob) -> None:
    pool.pause_node(claimed_job.row.node, "ada", "I need my GPU tonight.")
    assert send_heartbeat(claimed_job) == protocol.HeartbeatReply(stop="finish", reason="I need my GPU tonight.")
    claimed_job.finish("released")
    action = claimed_job.agent.request_action()
    assert (action.action, action.reason) == ("pause", "I need my GPU tonight.")
    pool.resume_node(Node.objects.get(), "ada")
    assert claimed_job.agent.request_action().action == "job"


def test_node_without_sandbox_gets_only_site_code(db: None) -> None:
    agent = Agent(create_node("bare")[1])
    create_job()
    hardware = HARDWARE.model_copy(update={"sandboxes": ("none",)})
    action = agent.request_action(hardware=hardware)
    assert (action.action, action.reason) == ("idle", "The waiting jobs need a node with a sandbox.")
    create_job(needs_sandbox=False)
    assert agent.request_action(hardware=hardware).action == "job"
