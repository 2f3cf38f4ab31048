"""Failures that nodes report: what each kind does to the job, the node and the entry, and who may not try it again.

`trainer.errors.FAILURES` says which failure is of which kind, and `CONSEQUENCES` what happens then;
`docs/reference/faults.md` is made of both. A fault of the machine excludes its node from the job. What a node says of
the entry, of a checkpoint or of the order is a claim: the job goes on elsewhere, without the node and its owner, until
a node of a second owner or a trusted one says the same. A claim is refuted when a node whose results are accepted goes
on past its step; then the node was at fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import Max, Q, QuerySet
from django.utils import timezone

from scheduler import checkpoints, node_health, node_vetting, pool, transitions
from scheduler.job_kinds import get_job_kind
from scheduler.matching import PACKETS_KIND, SEAT_KIND, SELF_TEST_KIND
from scheduler.models import SITE_ACTOR, Checkpoint, Event, FailureReport, Job, Lease, Node
from trainer import protocol

Fault = FailureReport.Fault
State = FailureReport.State
EXCLUDING_STATES = (State.OPEN, State.REFUTED)
FAILED_RESUMES = 2
"""Failures to resume from a checkpoint, at most one of each owner's nodes, after which it is dropped."""
FRUITLESS_LEASES = 3
"""Leases in a row that a node lost or handed back without a checkpoint, after which its machine is at fault."""
FRUITLESS_PERIOD = timedelta(hours=1)
FRUITLESS = f"It fell silent or handed the job back {FRUITLESS_LEASES} times without a checkpoint."
SHARED_KINDS = (PACKETS_KIND, SEAT_KIND)
"""Kinds whose jobs are alike: a node that failed one rests instead of being excluded from each."""
SITE_LIMIT = "A limit of this site stopped it; raise it in the track's limits, then resume the run."


def find_checkpoint(lease: Lease) -> Checkpoint | None:
    """Return the checkpoint that the lease resumes from or reads."""
    order = protocol.JobSpec.model_validate_json(lease.spec).order
    resume = getattr(order, "resume", None)
    if isinstance(resume, protocol.Checkpoint):
        return lease.job.checkpoints.uploaded().filter(step=resume.step).first()
    return get_job_kind(lease.job).find_read_checkpoint(lease.job)


def classify_failure(lease: Lease, message: protocol.FinishLease) -> tuple[Fault, str]:
    """Return what is at fault for a reported failure, by the node's word, and the reason."""
    job, reason = lease.job, message.reason or "The node could not go on."
    if job.kind == SELF_TEST_KIND:  # whatever it says: it tests the machine
        return Fault.MACHINE, reason
    if "model" in (message.fault, message.cause):
        return Fault.MODEL, message.reason or "The model failed; its log says more."
    if lease.rejected_bytes is not None and job.entry_id and job.needs_sandbox:  # an entry's own code wrote the file
        return Fault.MODEL, f"Its files are too large. {message.reason}"
    if lease.rejected_bytes is not None:  # a node may declare any size
        return Fault.LIMIT, message.reason
    if message.fault == "checkpoint" and find_checkpoint(lease) is None:
        return Fault.ORDER, reason
    return Fault(message.fault or Fault.MACHINE), reason


def process_failure(lease: Lease, fault: Fault, reason: str) -> None:
    """Record a failure that ended a lease, and end or requeue its job. Requires a transaction."""
    report = record_report(lease, fault, reason)
    consequence = CONSEQUENCES[fault]
    if consequence.claim and not is_agreed(report):
        requeue_after_claim(report)
    else:
        consequence.apply(report)


def record_report(lease: Lease, fault: Fault, reason: str) -> FailureReport:
    checkpoint = find_checkpoint(lease) if fault == Fault.CHECKPOINT else None
    return FailureReport.objects.create(
        lease=lease,
        job=lease.job,
        node=lease.node,
        owner=lease.node.owner,
        fault=fault,
        reason=reason[:500],
        step=checkpoint.step if checkpoint else get_newest_step(lease.job),
    )


def get_newest_step(job: Job) -> int:
    """Return the newest step that nodes have reported."""
    uploaded = job.checkpoints.uploaded().aggregate(step=Max("step"))["step"]
    return max(uploaded or 0, get_job_kind(job).get_reported_step(job))


def build_exclusions(report: FailureReport, *, with_owner: bool = False) -> dict[str, Any]:
    """Return the job's columns without the report's node, with `with_owner` also without its owner's others."""
    job = Job.objects.only("kind", "excluded_nodes", "excluded_owners").get(pk=report.job_id)
    if job.kind in SHARED_KINDS:
        return {}
    owners = {report.owner_id} - {None} if with_owner else set()
    return {
        "excluded_nodes": sorted({*job.excluded_nodes, report.node_id}),
        "excluded_owners": sorted({*job.excluded_owners, *owners}),
    }


def counts_as_attempt(report: FailureReport) -> bool:
    """Whether the job comes closer to failing. Between two checkpoints an owner's untrusted nodes count once."""
    if report.node.trusted:
        return True
    last = Checkpoint.objects.uploaded().filter(job=report.job_id).aggregate(at=Max("created_at"))["at"]
    others = FailureReport.objects.filter(
        job=report.job_id, owner=report.owner_id, fault__in=[Fault.MACHINE, Fault.SILENCE], node__trusted=False
    ).exclude(pk=report.pk)
    return not (others.filter(at__gt=last) if last else others).exists()


# --- claims -----------------------------------------------------------------------------------------------------------


def find_open_claims(report: FailureReport) -> QuerySet[FailureReport]:
    """Return the open reports of the same fault, this one included."""
    alike = FailureReport.objects.filter(job=report.job_id, fault=report.fault, state=State.OPEN)
    return alike.filter(step=report.step) if report.fault == Fault.CHECKPOINT else alike


def is_agreed(report: FailureReport) -> bool:
    """Whether a trusted node, or nodes of two owners, say the same. Nodes without an owner count as one owner's."""
    claims = list(find_open_claims(report).select_related("node"))
    if report.fault == Fault.CHECKPOINT:  # the file may have been damaged on the way even to a trusted node
        owners = {claim.owner_id for claim in claims if not claim.node.trusted}
        return len(owners) + sum(claim.node.trusted for claim in claims) >= FAILED_RESUMES
    return report.node.trusted or len({claim.owner_id for claim in claims}) > 1


def requeue_after_claim(report: FailureReport) -> None:
    claim = CONSEQUENCES[Fault(report.fault)].claim.format(step=report.step)
    agreement = "This counts once a node of another owner, or a trusted one, says the same."
    message = f"{report.node.name} says {claim}. {agreement} It said: {report.reason}"
    may_retry = report.fault == Fault.CHECKPOINT and report.node.trusted
    exclusions = {} if may_retry else build_exclusions(report, with_owner=True)
    transitions.requeue_job(report.job, pool.get_actor(report.node), message, counts=False, **exclusions)


def credit_claims(report: FailureReport) -> None:
    for claim in close_claims(report):
        node_health.record_success(claim.node, report.job)


def close_claims(report: FailureReport) -> list[FailureReport]:
    """Mark the open claims as confirmed and return them."""
    claims = list(find_open_claims(report).select_related("node"))
    FailureReport.objects.filter(pk__in=[claim.pk for claim in claims]).update(state=State.CONFIRMED)
    return claims


def refute_claims(lease: Lease, step: int | None = None) -> None:
    """Charge the nodes whose claims a job refutes that has gone on to `step` elsewhere; None: to its end."""
    if not node_vetting.is_result_accepted(lease.node):
        return
    claims = FailureReport.objects.filter(job=lease.job_id, state=State.OPEN, fault__in=CLAIMS)
    claims = claims.exclude(node=lease.node_id)
    if step is not None:
        claims = claims.filter(step__lt=step)
    for claim in claims.select_related("lease__node", "lease__job"):
        if FailureReport.objects.filter(pk=claim.pk, state=State.OPEN).update(state=State.REFUTED):
            said = CONSEQUENCES[Fault(claim.fault)].claim.format(step=claim.step)
            reason = f"It said {said}; {lease.node.name} has gone on past that point."
            node_health.record_machine_fault(claim.lease, reason)


# --- consequences -----------------------------------------------------------------------------------------------------


def requeue_after_machine_fault(report: FailureReport) -> None:
    actor = pool.get_actor(report.node)
    node_health.record_machine_fault(report.lease, report.reason)
    exclusions = build_exclusions(report)
    transitions.requeue_job(report.job, actor, report.reason, counts=counts_as_attempt(report), **exclusions)


def requeue_after_silence(report: FailureReport) -> None:
    transitions.requeue_job(report.job, SITE_ACTOR, report.reason, counts=counts_as_attempt(report))


def fail_model(report: FailureReport) -> None:
    credit_claims(report)
    transitions.fail_job(report.job, pool.get_actor(report.node), "model", report.reason)


def fail_order(report: FailureReport) -> None:
    credit_claims(report)
    reason = f"No machine can run this: {report.reason}"
    transitions.fail_job(report.job, pool.get_actor(report.node), "infrastructure", reason)
    remove_exclusions(report.job_id)


def hold_job(report: FailureReport) -> None:
    credit_claims(report)
    actor, reason = pool.get_actor(report.node), f"{SITE_LIMIT} {report.reason}"
    transitions.requeue_job(report.job, actor, reason, counts=False, hold=True)
    remove_exclusions(report.job_id)


def drop_read_checkpoint(report: FailureReport) -> None:
    job, checkpoint = report.job, find_checkpoint(report.lease)
    assert checkpoint is not None, "nothing else has dropped it: the job had a lease"
    exclusions = drop_checkpoint(checkpoint, report)
    close_claims(report)
    message = f"The checkpoint of step {report.step} turned out to be unusable. "
    if checkpoint.job_id != job.pk:
        Job.objects.filter(pk=checkpoint.job_id).update(**exclusions)
        transitions.fail_job(job, SITE_ACTOR, "infrastructure", f"{message}{report.reason}")
        return
    last = job.checkpoints.resumable().last()
    message += f"The one of step {last.step} is used instead." if last else "There is no earlier one."
    transitions.requeue_job(job, SITE_ACTOR, message, counts=False, **exclusions)
    remove_exclusions(job.pk)


@dataclass(frozen=True)
class Consequence:
    """What a failure of one kind means, also in the words of the documentation."""

    apply: Callable[[FailureReport], None]
    job: str
    node: str = ""
    entry: str = ""
    claim: str = ""
    """What the node says. It is applied once another one says the same; empty: at once."""


CONSEQUENCES: Mapping[Fault, Consequence] = {
    Fault.MACHINE: Consequence(
        requeue_after_machine_fault,
        "goes on elsewhere from its last checkpoint; fails after `max_attempts` without a new one",
        "gets no job until it passes a self-test, after three faults in a row until its owner answers; never this job",
    ),
    Fault.SILENCE: Consequence(
        requeue_after_silence,
        "likewise, on any node",
        "the third time without a checkpoint as for a fault of the machine",
    ),
    Fault.MODEL: Consequence(
        fail_model,
        "fails for good: its seed cannot run again",
        entry="the attempt counts",
        claim="that the model failed",
    ),
    Fault.ORDER: Consequence(fail_order, "fails, and can be retried", claim="that no machine can run this"),
    Fault.LIMIT: Consequence(
        hold_job, "is held until a maintainer raises the limit", claim="that a limit of this site is too low"
    ),
    Fault.CHECKPOINT: Consequence(
        drop_read_checkpoint,
        "goes on from the checkpoint before",
        "the one that uploaded it as for the machine",
        claim="that it cannot resume from the checkpoint of step {step}",
    ),
}
CLAIMS = [fault for fault, consequence in CONSEQUENCES.items() if consequence.claim]


# --- checkpoints ------------------------------------------------------------------------------------------------------


def drop_checkpoint(dropped: Checkpoint, report: FailureReport) -> dict[str, Any]:
    """Resume from no checkpoint of this step or later, and charge the node that uploaded that one.

    Return the columns of the checkpoint's job that exclude this node.
    """
    uploaded = Checkpoint.objects.uploaded().filter(job=dropped.job_id)
    uploaded.filter(pk=dropped.pk).update(dropped_at=timezone.now())
    checkpoints.delete_files(dropped)
    last = Checkpoint.objects.resumable().filter(job=dropped.job_id).last()
    uploaded.filter(step__gt=last.step if last else -1).update(dropped_at=timezone.now())
    if dropped.lease is None:
        return {}
    uploader, reason = dropped.lease.node, f"Its checkpoint of step {dropped.step} is unusable: {report.reason}"
    Event.record(SITE_ACTOR, uploader, f"{uploader.name}: {reason}")
    node_health.record_machine_fault(dropped.lease, reason)
    fields: dict[str, Any] = {"fault": Fault.MACHINE, "reason": reason[:500], "state": State.OPEN}
    fields |= {"job": dropped.job, "node": uploader, "owner": uploader.owner}
    charged, _ = FailureReport.objects.update_or_create(lease=dropped.lease, defaults=fields)
    return build_exclusions(charged)


# --- exclusions -------------------------------------------------------------------------------------------------------


def lift_exclusions(job: Job, actor: str) -> bool:
    """Let all nodes try a job again that were excluded because they failed it; return whether there were any."""
    with transaction.atomic():
        lifted = FailureReport.objects.filter(job=job, state__in=EXCLUDING_STATES).update(state=State.LIFTED)
        is_changed = remove_exclusions(job.pk)
        if lifted:
            Event.record(actor, job, "Nodes that failed it may try it again.")
    job.refresh_from_db()
    return is_changed


def readmit_node(node: Node) -> None:
    """Let a node that has proven itself again try the jobs that failed because of its machine.

    Also those that were given up: the schedule retries them.
    """
    reports = FailureReport.objects.filter(node=node, fault=Fault.MACHINE, state=State.OPEN)
    jobs = set(reports.values_list("job", flat=True))
    reports.update(state=State.LIFTED)
    for job in sorted(jobs):
        remove_exclusions(job)


@transaction.atomic
def remove_exclusions(job_id: int) -> bool:
    """Let the nodes try a job again whose reports no longer exclude them; return whether there were any."""
    job = Job.objects.select_for_update(no_key=True).get(pk=job_id)
    reports = FailureReport.objects.filter(job=job).order_by()
    excluding = reports.filter(build_exclusion_filter())
    claims = excluding.exclude(fault=Fault.MACHINE)
    nodes = set(reports.values_list("node", flat=True)) - set(excluding.values_list("node", flat=True))
    owners = set(reports.values_list("owner", flat=True)) - set(claims.values_list("owner", flat=True))
    lists = {
        "excluded_nodes": [pk for pk in job.excluded_nodes if pk not in nodes],
        "excluded_owners": [pk for pk in job.excluded_owners if pk not in owners],
    }
    if lists == {"excluded_nodes": job.excluded_nodes, "excluded_owners": job.excluded_owners}:
        return False
    Job.objects.filter(pk=job.pk).update(**lists)
    # Free nodes that may try it now get the time to poll (`preemption.FREE_SLOT_GRACE`).
    Job.objects.filter(pk=job.pk, state=Job.State.QUEUED).update(state_since=timezone.now())
    return True


def build_exclusion_filter() -> Q:
    """Return the condition that a report excludes its node."""
    return Q(state__in=EXCLUDING_STATES) & ~Q(fault=Fault.SILENCE) & ~Q(fault=Fault.CHECKPOINT, node__trusted=True)


def has_exclusions(job: Job) -> bool:
    """Whether nodes are excluded because they failed the job."""
    return FailureReport.objects.filter(build_exclusion_filter(), job=job).exists()


def process_release(lease: Lease, reason: str) -> None:
    """Requeue a job that its node handed back. Requires a transaction."""
    if not lease.job.stop_requested and is_fruitless(lease):
        process_failure(lease, Fault.MACHINE, f"{FRUITLESS} {reason}")
    else:
        transitions.requeue_job(lease.job, pool.get_actor(lease.node), reason, counts=False)


def is_fruitless(lease: Lease) -> bool:
    """Whether the node has lost the job or handed it back again and again since the job's last checkpoint.

    Of jobs that are alike, and leave none: within an hour.
    """
    unfinished = [Lease.State.LOST, Lease.State.RELEASED]
    if lease.job.kind in SHARED_KINDS:
        recent = Lease.objects.filter(node=lease.node_id, job__kind=lease.job.kind).order_by("-pk")
        recent = recent.filter(started_at__gt=timezone.now() - FRUITLESS_PERIOD)
        states = list(recent.values_list("state", flat=True)[:FRUITLESS_LEASES])
        return len(states) == FRUITLESS_LEASES and set(states) <= set(unfinished)
    ended = Lease.objects.filter(job=lease.job_id, node=lease.node_id, state__in=unfinished)
    last = Checkpoint.objects.uploaded().filter(job=lease.job_id).aggregate(at=Max("created_at"))["at"]
    return (ended.filter(started_at__gt=last) if last else ended).count() >= FRUITLESS_LEASES


def process_silence(lease: Lease, reason: str) -> None:
    """Requeue the job of a lost lease. Requires a transaction."""
    if is_fruitless(lease):
        process_failure(lease, Fault.MACHINE, f"{FRUITLESS} {reason}")
    else:
        process_failure(lease, Fault.SILENCE, reason)
