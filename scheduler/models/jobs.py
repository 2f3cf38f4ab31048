"""The queue: jobs, the leases under which nodes work on them, and what they leave behind."""

from __future__ import annotations

from datetime import datetime

from django.db import models
from django.utils import timezone

from scheduler.models.pool import Node


class Blob(models.Model):
    """A file by content, kept once in the storage. A row means that the whole file is there, with this hash."""

    sha256 = models.CharField(max_length=64, primary_key=True)
    name = models.CharField(max_length=120)
    """Its name in the storage: never used twice, so that forgetting a file cannot hit one that has just come again."""
    size = models.BigIntegerField()
    created_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return self.sha256[:12]


class Job(models.Model):
    """A piece of work for a node. What it means is its kind's business (`settings.JOB_KINDS`)."""

    class State(models.TextChoices):
        HELD = "held"
        QUEUED = "queued"
        LEASED = "leased"
        DONE = "done"
        FAILED = "failed"
        CANCELLED = "cancelled"

    class Priority(models.IntegerChoices):
        """Order of the queue; lower goes first."""

        SCORE = 0  # short, and somebody is waiting for the result
        NIGHTLY = 10
        CONFIRMATION = 20
        MAINTAINER = 30
        COMMUNITY = 40
        LADDER = 50
        PACKETS = 60

    kind = models.CharField(max_length=20)
    state = models.CharField(max_length=10, choices=State.choices, default=State.QUEUED, db_index=True)
    reason = models.CharField(max_length=500, blank=True)
    """Why it is in this state, for the page."""
    cause = models.CharField(max_length=16, blank=True)
    """Of a failure: `model` or `infrastructure`."""
    priority = models.IntegerField(choices=Priority.choices, default=Priority.COMMUNITY)
    impact = models.IntegerField(default=0, help_text="Within a priority, higher goes first.")
    expected_seconds = models.FloatField(default=3600)
    author = models.CharField(max_length=120, blank=True)
    """For fair shares between authors."""
    needs_labels = models.JSONField(default=list, blank=True)
    needs_trusted = models.BooleanField(default=False)
    needs_disk_bytes = models.BigIntegerField(default=0)
    needs_gpus = models.PositiveSmallIntegerField(default=0)
    needs_gpu_memory_bytes = models.BigIntegerField(default=0)
    """On each of them."""
    needs_memory_bytes = models.BigIntegerField(default=0)
    track = models.CharField(max_length=50, blank=True)
    """A word by which an owner may lend a node to this line of work only."""
    from_core = models.BooleanField(default=False)
    """Asked for by a core member or the site itself: for nodes that serve nobody else."""
    checkpoint_seconds = models.FloatField(default=0)
    """From the start to the first checkpoint, and between two: a node whose time ends sooner does not begin."""
    preemptible = models.BooleanField(default=False)
    """Gives way to a nightly at its next checkpoint."""
    needs_sandbox = models.BooleanField(default=True, help_text="Not for nodes that run jobs without a sandbox.")
    excluded_nodes = models.JSONField(default=list, blank=True)
    """Ids, sorted: of nodes that may not do this job, because they did what it is to check."""
    excluded_owners = models.JSONField(default=list, blank=True)
    """User ids, sorted: of people whose nodes may not do this job."""
    not_before = models.DateTimeField(null=True, blank=True)
    """No node begins it sooner, or goes on with it; null: at once. Whoever made the job keeps both up to date."""
    not_after = models.DateTimeField(null=True, blank=True)
    """Nor from then on; what has begun by then goes on. Null: without end."""
    release = models.ForeignKey(Blob, on_delete=models.PROTECT, related_name="+")
    entry = models.ForeignKey(Blob, null=True, blank=True, on_delete=models.PROTECT, related_name="+")
    limits = models.JSONField(default=dict)
    """A `protocol.JobLimits`."""
    attempts = models.IntegerField(default=0)
    """Leases given so far."""
    failures = models.IntegerField(default=0)
    """Leases lost or failed by infrastructure since the last new checkpoint. Interruption is normal, standstill not."""
    max_attempts = models.IntegerField(default=5)
    """That many `failures` and the job fails; the model's own failures are not retried."""
    stop_requested = models.CharField(max_length=8, blank=True)
    """`finish` or `cancel`: told to the node with its next heartbeat."""
    stop_reason = models.CharField(max_length=500, blank=True)
    hold_requested = models.BooleanField(default=False)
    """When its node hands it back, it is held instead of queued."""
    result = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(default=timezone.now)
    queued_at = models.DateTimeField(default=timezone.now)
    """Since when it waits, for its age; kept when a lost lease puts it back."""
    state_since = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["priority", "-impact", "expected_seconds", "queued_at", "pk"]
        indexes = [
            models.Index(fields=["state", "priority", "-impact", "expected_seconds", "queued_at"]),
            models.Index(fields=["state", "state_since"]),
            # The jobs of one line, oldest first.
            models.Index(
                fields=["author", "expected_seconds", "queued_at"],
                condition=models.Q(state="queued"),
                name="waiting_jobs_of_author",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} job {self.pk} ({self.state})"


class LeaseQuerySet(models.QuerySet["Lease"]):
    def active(self, lease: Lease) -> LeaseQuerySet:
        """Return this lease if it is active: the condition of its changes."""
        return self.filter(pk=lease.pk, state=Lease.State.ACTIVE)

    def held_by(self, node: Node) -> LeaseQuerySet:
        return self.filter(node=node, state=Lease.State.ACTIVE)

    def expired(self, now: datetime) -> LeaseQuerySet:
        return self.filter(state=Lease.State.ACTIVE, expires_at__lt=now)


class Lease(models.Model):
    """A node's right to work on a job, until it finishes or its heartbeat stops."""

    class State(models.TextChoices):
        ACTIVE = "active"
        FINISHED = "finished"  # the node said how it ended
        RELEASED = "released"  # the node handed the job back
        LOST = "lost"  # its heartbeat stopped

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="leases")
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="leases")
    attempt = models.IntegerField()
    state = models.CharField(max_length=10, choices=State.choices, default=State.ACTIVE)
    token_hash = models.CharField(max_length=64, unique=True)
    started_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    slot = models.PositiveSmallIntegerField(default=0, help_text="Which of the node's slots runs the job.")
    gpus = models.PositiveSmallIntegerField(default=0)
    """GPUs of that slot."""
    accelerator = models.CharField(max_length=80, blank=True)
    """What they are, for the credit: a node's hardware may change, what was lent does not."""
    heartbeat_at = models.DateTimeField(null=True, blank=True)
    """Null until the node has been heard of under this lease: perhaps the answer to its question was lost."""
    outcome = models.CharField(max_length=8, blank=True)
    """The node's last word (`protocol.FinishLease.outcome`); saying it again changes nothing."""
    reason = models.CharField(max_length=500, blank=True)
    """Why it ended."""
    spec = models.TextField(blank=True)
    """The signed `protocol.JobSpec`: what the node may read is what it names."""
    uploads = models.ManyToManyField(Blob, blank=True, related_name="uploaded_under")
    """What the node has sent under this lease: only that, and the job's own, can become a checkpoint or a file.

    Their sizes count against the lease's limit. Files of superseded checkpoints are taken out.
    """
    limit_exceeded = models.BooleanField(default=False)
    """A limit of the site refused a file: if the lease fails, the node is not to blame."""
    phase = models.CharField(max_length=12, default="preparing")
    seconds = models.FloatField(default=0)
    """Wall seconds the job's processes ran, as metered by the agent."""
    metrics_received = models.IntegerField(default=0)
    log_received = models.BigIntegerField(default=0)

    objects = LeaseQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(fields=["expires_at"], condition=models.Q(state="active"), name="active_leases_by_end"),
            models.Index(fields=["started_at"], name="leases_by_start"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["job"], condition=models.Q(state="active"), name="one_active_lease_per_job"
            ),
            models.UniqueConstraint(
                fields=["node", "slot"], condition=models.Q(state="active"), name="one_active_lease_per_slot"
            ),
        ]

    def __str__(self) -> str:
        return f"lease {self.pk} of job {self.job_id} by node {self.node_id}"


class CheckpointQuerySet(models.QuerySet["Checkpoint"]):
    def with_files(self) -> CheckpointQuerySet:
        """Return those whose files are on the server."""
        return self.filter(files_deleted_at=None)


class Checkpoint(models.Model):
    """An uploaded checkpoint: where the job goes on, or what is scored."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="checkpoints")
    step = models.BigIntegerField()
    manifest = models.JSONField()
    """A `protocol.Checkpoint`."""
    lease = models.ForeignKey(Lease, null=True, blank=True, on_delete=models.SET_NULL, related_name="checkpoints")
    """Under which it came: whose work it is."""
    blobs = models.ManyToManyField(Blob, related_name="checkpoints")
    created_at = models.DateTimeField(default=timezone.now)
    files_deleted_at = models.DateTimeField(null=True, blank=True)
    """When its files were deleted, because newer checkpoints had superseded it; null: they are here."""

    objects = CheckpointQuerySet.as_manager()

    class Meta:
        ordering = ["step"]
        constraints = [models.UniqueConstraint(fields=["job", "step"], name="one_checkpoint_per_step")]

    def __str__(self) -> str:
        return f"job {self.job_id}, step {self.step}"


class JobFile(models.Model):
    """A small file that stays with the job: `run.json`, a plot."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="files")
    path = models.CharField(max_length=200)
    blob = models.ForeignKey(Blob, on_delete=models.PROTECT, related_name="+")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "path"], name="one_file_per_path")]

    def __str__(self) -> str:
        return self.path


class LogChunk(models.Model):
    """A stretch of a job's output."""

    lease = models.ForeignKey(Lease, on_delete=models.CASCADE, related_name="log")
    offset = models.BigIntegerField()
    text = models.TextField()

    class Meta:
        ordering = ["lease_id", "offset"]
        constraints = [models.UniqueConstraint(fields=["lease", "offset"], name="one_chunk_per_offset")]

    def __str__(self) -> str:
        return f"lease {self.lease_id} at {self.offset}"
