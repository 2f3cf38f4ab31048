"""Whose fault a failure is: claims of nodes, exclusions after faults, and unusable checkpoints."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from pytest_django import Settings

from scheduler import failure_reports, leases, transitions
from scheduler.models import FailureReport, Job, Lease, Node
from scheduler.node_vetting import PROBATION
from tests.support.pool import Agent, ClaimedJob, create_job, create_node, read_error_detail
from trainer import protocol

NAN = "The loss became NaN at step 12."


def create_agent(name: str, owner: str = "", **fields: object) -> Agent:
    user = User.objects.get_or_create(username=owner or f"owner of {name}")[0]
    return Agent(create_node(name, owner=user, **fields)[1])


def get_state(job: Job) -> tuple[str, str]:
    job.refresh_from_db()
    return job.state, job.cause


def get_failures(name: str) -> int:
    return Node.objects.get(name=name).failures


def get_resume_step(claimed_job: ClaimedJob) -> int | None:
    order = claimed_job.spec.order
    assert isinstance(order, protocol.TrainOrder)
    return order.resume.step if order.resume else None


def fail_to_resume(agent: Agent) -> int | None:
    """Take the job and fail to resume; return the step of the checkpoint."""
    claimed_job = agent.claim_job()
    claimed_job.finish("failed", fault="checkpoint", reason="It has no readable manifest.")
    return get_resume_step(claimed_job)


@pytest.fixture
def job(db: None) -> Job:
    return create_job(max_attempts=5)


# --- claims of a model's failure --------------------------------------------------------------------------------------


def test_model_failure_claimed_by_one_owner_requeues_job_elsewhere(job: Job) -> None:
    for name in ("mallory 1", "mallory 2"):
        agent = create_agent(name, "mallory")
        if name == "mallory 1":
            agent.claim_job().finish("failed", cause="model", reason=NAN)
        else:
            assert agent.request_action().action == "idle", "another node of the same owner says nothing new"
    assert get_state(job) == (Job.State.QUEUED, "")
    assert "mallory 1 says that the model failed" in job.reason
    assert (job.failures, get_failures("mallory 1")) == (0, 0)
    assert create_agent("honest").claim_job().finish().status_code == 200
    assert get_state(job) == (Job.State.DONE, "")


@pytest.mark.parametrize("trusted", [False, True])
def test_model_failure_is_final_once_second_owner_or_trusted_node_agrees(job: Job, trusted: bool) -> None:
    create_agent("first").claim_job().finish("failed", cause="model", reason=NAN)
    second = create_agent("second", trusted=trusted)
    second.claim_job().finish("failed", cause="model", reason="The loss is not finite.")
    assert get_state(job) == (Job.State.FAILED, "model")
    assert set(job.failure_reports.values_list("state", flat=True)) == {FailureReport.State.CONFIRMED}


def test_order_claimed_impossible_by_two_owners_fails_as_infrastructure(job: Job) -> None:
    for name in ("first", "second"):
        create_agent(name).claim_job().finish("failed", fault="order", reason="The configuration is invalid.")
    assert get_state(job) == (Job.State.FAILED, "infrastructure")
    assert (get_failures("first"), get_failures("second"), job.excluded_nodes) == (0, 0, [])


def test_nodes_without_owner_do_not_confirm_each_other(job: Job) -> None:
    for name in ("first", "second"):
        Agent(create_node(name)[1]).claim_job().finish("failed", cause="model", reason=NAN)
    assert get_state(job) == (Job.State.QUEUED, "")


@pytest.mark.parametrize(("fields", "state"), [({"valid_in_a_row": PROBATION}, "refuted"), ({}, "open")])
def test_claim_is_refuted_once_accepted_node_goes_on_past_it(job: Job, fields: dict[str, int], state: str) -> None:
    claimed_job = create_agent("liar").claim_job()
    claimed_job.upload_checkpoint(10, b"ten")
    claimed_job.finish("failed", cause="model", reason=NAN)
    other = create_agent("honest", **fields).claim_job()
    assert get_failures("liar") == 0
    other.upload_checkpoint(11, b"eleven")
    assert job.failure_reports.get().state == state
    assert get_failures("liar") == (1 if state == "refuted" else 0)
    assert claimed_job.row.machine_fault == (state == "refuted"), "a refuted claim is no contribution"


# --- faults of machines -----------------------------------------------------------------------------------------------


def test_node_with_machine_fault_gets_job_again_once_it_is_readmitted(job: Job) -> None:
    agent = create_agent("dying")
    agent.claim_job().finish("failed", reason="CUDA error: uncorrectable ECC error encountered")
    Node.objects.update(rest_until=None)
    idle = agent.request_action()
    assert (idle.action, "has not failed at this job" in idle.reason) == ("idle", True)
    failure_reports.readmit_node(Node.objects.get(name="dying"))
    assert agent.claim_job().spec.attempt == 2


def test_node_readmitted_after_job_failed_gets_its_retry(job: Job) -> None:
    Job.objects.update(max_attempts=1)
    agent = create_agent("only")
    agent.claim_job().finish("failed", reason="CUDA error")
    assert get_state(job) == (Job.State.FAILED, "infrastructure")
    Node.objects.update(rest_until=None)
    failure_reports.readmit_node(Node.objects.get(name="only"))
    transitions.retry_job(job, "site")
    assert agent.claim_job().spec.attempt == 2


def test_exclusions_of_claims_remain_until_a_person_lifts_them(job: Job) -> None:
    agent = create_agent("first")
    agent.claim_job().finish("failed", cause="model", reason=NAN)
    failure_reports.readmit_node(Node.objects.get(name="first"))
    assert agent.request_action().action == "idle"
    assert failure_reports.lift_exclusions(job, "mara")
    assert agent.claim_job().spec.attempt == 2


@pytest.mark.parametrize("end", ["released", "lost"])
def test_node_that_takes_job_again_and_again_without_checkpoint_is_excluded(job: Job, end: str) -> None:
    agent = create_agent("rebooting")
    agent.claim_job().upload_checkpoint(10, b"ten")
    for _ in range(1 + failure_reports.FRUITLESS_LEASES):
        lease = Lease.objects.get(state=Lease.State.ACTIVE)
        if end == "lost":
            leases.lose_lease(lease, "rebooting was restarted.")
        else:
            leases.finish_lease(lease, protocol.FinishLease(outcome="released"))
        reply = agent.request_action()
    assert reply.lease is None
    assert get_failures("rebooting") == 1
    assert create_agent("sound").claim_job().spec.order.kind == "train"


@pytest.mark.parametrize("kind", failure_reports.SHARED_KINDS)
def test_node_that_hands_alike_jobs_back_again_and_again_is_at_fault(db: None, settings: Settings, kind: str) -> None:
    settings.JOB_KINDS = {**settings.JOB_KINDS, kind: settings.JOB_KINDS["train"]}
    node = create_node("fickle", packets=Node.Packets.BETWEEN)[0]
    for number in range(1, 1 + failure_reports.FRUITLESS_LEASES):
        job = create_job(kind=kind)
        assert leases.claim_job(node)
        leases.finish_lease(Lease.objects.get(job=job), protocol.FinishLease(outcome="released"))
        transitions.cancel_job(job, "site", "Another one like it follows.")
        assert get_failures("fickle") == (number == failure_reports.FRUITLESS_LEASES)


@pytest.mark.parametrize("end", ["failed", "lost"])
def test_failures_of_one_owners_nodes_count_once_until_next_checkpoint(job: Job, end: str) -> None:
    Job.objects.update(max_attempts=2)
    for number in range(3):
        claimed_job = create_agent(f"mallory {number}", "mallory").claim_job()
        if end == "failed":
            claimed_job.finish("failed", reason="No GPU.")
        else:
            leases.lose_lease(claimed_job.row, "It fell silent.")
    assert get_state(job) == (Job.State.QUEUED, "")
    assert job.failures == 1


# --- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [4 * 10**18, 10**9])
def test_checkpoint_of_unreachable_step_is_refused(job: Job, step: int) -> None:
    response = create_agent("mallory").claim_job().upload_checkpoint(step, b"\x00" * 700)
    assert response.status_code == 422
    assert f"cannot be at step {step} yet" in read_error_detail(response)


def test_unusable_checkpoint_is_dropped_after_two_failed_resumes(job: Job) -> None:
    honest = create_agent("honest").claim_job()
    honest.upload_checkpoint(10, b"ten")
    honest.finish("released")
    poisoner = create_agent("poisoner").claim_job()
    for step in (20, 30):
        poisoner.upload_checkpoint(step, b"\x00" * (700 + step))
    poisoner.finish("released")
    assert not poisoner.row.machine_fault
    assert [fail_to_resume(create_agent(f"victim {number}")) for number in range(4)] == [30, 30, 20, 20]
    assert [get_failures(f"victim {number}") for number in range(4)] == [0, 0, 0, 0]
    assert get_failures("poisoner") == 2
    assert poisoner.row.machine_fault
    assert get_state(job) == (Job.State.QUEUED, "")
    assert job.excluded_nodes == [Node.objects.get(name="poisoner").pk]
    last = create_agent("victim 0 again", "owner of victim 0").claim_job()
    assert get_resume_step(last) == 10
    assert last.upload_checkpoint(30, b"thirty, honestly").status_code == 200


def test_checkpoint_is_kept_if_one_owners_nodes_cannot_resume(job: Job) -> None:
    honest = create_agent("honest").claim_job()
    honest.upload_checkpoint(10, b"ten")
    honest.finish("released")
    assert fail_to_resume(create_agent("mallory 1", "mallory")) == 10
    assert create_agent("mallory 2", "mallory").request_action().action == "idle"
    resumed = create_agent("other", valid_in_a_row=PROBATION).claim_job()
    assert get_resume_step(resumed) == 10
    resumed.upload_checkpoint(20, b"twenty")
    assert (get_failures("honest"), get_failures("mallory 1")) == (0, 1)


def test_only_node_of_a_site_drops_its_unusable_checkpoint(job: Job) -> None:
    agent = create_agent("only", trusted=True)
    claimed_job = agent.claim_job()
    claimed_job.upload_checkpoint(10, b"ten")
    claimed_job.upload_checkpoint(20, b"\x00" * 700)
    claimed_job.finish("released")
    assert [fail_to_resume(agent), fail_to_resume(agent)] == [20, 20]
    Node.objects.update(rest_until=timezone.now() - timedelta(seconds=1))
    failure_reports.readmit_node(Node.objects.get())
    assert get_resume_step(agent.claim_job()) == 10
