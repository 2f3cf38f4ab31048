"""Rephrase sessions: jobs of kind `rephrase`, under whose lease a volunteer takes and submits packets.

Every running campaign keeps some queued at the lowest priority. Each claimed session queues the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.conf import settings
from django.utils import timezone

from scheduler import storage, transitions
from scheduler.campaigns import messages, release
from scheduler.campaigns.models import Campaign, Packet, RephraseSession
from scheduler.errors import NotFoundError
from scheduler.job_kinds import JobKind, JobSummary
from scheduler.models import SITE_ACTOR, Blob, Job, Lease
from trainer import protocol

KIND: Final = "rephrase"
QUEUED_SESSIONS = 16
"""Per campaign: the number of volunteers that can start at the same moment."""
CHECKPOINT_SECONDS = 60.0
"""A session submits at least this often, so a train preempts it within a minute."""
GIGABYTE = 2**30
LIMITS = {"memory_bytes": 64 * GIGABYTE, "disk_bytes": 128 * GIGABYTE, "processes": 4096}
"""Limits of the volunteer's own back end. Its owner may set lower ones."""
MAX_ATTEMPTS = 1000
"""A session cannot fail: unfinished packets return to the queue."""


def get_campaign(lease: Lease) -> Campaign:
    """Return the campaign of a lease. Raise NotFoundError if the job is no rephrase session."""
    # Without its file names: a large source has thousands.
    sessions = RephraseSession.objects.select_related("campaign").defer("campaign__files")
    session = sessions.filter(job=lease.job_id).first()
    if session is None:
        raise NotFoundError("This lease is not a rephrase session: it has no packets.")
    return session.campaign


def count_queued(campaign: Campaign) -> int:
    return Job.objects.filter(rephrase_session__campaign=campaign, state=Job.State.QUEUED).count()


def has_work(campaign: Campaign) -> bool:
    """Whether a new session gets packets, now or after the producer's next batch."""
    return not campaign.is_exhausted or campaign.packets.filter(state=Packet.State.WAITING).exists()


def queue_sessions() -> int:
    """Keep enough sessions of every running campaign queued; return how many are new."""
    created = 0
    for campaign in Campaign.objects.running():
        lacking = QUEUED_SESSIONS - count_queued(campaign) if has_work(campaign) else 0
        if lacking > 0:
            created += len(create_sessions(campaign, lacking, storage.store_release()))
        # Age lifts waiting jobs, and sessions must not rise above training jobs.
        queued = Job.objects.filter(rephrase_session__campaign=campaign, state=Job.State.QUEUED)
        queued.update(queued_at=timezone.now())
    return created


def create_sessions(campaign: Campaign, count: int, release_blob: Blob) -> list[Job]:
    """Queue this many sessions."""
    track = f"{KIND}:{campaign.slug}"
    created = []
    for _ in range(count):
        job = Job.objects.create(
            kind=KIND,
            priority=Job.Priority.PACKETS,
            expected_seconds=settings.REPHRASE_SESSION_SECONDS,
            checkpoint_seconds=CHECKPOINT_SECONDS,
            author=track,
            track=track,
            needs_labels=[f"model:{campaign.model}"],  # set by `scheduler.node_slots`
            needs_sandbox=False,  # runs only our code and the volunteer's own back end
            from_core=True,
            preemptible=True,
            max_attempts=MAX_ATTEMPTS,
            release=release_blob,
            limits=protocol.JobLimits(wall_seconds=settings.REPHRASE_SESSION_SECONDS, **LIMITS).model_dump(),
        )
        RephraseSession.objects.create(job=job, campaign=campaign)
        created.append(job)
    return created


def cancel_sessions(campaign: Campaign, actor: str, reason: str) -> None:
    """Cancel the queued sessions. Running ones end with their next request for packets."""
    for job in Job.objects.filter(rephrase_session__campaign=campaign, state__in=transitions.WAITING_STATES):
        transitions.cancel_job(job, actor, reason)


class RephraseSessionHandler(JobKind):
    """Handles jobs of kind `rephrase` (`settings.JOB_KINDS`)."""

    def build_order(self, job: Job, resume: protocol.Checkpoint | None) -> protocol.RephraseOrder:
        return messages.build_order(job.rephrase_session.campaign)

    def handle_lease(self, job: Job, lease: Lease) -> None:
        campaign = job.rephrase_session.campaign
        is_running = campaign.state == Campaign.State.RUNNING
        if is_running and has_work(campaign) and count_queued(campaign) < QUEUED_SESSIONS:
            create_sessions(campaign, 1, job.release)

    def handle_requeue(self, job: Job, reason: str) -> None:
        release.release_job(job)
        campaign = job.rephrase_session.campaign
        if campaign.state != Campaign.State.RUNNING:
            transitions.cancel_job(job, SITE_ACTOR, f"{campaign.name} is {campaign.state}.")

    def handle_done(self, job: Job, result: dict[str, Any]) -> None:
        release.release_job(job)

    def handle_failure(self, job: Job, cause: protocol.Cause, reason: str) -> None:
        release.release_job(job)

    def handle_cancellation(self, job: Job, reason: str) -> None:
        release.release_job(job)

    def describe_jobs(self, jobs: Sequence[Job]) -> dict[int, JobSummary]:
        sessions = RephraseSession.objects.filter(job__in=jobs).select_related("campaign")
        return {
            session.job_id: JobSummary(f"Packets of {session.campaign.name}", session.campaign.get_absolute_url())
            for session in sessions
        }
