"""Jobs, leases, the checkpoints, files and logs of jobs, and the comparisons of their results."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.db import models
from django.utils import timezone

from scheduler.models.pool import Node


class Blob(models.Model):
    """A complete, verified file in the storage, stored once per content."""

    sha256 = models.CharField(max_length=64, primary_key=True)
    name = models.CharField(
        max_length=120,
        help_text="In the storage. Never reused, so that deleting a file cannot hit one that was uploaded again.",
    )
    size = models.BigIntegerField()
    created_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return self.sha256[:12]


class Job(models.Model):
    """A unit of work for a node. `settings.JOB_KINDS` has the handlers of its kinds."""

    class State(models.TextChoices):
        HELD = "held"
        QUEUED = "queued"
        LEASED = "leased"
        DONE = "done"
        FAILED = "failed"
        CANCELLED = "cancelled"

    class Priority(models.IntegerChoices):
        """Order of the queue; lower goes first."""

        SCORE = 0  # short
        NIGHTLY = 10
        CONFIRMATION = 20
        MAINTAINER = 30
        COMMUNITY = 40
        LADDER = 50
        PACKETS = 60

    kind = models.CharField(max_length=20)
    state = models.CharField(max_length=10, choices=State.choices, default=State.QUEUED, db_index=True)
    reason = models.CharField(max_length=500, blank=True, help_text="Why it is in this state.")
    cause = models.CharField(max_length=16, blank=True, help_text="Of a failure: model or infrastructure.")
    priority = models.IntegerField(choices=Priority.choices, default=Priority.COMMUNITY)
    impact = models.IntegerField(default=0, help_text="Within a priority, higher goes first.")
    expected_seconds = models.FloatField(default=3600)
    author = models.CharField(max_length=120, blank=True, help_text="For fair shares between authors.")
    needs_labels = models.JSONField(default=list, blank=True)
    needs_trusted = models.BooleanField(default=False)
    needs_disk_bytes = models.BigIntegerField(default=0)
    needs_gpus = models.PositiveSmallIntegerField(default=0)
    needs_gpu_memory_bytes = models.BigIntegerField(default=0, help_text="On each GPU.")
    needs_memory_bytes = models.BigIntegerField(default=0)
    track = models.CharField(max_length=50, blank=True, help_text="A node can be lent to jobs of one track only.")
    from_core = models.BooleanField(
        default=False, help_text="Requested by a core member or the site: for nodes that serve core members only."
    )
    checkpoint_seconds = models.FloatField(
        default=0,
        help_text="To the first checkpoint and between two. A node whose time ends sooner does not start the job.",
    )
    preemptible = models.BooleanField(default=False, help_text="Yields to a waiting nightly at its next checkpoint.")
    needs_vetted = models.BooleanField(
        default=False, db_default=False, help_text="For trusted nodes and vetted ones only."
    )
    needs_sandbox = models.BooleanField(default=True, help_text="Not for nodes that run jobs without a sandbox.")
    excluded_nodes = models.JSONField(
        default=list,
        blank=True,
        help_text="Sorted ids of nodes that may not run it: it checks their work, or they failed it.",
    )
    excluded_owners = models.JSONField(
        default=list, blank=True, help_text="Sorted user ids of people whose nodes may not run it."
    )
    not_before = models.DateTimeField(
        null=True, blank=True, help_text="No node starts or resumes it earlier. Empty: at once."
    )
    not_after = models.DateTimeField(
        null=True, blank=True, help_text="No node starts or resumes it later. Empty: no end."
    )
    release = models.ForeignKey(Blob, on_delete=models.PROTECT, related_name="+")
    entry = models.ForeignKey(Blob, null=True, blank=True, on_delete=models.PROTECT, related_name="+")
    limits = models.JSONField(default=dict, help_text="A protocol.JobLimits.")
    max_file_bytes = models.BigIntegerField(
        null=True, blank=True, help_text="Size limit of one upload. Empty: the setting BLOB_MAX_BYTES."
    )
    max_lease_bytes = models.BigIntegerField(
        null=True, blank=True, help_text="Size limit of all uploads of a lease. Empty: the setting LEASE_MAX_BYTES."
    )
    attempts = models.IntegerField(default=0, help_text="Leases so far.")
    failures = models.IntegerField(
        default=0, help_text="Leases lost or failed by infrastructure since the last new checkpoint."
    )
    max_attempts = models.IntegerField(
        default=5, help_text="The job fails after this many failures. A failure of the model is never retried."
    )
    stop_requested = models.CharField(
        max_length=8, blank=True, help_text="finish or cancel. The node receives it with its next heartbeat."
    )
    stop_reason = models.CharField(max_length=500, blank=True)
    hold_requested = models.BooleanField(
        default=False, help_text="The job is held, not queued, when its node hands it back."
    )
    result = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(default=timezone.now)
    queued_at = models.DateTimeField(
        default=timezone.now, help_text="Start of its waiting time. Kept when a lost lease requeues the job."
    )
    state_since = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["priority", "-impact", "expected_seconds", "queued_at", "pk"]
        indexes = [
            models.Index(fields=["state", "priority", "-impact", "expected_seconds", "queued_at"]),
            # The jobs of one group, oldest first.
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
    """A node's right to work on a job until it finishes or its heartbeats stop."""

    class State(models.TextChoices):
        ACTIVE = "active"
        FINISHED = "finished"  # the node reported the outcome
        RELEASED = "released"  # the node handed the job back
        LOST = "lost"  # its heartbeats stopped

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="leases")
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="leases")
    attempt = models.IntegerField()
    state = models.CharField(max_length=10, choices=State.choices, default=State.ACTIVE)
    token_hash = models.CharField(max_length=64, unique=True)
    started_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    slot = models.PositiveSmallIntegerField(default=0, help_text="Which of the node's slots runs the job.")
    gpus = models.PositiveSmallIntegerField(default=0, help_text="GPUs of the slot.")
    accelerator = models.CharField(
        max_length=80, blank=True, help_text="Their name, for the credit. The node's hardware may change later."
    )
    heartbeat_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="Empty until the first heartbeat: the reply to the node's poll may have been lost.",
    )
    outcome = models.CharField(
        max_length=8, blank=True, help_text="protocol.FinishLease.outcome. A repeat changes nothing."
    )
    reason = models.CharField(max_length=500, blank=True, help_text="Why it ended.")
    machine_fault = models.BooleanField(
        default=False, db_default=False, help_text="It failed because of the node, so it is no contribution."
    )
    spec = models.TextField(
        blank=True, help_text="The signed protocol.JobSpec. The node may download the files that it names."
    )
    uploads = models.ManyToManyField(
        Blob,
        blank=True,
        related_name="uploaded_under",
        help_text="Files uploaded under this lease, without superseded checkpoints. They count against its limit.",
    )
    rejected_bytes = models.BigIntegerField(
        null=True, blank=True, help_text="Largest size of a file that a limit of the site rejected."
    )
    phase = models.CharField(max_length=12, default="preparing")
    running_at = models.DateTimeField(
        null=True, blank=True, help_text="When its node first reported that the job itself runs."
    )
    seconds = models.FloatField(default=0, help_text="Wall time of the job's processes, measured by the agent.")
    metrics_received = models.IntegerField(default=0)
    metrics_at = models.DateTimeField(null=True, blank=True, help_text="When the latest batch of metrics arrived.")
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
        """Return the usable checkpoints whose files are on the server."""
        return self.filter(files_deleted_at=None, dropped_at=None)

    def uploaded(self) -> CheckpointQuerySet:
        """Return the checkpoints that a job resumes from and that replays compare."""
        return self.filter(from_milestone=False, dropped_at=None)

    def resumable(self) -> CheckpointQuerySet:
        """Return the checkpoints that a job can resume from."""
        return self.uploaded().with_files()


class Checkpoint(models.Model):
    """An uploaded checkpoint, from which the job resumes or is scored."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="checkpoints")
    step = models.BigIntegerField()
    manifest = models.JSONField(help_text="A protocol.Checkpoint.")
    lease = models.ForeignKey(
        Lease,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="checkpoints",
        help_text="Under which it was uploaded.",
    )
    blobs = models.ManyToManyField(Blob, related_name="checkpoints")
    seconds = models.FloatField(
        null=True, blank=True, help_text="Seconds that the job has been charged, as the node says. Null if unknown."
    )
    created_at = models.DateTimeField(default=timezone.now)
    files_deleted_at = models.DateTimeField(
        null=True, blank=True, help_text="When its files were deleted because newer checkpoints superseded it."
    )
    dropped_at = models.DateTimeField(
        null=True, blank=True, help_text="When it turned out to be unusable. A new one of its step replaces it."
    )
    from_milestone = models.BooleanField(
        default=False, help_text="Weights of a milestone that other runs start from. Nothing resumes from them."
    )

    objects = CheckpointQuerySet.as_manager()

    class Meta:
        ordering = ["step"]
        constraints = [
            models.UniqueConstraint(fields=["job", "step", "from_milestone"], name="one_checkpoint_per_step")
        ]

    def __str__(self) -> str:
        return f"job {self.job_id}, step {self.step}"


class FailureReport(models.Model):
    """Why a lease failed. What a node says of the entry, a checkpoint or the order is a claim until it is confirmed."""

    class Fault(models.TextChoices):
        MACHINE = "machine"
        SILENCE = "silence"  # its heartbeats stopped
        MODEL = "model"
        CHECKPOINT = "checkpoint"  # the node could not resume from it
        ORDER = "order"  # no machine can carry it out
        LIMIT = "limit"  # a limit of this site is too low

    class State(models.TextChoices):
        OPEN = "open"
        CONFIRMED = "confirmed"  # by a node of another owner, or a trusted one
        REFUTED = "refuted"  # the job went on past that step elsewhere
        LIFTED = "lifted"  # the node may try the job again

    lease = models.OneToOneField(Lease, on_delete=models.CASCADE, related_name="failure_report")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="failure_reports")
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="failure_reports")
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        help_text="Of the node at that time.",
    )
    fault = models.CharField(max_length=10, choices=Fault.choices)
    state = models.CharField(max_length=10, choices=State.choices, default=State.OPEN)
    step = models.BigIntegerField(
        default=0, help_text="The newest step that nodes had reported; of a checkpoint, its own."
    )
    reason = models.CharField(max_length=500, blank=True)
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["at", "pk"]

    def __str__(self) -> str:
        return f"{self.fault} of job {self.job_id}, reported by node {self.node_id} ({self.state})"


class JobFile(models.Model):
    """A small file of a job, such as `run.json`."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="files")
    path = models.CharField(max_length=200)
    blob = models.ForeignKey(Blob, on_delete=models.PROTECT, related_name="+")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "path"], name="one_file_per_path")]

    def __str__(self) -> str:
        return self.path


class LogChunk(models.Model):
    """Part of a job's output."""

    lease = models.ForeignKey(Lease, on_delete=models.CASCADE, related_name="log")
    offset = models.BigIntegerField()
    text = models.TextField()

    class Meta:
        ordering = ["lease_id", "offset"]
        constraints = [models.UniqueConstraint(fields=["lease", "offset"], name="one_chunk_per_offset")]

    def __str__(self) -> str:
        return f"lease {self.lease_id} at {self.offset}"


class ResultCheck(models.Model):
    """A node's result, compared by a checking job. One row per job, so that nothing counts twice."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="result_checks")
    job = models.OneToOneField(
        Job, on_delete=models.CASCADE, related_name="result_check", help_text="The job that compared."
    )
    valid = models.BooleanField()
    sentence = models.CharField(max_length=500)
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["at", "pk"]

    def __str__(self) -> str:
        return f"{self.node}: {self.sentence}"


class Sweep(models.Model):
    """The last sweep: a single row. After a long gap the site was down, so silent nodes keep their leases."""

    at = models.DateTimeField()

    def __str__(self) -> str:
        return f"swept at {self.at:%Y-%m-%d %H:%M:%S}"
