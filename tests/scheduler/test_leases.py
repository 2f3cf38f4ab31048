"""From queued to done, and every way in which a lease can end otherwise."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db.models import F
from django.utils import timezone
from pytest_django import Settings

from scheduler import lease_sweeper, leases, pool, transitions
from scheduler.models import Event, Job, Lease, Node, Sweep
from tests.support.pool import HARDWARE, Agent, Work, make_job, make_node, sentence
from trainer import protocol


@pytest.fixture
def work(agent: Agent) -> Work:
    make_job()
    return agent.work()


@pytest.fixture
def other(db: None) -> Agent:
    return Agent(make_node("other")[1])


def silence(seconds: float = 3600) -> None:
    """Nothing has been heard of any lease for a while; the site was there all the time."""
    Lease.objects.update(expires_at=F("expires_at") - timedelta(seconds=seconds))


def rest_is_over() -> None:
    Node.objects.update(rest_until=None)


def reply(work: Work, seconds: float = 1) -> protocol.HeartbeatReply:
    answer = work.heartbeat(seconds)
    assert answer.status_code == 200, answer.content
    return protocol.HeartbeatReply.model_validate_json(answer.content)


# --- done ------------------------------------------------------------------------------------------------------------


def test_job_lifecycle_from_queued_to_done(agent: Agent, calls: list[Any]) -> None:
    job = make_job()
    work = agent.work()
    assert (work.spec.job, work.spec.lease, work.spec.attempt) == (job.pk, work.lease.lease, 1)
    assert work.job.state == Job.State.LEASED
    assert work.finish(result={"steps": 10}).status_code == 200
    job.refresh_from_db()
    assert (job.state, job.result, bool(job.finished_at)) == (Job.State.DONE, {"steps": 10}, True)
    assert [name for name, _ in calls] == ["leased", "done"]
    assert [event.sentence for event in Event.objects.about(job)] == ["Taken by loco, attempt 1.", "Done."]


def test_repeated_finish_is_idempotent(work: Work, calls: list[Any]) -> None:
    answers = [work.finish(result={"steps": 10}) for _ in range(3)]
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert [name for name, _ in calls].count("done") == 1


def test_finish_with_other_outcome_is_rejected(work: Work) -> None:
    work.finish()
    assert work.finish("failed", cause="model", reason="NaN").status_code == 409
    assert work.job.state == Job.State.DONE


def test_lease_seconds_grow_and_never_exceed_elapsed_time(work: Work) -> None:
    for seconds in (5, 3, 10**9, -5):
        work.heartbeat(seconds)
    assert 60 <= work.row.seconds < 120


# --- failures --------------------------------------------------------------------------------------------------------


def test_model_failure_is_final(work: Work, calls: list[Any]) -> None:
    assert work.finish("failed", cause="model", reason="The loss became NaN at step 12.").status_code == 200
    job = work.job
    assert (job.state, job.cause, job.reason) == (Job.State.FAILED, "model", "The loss became NaN at step 12.")
    assert calls[-1] == ("failed", ("model", "The loss became NaN at step 12."))
    assert not transitions.retry_job(job, "admin")
    assert work.agent.ask().action == "idle"


def test_infrastructure_failure_requeues_job(work: Work, other: Agent, calls: list[Any]) -> None:
    work.finish("failed", cause="infrastructure", reason="The disk is broken.")
    assert (work.job.state, work.job.reason) == (Job.State.QUEUED, "The disk is broken.")
    assert calls[-1] == ("requeued", "The disk is broken.")
    assert other.work().spec.attempt == 2


def test_job_without_progress_fails_after_max_attempts(agent: Agent, calls: list[Any]) -> None:
    job = make_job(max_attempts=3)
    for _ in range(3):
        rest_is_over()
        agent.work().finish("failed", reason="The disk is broken.")
    job.refresh_from_db()
    assert (job.state, job.cause) == (Job.State.FAILED, "infrastructure")
    assert job.reason == "Given up after 3 attempts without progress. The last: The disk is broken."
    assert calls[-1][0] == "failed"
    rest_is_over()
    assert agent.ask().action == "idle"


def test_new_checkpoint_resets_failures(agent: Agent) -> None:
    job = make_job(max_attempts=2)
    for step in range(1, 6):
        rest_is_over()
        work = agent.work()
        work.checkpoint(step, f"weights {step}".encode())
        work.finish("failed", reason="Power cut.")
        job.refresh_from_db()
        assert (job.state, job.failures) == (Job.State.QUEUED, 1)


def test_failed_job_can_be_retried(agent: Agent) -> None:
    job = make_job(max_attempts=1)
    agent.work().finish("failed", reason="The disk is broken.")
    job.refresh_from_db()
    assert transitions.retry_job(job, "admin")
    assert (job.state, job.failures, job.cause, job.finished_at) == (Job.State.QUEUED, 0, "", None)
    assert agent.work().spec.attempt == 2


def test_failing_node_rests(agent: Agent) -> None:
    for _ in range(3):
        make_job()
    agent.work().finish("failed", reason="No GPU.")
    agent.work().finish("failed", reason="No GPU.")
    action = agent.ask()
    assert action.action == "idle"
    assert 0 < action.wait_seconds <= 30
    assert "2 jobs in a row failed here" in action.reason
    assert Agent(make_node("sound")[1]).ask().action == "job"
    rest_is_over()
    agent.work().finish()
    assert Node.objects.get(name="loco").failures == 0


def test_job_without_valid_order_fails_alone(agent: Agent, calls: list[Any]) -> None:
    broken = make_job(author="nobody", impact=5)
    fine = make_job()
    assert agent.work().spec.job == fine.pk
    broken.refresh_from_db()
    assert (broken.state, broken.cause) == (Job.State.FAILED, "infrastructure")
    assert Lease.objects.count() == 1


# --- silence ---------------------------------------------------------------------------------------------------------


def test_job_without_heartbeats_resumes_elsewhere(work: Work, other: Agent, calls: list[Any]) -> None:
    work.checkpoint(100, b"early")
    work.checkpoint(200, b"late")
    work.heartbeat()
    assert lease_sweeper.sweep_leases() == 0
    silence()
    assert lease_sweeper.sweep_leases() == 1
    assert lease_sweeper.sweep_leases() == 0
    assert calls[-1] == ("requeued", "loco fell silent.")
    assert work.row.state == Lease.State.LOST
    order = other.work().spec.order
    assert isinstance(order, protocol.TrainOrder)
    assert order.resume is not None
    assert order.resume.step == 200


def test_heartbeat_in_time_renews_lease(work: Work) -> None:
    silence()
    assert work.heartbeat().status_code == 200  # nobody has swept yet, so nobody else has the job
    assert lease_sweeper.sweep_leases() == 0
    assert work.row.expires_at > timezone.now()


def test_heartbeat_during_sweep_keeps_lease(work: Work) -> None:
    lease = work.row
    seen = timezone.now() + timedelta(seconds=61)  # a sweep that found the lease expired
    Lease.objects.update(expires_at=seen + timedelta(seconds=60))  # and then its heartbeat came
    assert not leases.lose_lease(lease, "fell silent", expired_before=seen)
    assert work.row.state == Lease.State.ACTIVE


def test_job_with_lost_leases_fails_after_max_attempts(agent: Agent) -> None:
    job = make_job(max_attempts=2)
    for _ in range(2):
        agent.work()
        silence()
        lease_sweeper.sweep_leases()
    job.refresh_from_db()
    assert job.state == Job.State.FAILED
    assert "loco fell silent" in job.reason


def test_sweep_after_site_downtime_extends_leases(work: Work) -> None:
    now = timezone.now()
    lease_sweeper.sweep_leases(now)
    back = now + timedelta(hours=1)
    assert lease_sweeper.sweep_leases(back) == 0
    assert work.row.state == Lease.State.ACTIVE
    assert work.row.expires_at > back
    assert lease_sweeper.sweep_leases(back + timedelta(seconds=20)) == 0
    Sweep.objects.update(at=back + timedelta(seconds=100))
    assert lease_sweeper.sweep_leases(back + timedelta(seconds=101)) == 1


def test_poll_without_worker_sweeps_leases(work: Work, other: Agent) -> None:
    silence()
    assert other.ask().action == "job"
    assert work.row.state == Lease.State.LOST


def test_job_of_deleted_node_is_requeued(work: Work) -> None:
    job = work.job
    Node.objects.all().delete()
    assert lease_sweeper.sweep_leases() == 1
    job.refresh_from_db()
    assert (job.state, job.reason) == (Job.State.QUEUED, "Its node is gone.")


def test_restarted_node_abandons_its_lease(work: Work) -> None:
    work.heartbeat()
    again = work.agent.ask(abandoned=(work.lease.lease,))
    assert again.lease is not None
    assert (work.row.state, work.row.reason) == (Lease.State.LOST, "loco was restarted.")


def test_node_abandons_only_its_own_leases(work: Work, other: Agent) -> None:
    assert other.ask(abandoned=(work.lease.lease,)).action == "idle"
    assert work.row.state == Lease.State.ACTIVE


def test_lease_of_lost_reply_is_released(work: Work) -> None:
    assert work.agent.ask().action == "idle"  # too early to tell: the first heartbeat may be on its way
    Lease.objects.update(started_at=F("started_at") - timedelta(seconds=11))
    again = work.agent.ask()
    assert again.lease is not None
    assert again.lease.lease != work.lease.lease


def test_node_holds_one_job(work: Work) -> None:
    make_job()
    work.heartbeat()
    action = work.agent.ask()
    assert (action.action, action.wait_seconds) == ("idle", 5)
    assert "still holds" in action.reason
    assert leases.claim_job(work.row.node) is None  # not even past the polite check


# --- what people ask -------------------------------------------------------------------------------------------------


def test_cancel_queued_job_is_immediate(agent: Agent, calls: list[Any]) -> None:
    job = make_job()
    assert transitions.cancel_job(job, "ada", "Wrong seed.")
    assert (job.state, job.reason) == (Job.State.CANCELLED, "Wrong seed.")
    assert calls == [("cancelled", "Wrong seed.")]
    assert not transitions.cancel_job(job, "ada", "Again.")
    assert agent.ask().action == "idle"


@pytest.mark.parametrize("outcome", ["released", "done", "failed"])
def test_cancel_running_job_waits_for_node(work: Work, calls: list[Any], outcome: str) -> None:
    assert transitions.cancel_job(work.job, "ada", "Wrong seed.")
    assert work.job.state == Job.State.LEASED
    assert reply(work) == protocol.HeartbeatReply(stop="cancel", reason="Wrong seed.")
    assert work.finish(outcome).status_code == 200
    assert (work.job.state, work.job.stop_requested) == (Job.State.CANCELLED, "")
    assert calls[-1] == ("cancelled", "Wrong seed.")


def test_cancel_running_job_completes_when_lease_expires(work: Work, calls: list[Any]) -> None:
    transitions.cancel_job(work.job, "ada", "Wrong seed.")
    silence()
    lease_sweeper.sweep_leases()
    assert work.job.state == Job.State.CANCELLED
    assert calls[-1] == ("cancelled", "Wrong seed.")


def test_released_job_resumes(work: Work, other: Agent) -> None:
    assert transitions.request_hand_back(work.job, "site", "The nightly train needs the node.")
    assert reply(work).stop == "finish"
    work.checkpoint(50)
    work.finish("released")
    assert (work.job.state, work.job.failures, work.job.stop_requested) == (Job.State.QUEUED, 0, "")
    assert other.ask().action == "job"


def test_hand_back_request_does_not_replace_cancellation(work: Work) -> None:
    transitions.cancel_job(work.job, "ada", "Wrong seed.")
    assert not transitions.request_hand_back(work.job, "site", "Make room.")
    assert reply(work).stop == "cancel"


def test_held_job_waits_until_queued(work: Work, other: Agent) -> None:
    assert transitions.hold_job(work.job, "ada", "Let me look first.")
    assert reply(work).stop == "finish"
    work.finish("released")
    assert work.job.state == Job.State.HELD
    assert other.ask().action == "idle"
    assert transitions.queue_job(work.job, "ada")
    assert other.ask().action == "job"


# --- the node's state -------------------------------------------------------------------------------------------------


def test_node_state_follows_its_polls(agent: Agent) -> None:
    agent.ask()
    assert Node.objects.get().state == Node.State.ONLINE
    lease_sweeper.sweep_leases(timezone.now() + timedelta(minutes=3))
    assert Node.objects.get().state == Node.State.OFFLINE
    Node.objects.update(last_seen=None)
    agent.ask()
    assert Node.objects.get().state == Node.State.ONLINE


def test_drained_node_finishes_job_and_stops(work: Work) -> None:
    pool.drain_node(work.row.node, "ada")
    assert reply(work).stop == ""
    work.finish()
    assert work.agent.ask().action == "stop"


def test_paused_node_releases_job_and_waits(work: Work) -> None:
    pool.pause_node(work.row.node, "ada", "I need my GPU tonight.")
    assert reply(work) == protocol.HeartbeatReply(stop="finish", reason="I need my GPU tonight.")
    work.finish("released")
    action = work.agent.ask()
    assert (action.action, action.reason) == ("pause", "I need my GPU tonight.")
    pool.resume_node(Node.objects.get(), "ada")
    assert work.agent.ask().action == "job"


def test_node_without_sandbox_gets_only_site_code(db: None) -> None:
    bare = Agent(make_node("bare")[1])
    make_job()
    asked = HARDWARE.model_copy(update={"sandboxes": ("none",)})
    action = bare.ask(hardware=asked)
    assert (action.action, action.reason) == ("idle", "The waiting jobs need a node with a sandbox.")
    make_job(needs_sandbox=False)
    assert bare.ask(hardware=asked).action == "job"


def test_reported_hardware_is_matched(agent: Agent) -> None:
    make_job(needs_disk_bytes=500 * 10**9)
    assert agent.ask().reason == "The waiting jobs need a node with 500 GB of free disk."
    assert agent.ask(hardware=HARDWARE.model_copy(update={"disk_free_bytes": 10**12})).action == "job"


def test_lease_duration_follows_settings(agent: Agent, settings: Settings) -> None:
    settings.LEASE_SECONDS = 7.0
    make_job()
    work = agent.work()
    assert work.lease.seconds == 7
    assert work.row.expires_at - work.row.started_at == timedelta(seconds=7)


def test_ended_lease_error_says_uploads_are_safe(work: Work) -> None:
    silence()
    lease_sweeper.sweep_leases()
    assert "What was uploaded is safe" in sentence(work.heartbeat())


def test_job_waits_for_independent_node(agent: Agent) -> None:
    first = Node.objects.get()
    owner = User.objects.create(username="eve")
    make_job(excluded_nodes=[first.pk], excluded_owners=[owner.pk])
    assert "independent of the authors" in agent.ask().reason
    relative = Agent(make_node("hers", owner=owner)[1])
    assert relative.ask().lease is None
    stranger = Agent(make_node("strange")[1])
    assert stranger.ask().lease is not None


def test_checkpoint_records_its_lease(agent: Agent) -> None:
    make_job()
    work = agent.work()
    work.checkpoint(5)
    assert work.job.checkpoints.get().lease == work.row
