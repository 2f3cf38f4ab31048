"""Jobs of kind `rephrase`: a volunteer sits down for a campaign, on the queue and under the leases that trains have.

Every running campaign keeps some in the queue, behind everything else; whoever takes one sees to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.conf import settings
from django.utils import timezone

from scheduler import storage
from scheduler import transitions as jobs
from scheduler.campaigns import packet_orders
from scheduler.campaigns import release as giving_back
from scheduler.job_kinds import JobSummary
from scheduler.models import Blob, Campaign, Checkpoint, Job, Lease, Packet, Sitting
from trainer import protocol

KIND: Final = "rephrase"
AHEAD = 16
"""Sittings of a campaign that wait for somebody: so many volunteers can sit down at the same moment."""
CHECKPOINT_SECONDS = 60.0
"""After so long something has been handed in, and whoever needs the node for a train gets it."""
GIGABYTE = 2**30
LIMITS = {"memory_bytes": 64 * GIGABYTE, "disk_bytes": 128 * GIGABYTE, "processes": 4096}
"""Of a volunteer's own back end, which is theirs to limit."""
MAX_ATTEMPTS = 1000
"""A sitting is nothing that could fail: who leaves it loses what was not handed in, which others write then."""
SITE = "site"


def label(model: str) -> str:
    """Return what a node must carry to write with a model: `scheduler.node_slots` finds out which it can."""
    return f"model:{model}"


def track(campaign: Campaign) -> str:
    return f"{KIND}:{campaign.slug}"


def waiting(campaign: Campaign) -> int:
    return Job.objects.filter(sitting__campaign=campaign, state=Job.State.QUEUED).count()


def has_work(campaign: Campaign) -> bool:
    """Whether whoever sits down gets something, now or once more is read. What others hold may come back: then."""
    return not campaign.exhausted or campaign.packets.filter(state=Packet.State.WAITING).exists()


def top_up_all() -> int:
    """Keep enough sittings of every running campaign; return how many are new."""
    made = 0
    for campaign in Campaign.objects.filter(state=Campaign.State.RUNNING):
        lacking = AHEAD - waiting(campaign) if has_work(campaign) else 0
        if lacking > 0:
            made += len(make(campaign, lacking, storage.store_release()))
        # Age lifts what waits, and these would rise above the trains.
        Job.objects.filter(sitting__campaign=campaign, state=Job.State.QUEUED).update(queued_at=timezone.now())
    return made


def make(campaign: Campaign, count: int, release: Blob) -> list[Job]:
    """Queue so many sittings. Bring a transaction if they belong to something."""
    made = []
    for _ in range(count):
        job = Job.objects.create(
            kind=KIND,
            priority=Job.Priority.PACKETS,
            expected_seconds=settings.SITTING_SECONDS,
            checkpoint_seconds=CHECKPOINT_SECONDS,
            author=track(campaign),
            track=track(campaign),
            needs_labels=[label(campaign.model)],
            needs_sandbox=False,  # none but our own code runs, and a back end of the volunteer's
            from_core=True,
            preemptible=True,
            max_attempts=MAX_ATTEMPTS,
            release=release,
            limits=protocol.JobLimits(wall_seconds=settings.SITTING_SECONDS, **LIMITS).model_dump(),
        )
        Sitting.objects.create(job=job, campaign=campaign)
        made.append(job)
    return made


def call_off(campaign: Campaign, by: str, reason: str) -> None:
    """Take away what waits; who is sitting is told with the next packets that are asked for."""
    for job in Job.objects.filter(sitting__campaign=campaign, state__in=jobs.WAITING_STATES):
        jobs.cancel_job(job, by, reason)


class Sittings:
    """The handler (`settings.JOB_KINDS`)."""

    def order(self, job: Job, resume: protocol.Checkpoint | None) -> protocol.RephraseOrder:
        return packet_orders.order(job.sitting.campaign)

    def leased(self, job: Job, lease: Lease) -> None:
        campaign = job.sitting.campaign
        if campaign.state == Campaign.State.RUNNING and has_work(campaign) and waiting(campaign) < AHEAD:
            make(campaign, 1, job.release)

    def metrics(self, job: Job, rows: Sequence[dict[str, Any]]) -> None:
        """Nothing: what counts is handed in."""

    def checkpoint(self, job: Job, checkpoint: Checkpoint) -> None:
        """Nothing: it leaves none."""

    def requeued(self, job: Job, reason: str) -> None:
        giving_back.of_job(job)
        if job.sitting.campaign.state != Campaign.State.RUNNING:
            jobs.cancel_job(job, SITE, f"{job.sitting.campaign.name} is {job.sitting.campaign.state}.")

    def done(self, job: Job, result: dict[str, Any]) -> None:
        giving_back.of_job(job)

    def failed(self, job: Job, cause: protocol.Cause, reason: str) -> None:
        giving_back.of_job(job)

    def cancelled(self, job: Job, reason: str) -> None:
        giving_back.of_job(job)

    def about(self, jobs: Sequence[Job]) -> dict[int, JobSummary]:
        sittings = Sitting.objects.filter(job__in=jobs).select_related("campaign")
        return {
            one.job_id: JobSummary(f"Packets of {one.campaign.name}", one.campaign.get_absolute_url())
            for one in sittings
        }
