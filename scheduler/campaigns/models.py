"""Tables of the dataset swarm: campaigns, packets, assignments, texts and shards."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import Count, F, OuterRef, Q, Subquery, Sum
from django.db.models.functions import Coalesce
from django.urls import reverse
from django.utils import timezone

from scheduler.models import Blob, Job, Lease, Node
from trainer.rephrase import prompts

OutputKey = tuple[int, str]
"""Index of a chunk in the document, and a style."""
AT_LEAST_ONE = MinValueValidator(1)
RATE_VALIDATORS = [MinValueValidator(0.0), MaxValueValidator(0.5)]
REPOSITORY_NAME = RegexValidator(r"\A[\w.-]{1,96}\Z", "Use letters, digits, dots, dashes and underscores only.")


def generate_seed() -> int:
    return secrets.randbits(62)


def get_default_styles() -> list[str]:
    return ["easy", "medium", "hard", "qa"]


class CampaignQuerySet(models.QuerySet["Campaign"]):
    def started(self) -> CampaignQuerySet:
        return self.exclude(state=Campaign.State.DRAFT)

    def running(self) -> CampaignQuerySet:
        return self.filter(state=Campaign.State.RUNNING)

    def with_counts(self) -> CampaignQuerySet:
        """Add `finished` packets (done or set aside), accepted `texts`, their `tokens`, and submitting `volunteers`."""
        unfinished = Packet.objects.filter(campaign=OuterRef("pk"), state__in=Packet.UNFINISHED).order_by()
        left = unfinished.values("campaign").annotate(count=Count("pk")).values("count")
        return self.annotate(
            finished=F("packet_count") - Coalesce(Subquery(left), 0),
            texts=Sum("contributions__accepted", default=0),
            tokens=Sum("contributions__tokens", default=0),
            volunteers=Count("contributions", filter=Q(contributions__packets__gt=0)),
        )


class Campaign(models.Model):
    """A corpus that volunteers rephrase. The settings that shape its texts are frozen when it starts."""

    class State(models.TextChoices):
        DRAFT = "draft"
        RUNNING = "running"
        PAUSED = "paused"  # no packets are created or assigned; results are still accepted
        DONE = "done"  # every chunk has a text in every style, or is set aside

    class Source(models.TextChoices):
        HUB = "hub", "a dataset on the Hugging Face Hub"
        FILES = "files", "files on this server (below REPHRASE_FILES)"

    slug = models.SlugField(max_length=60, unique=True)
    name = models.CharField(max_length=100)
    about = models.TextField(blank=True, max_length=2000)
    state = models.CharField(max_length=10, choices=State.choices, default=State.DRAFT)
    reason = models.CharField(max_length=500, blank=True, help_text="Why the campaign is in this state.")

    source = models.CharField(max_length=10, choices=Source.choices, default=Source.FILES)
    dataset = models.CharField(
        max_length=200, help_text="owner/name on the Hub; for files a glob such as c4/*.jsonl.gz or books/*.parquet."
    )
    config = models.CharField(max_length=100, blank=True)
    split = models.CharField(max_length=50, default="train", blank=True)
    revision = models.CharField(
        max_length=80, default="main", blank=True, help_text="Of a Hub dataset; pinned to a commit at the start."
    )
    text_field = models.CharField(max_length=50, default="text")

    min_characters = models.PositiveIntegerField(default=300, help_text="Shorter documents are skipped.")
    language = models.CharField(max_length=3, default="en", blank=True, help_text="ISO 639 code; empty: any language.")
    language_score = models.FloatField(default=0.5, validators=[MinValueValidator(0.0), MaxValueValidator(1.0)])
    drop_repeated = models.BooleanField(default=True, help_text="Drop paragraphs seen before, by 64-bit hash.")
    quality_buckets = models.JSONField(
        default=list, blank=True, help_text='Quality buckets to use, such as ["head", "middle"]; empty: all text.'
    )
    chunk_tokens = models.PositiveIntegerField(default=300, validators=[MinValueValidator(20), MaxValueValidator(2000)])
    chunks_per_packet = models.PositiveSmallIntegerField(
        default=8, validators=[AT_LEAST_ONE, MaxValueValidator(64)], help_text="Longer documents are split."
    )

    styles = models.JSONField(default=get_default_styles, help_text=f"Of: {', '.join(prompts.STYLES)}.")
    model = models.CharField(max_length=200, default="TheBloke/Mistral-7B-Instruct-v0.2-AWQ")
    model_revision = models.CharField(max_length=80, blank=True)
    temperature = models.FloatField(default=0.8, validators=[MinValueValidator(0.0), MaxValueValidator(2.0)])
    top_p = models.FloatField(default=0.95, validators=[MinValueValidator(0.01), MaxValueValidator(1.0)])
    max_tokens = models.PositiveIntegerField(default=2048, validators=[AT_LEAST_ONE, MaxValueValidator(32768)])
    top_k = models.PositiveSmallIntegerField(
        null=True, blank=True, validators=[AT_LEAST_ONE, MaxValueValidator(1000)], help_text="Empty: all tokens."
    )
    speculative_tokens = models.PositiveSmallIntegerField(
        null=True,
        blank=True,
        validators=[AT_LEAST_ONE, MaxValueValidator(64)],
        help_text="Tokens that vLLM copies from the prompt at once and the model verifies: changes the speed only.",
    )
    prompt_version = models.PositiveIntegerField(default=prompts.CURRENT_VERSION)
    thresholds = models.JSONField(
        null=True, blank=True, help_text="Output of `dailytrain rephrase calibrate`; empty: the default thresholds."
    )
    needs_gigabytes = models.FloatField(
        default=12.0,
        validators=[MinValueValidator(0.0), MaxValueValidator(9_999.0)],
        help_text="GPU memory that volunteers need, in GB: about 12 for Mistral-7B in 4 bits.",
    )

    license = models.CharField(max_length=50, default="odc-by", help_text="A license identifier of the Hub.")
    hub_name = models.CharField(
        max_length=96, blank=True, validators=[REPOSITORY_NAME], help_text="Dataset name on the Hub; empty: none."
    )
    rows_per_shard = models.PositiveIntegerField(default=10_000, validators=[AT_LEAST_ONE])
    quarantine_minutes = models.FloatField(
        default=60.0, help_text="Minimum age of a text before it enters a shard: time to detect a bad volunteer."
    )

    low_mark = models.PositiveIntegerField(default=2_000, help_text="Create packets when fewer than this wait.")
    high_mark = models.PositiveIntegerField(default=10_000, help_text="Create packets up to this number.")
    max_attempts = models.PositiveSmallIntegerField(
        default=3, validators=[AT_LEAST_ONE], help_text="Rejected submissions before a packet is set aside."
    )
    replication_rate = models.FloatField(
        default=0.07, validators=RATE_VALIDATORS, help_text="Share of packets that two volunteers write."
    )
    known_answer_rate = models.FloatField(
        default=0.02, validators=RATE_VALIDATORS, help_text="Share of assignments whose answer is already known."
    )
    seed = models.BigIntegerField(
        default=generate_seed, editable=False, help_text="Selects the replicated packets; kept secret."
    )

    files = models.JSONField(default=list, editable=False, help_text="Source files in order, pinned at the start.")
    cursor = models.JSONField(default=dict, editable=False, help_text='{"file": index, "row": next row in it}.')
    rows_read = models.BigIntegerField(default=0, editable=False)
    packet_count = models.BigIntegerField(default=0, editable=False)
    chunk_count = models.BigIntegerField(default=0, editable=False)
    dropped_counts = models.JSONField(
        default=dict, editable=False, help_text='{reason: documents}; "paragraphs": repeated paragraphs.'
    )
    is_exhausted = models.BooleanField(default=False, editable=False, help_text="The source is read to its end.")
    source_error = models.CharField(max_length=500, blank=True, editable=False, help_text="Last error of the source.")
    quality_model = models.ForeignKey(
        Blob,
        null=True,
        blank=True,
        editable=False,
        on_delete=models.PROTECT,
        related_name="+",
        help_text="Trigram model that assigns quality buckets.",
    )
    published_state = models.CharField(
        max_length=10, blank=True, editable=False, help_text="State on the Hub's dataset card; empty: unpublished."
    )

    created_at = models.DateTimeField(default=timezone.now, editable=False)
    started_at = models.DateTimeField(null=True, blank=True, editable=False)
    finished_at = models.DateTimeField(null=True, blank=True, editable=False)

    objects = CampaignQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at", "-pk"]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("campaign", args=[self.slug])

    @property
    def sampling(self) -> dict[str, Any]:
        """The fields of a `protocol.Sampling`."""
        sampling = {"temperature": self.temperature, "top_p": self.top_p, "max_tokens": self.max_tokens}
        return sampling if self.top_k is None else {**sampling, "top_k": self.top_k}


class Volunteer(models.Model):
    """A person with all their nodes, or a node without an account."""

    class State(models.TextChoices):
        NEW = "new"  # gets few packets until its answers agree with others'
        TRUSTED = "trusted"
        BANNED = "banned"  # gets no packets; its texts are withdrawn

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="volunteer"
    )
    node = models.OneToOneField(Node, null=True, blank=True, on_delete=models.SET_NULL, related_name="volunteer")
    name = models.CharField(max_length=80)
    state = models.CharField(max_length=10, choices=State.choices, default=State.NEW)
    reason = models.CharField(max_length=500, blank=True)
    agreements_in_a_row = models.PositiveIntegerField(default=0, help_text="Comparisons since the last mismatch.")
    mismatches_in_a_row = models.PositiveIntegerField(default=0, help_text="Known answers missed in a row.")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["name", "pk"]

    def __str__(self) -> str:
        return self.name


class Contribution(models.Model):
    """Counters of one volunteer in one campaign."""

    campaign = models.ForeignKey(Campaign, on_delete=models.CASCADE, related_name="contributions")
    volunteer = models.ForeignKey(Volunteer, on_delete=models.CASCADE, related_name="contributions")
    packets = models.PositiveIntegerField(default=0, help_text="Packets submitted.")
    refused = models.PositiveIntegerField(default=0, help_text="Packets written with another model or settings.")
    accepted = models.PositiveIntegerField(default=0, help_text="Outputs accepted.")
    rejected = models.PositiveIntegerField(default=0, help_text="Outputs rejected by the checks.")
    withdrawn = models.PositiveIntegerField(default=0, help_text="Accepted outputs that were withdrawn.")
    tokens = models.BigIntegerField(default=0, help_text="Tokens of the accepted outputs.")
    agreed = models.PositiveIntegerField(default=0, help_text="Comparisons that agreed.")
    disagreed = models.PositiveIntegerField(default=0, help_text="Comparisons that did not agree.")
    rejection_reasons = models.JSONField(default=dict, help_text="{reason: rejected outputs}.")
    rejection_rate = models.FloatField(default=0.0, help_text="Moving average over the latest outputs.")
    last_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["campaign", "volunteer"], name="one_contribution_each")]

    def __str__(self) -> str:
        return f"{self.volunteer_id} in {self.campaign_id}"

    @property
    def public_name(self) -> str:
        """The name of a volunteer with an account, else a number."""
        return self.volunteer.name if self.volunteer.user_id else f"Volunteer {self.volunteer_id}"

    @property
    def accepted_share(self) -> float:
        return self.accepted / max(self.accepted + self.rejected, 1)

    @property
    def is_suspect(self) -> bool:
        """Whether most comparisons with others' work disagreed."""
        return self.disagreed > self.agreed


class RephraseSession(models.Model):
    """The campaign of a `rephrase` job. Volunteers take and submit packets under the job's lease."""

    job = models.OneToOneField(Job, on_delete=models.CASCADE, related_name="rephrase_session")
    campaign = models.ForeignKey(Campaign, on_delete=models.CASCADE, related_name="sessions")

    def __str__(self) -> str:
        return f"job {self.job_id} for campaign {self.campaign_id}"


class Packet(models.Model):
    """A document, or some chunks of a long one."""

    class State(models.TextChoices):
        WAITING = "waiting"
        ASSIGNED = "assigned"
        DONE = "done"  # every chunk has an accepted text in every style
        SET_ASIDE = "set_aside"  # given up; `missing` has the reasons

    UNFINISHED = (State.WAITING, State.ASSIGNED)

    class Replication(models.TextChoices):
        """Whether a second volunteer writes the packet for comparison."""

        NONE = "none"
        PLANNED = "planned"  # opens when the packet is done
        OPEN = "open"
        ASSIGNED = "assigned"
        AGREED = "agreed"  # the packet now serves as a known answer
        DISAGREED = "disagreed"

    campaign = models.ForeignKey(Campaign, on_delete=models.CASCADE, related_name="packets")
    row = models.BigIntegerField(help_text="Row of the source, counted from 0 over all files.")
    part = models.PositiveIntegerField(default=0, help_text="Part of the document.")
    document = models.CharField(max_length=200)
    first_chunk = models.PositiveIntegerField(default=0, help_text="Index of its first chunk in the document.")
    chunks = models.JSONField(help_text="Texts of the chunks.")
    state = models.CharField(max_length=10, choices=State.choices, default=State.WAITING)
    replication = models.CharField(max_length=10, choices=Replication.choices, default=Replication.NONE)
    missing = models.JSONField(
        null=True, blank=True, help_text="[[chunk, style, [reasons of the last attempt]]]; null: nothing was submitted."
    )
    attempts = models.PositiveSmallIntegerField(default=0, help_text="Submissions with a rejected output.")
    times_assigned = models.PositiveSmallIntegerField(default=0)

    class Meta:
        indexes = [
            models.Index(fields=["campaign", "id"], condition=models.Q(state="waiting"), name="packets_waiting"),
            models.Index(fields=["campaign"], condition=models.Q(state="assigned"), name="packets_assigned"),
            models.Index(fields=["campaign", "id"], condition=models.Q(state="set_aside"), name="packets_set_aside"),
            models.Index(fields=["campaign", "id"], condition=models.Q(replication="open"), name="packets_replicable"),
            models.Index(fields=["campaign", "id"], condition=models.Q(replication="agreed"), name="packets_known"),
        ]
        constraints = [models.UniqueConstraint(fields=["campaign", "row", "part"], name="one_packet_per_part")]

    def __str__(self) -> str:
        return f"packet {self.pk} ({self.document})"

    def get_source_text(self, chunk: int) -> str:
        """Return the text of a chunk; its index counts from the start of the document."""
        text: str = self.chunks[chunk - self.first_chunk]
        return text

    def list_outputs(self, styles: Sequence[str]) -> list[OutputKey]:
        """Return every chunk and style."""
        return [(self.first_chunk + index, style) for index in range(len(self.chunks)) for style in styles]

    def list_missing_outputs(self, styles: Sequence[str]) -> list[OutputKey]:
        """Return the chunks and styles without an accepted text."""
        if self.missing is None:
            return self.list_outputs(styles)
        return [(chunk, style) for chunk, style, _ in self.missing]


class Assignment(models.Model):
    """A packet assigned to a volunteer under a lease."""

    class Purpose(models.TextChoices):
        WORK = "work"
        REPLICA = "replica"  # another volunteer wrote the packet; compare the verdicts
        KNOWN_ANSWER = "known"  # two others wrote the packet and agreed

    class State(models.TextChoices):
        ACTIVE = "active"
        SUBMITTED = "submitted"  # each output was accepted or rejected
        REFUSED = "refused"  # written with another model or settings
        RELEASED = "released"  # the lease ended first
        WITHDRAWN = "withdrawn"  # submitted by a volunteer who was banned later

    packet = models.ForeignKey(Packet, on_delete=models.CASCADE, related_name="assignments")
    lease = models.ForeignKey(Lease, on_delete=models.CASCADE, related_name="assignments")
    volunteer = models.ForeignKey(Volunteer, on_delete=models.PROTECT, related_name="assignments")
    purpose = models.CharField(max_length=8, choices=Purpose.choices, default=Purpose.WORK)
    state = models.CharField(max_length=10, choices=State.choices, default=State.ACTIVE)
    reasons = models.JSONField(default=list, blank=True, help_text="Why the result was refused.")
    created_at = models.DateTimeField(default=timezone.now)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [
            models.Index(fields=["lease"], condition=models.Q(state="active"), name="assignments_active"),
            models.Index(fields=["volunteer", "created_at"], name="assignments_by_volunteer"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["lease", "packet"], name="one_assignment_per_lease"),
            models.UniqueConstraint(
                fields=["packet"], condition=models.Q(state="active", purpose="work"), name="one_writer_at_a_time"
            ),
        ]

    def __str__(self) -> str:
        return f"packet {self.packet_id} for volunteer {self.volunteer_id}"


class ShardQuerySet(models.QuerySet["Shard"]):
    def outdated(self) -> ShardQuerySet:
        """Return the shards whose rows have changed since their file was written."""
        return self.exclude(written_version=F("version"))

    def current(self) -> ShardQuerySet:
        """Return the shards with an up-to-date file."""
        return self.filter(written_version=F("version")).exclude(blob=None).select_related("blob")

    def unpublished(self) -> ShardQuerySet:
        """Return the shards whose file the Hub does not have."""
        return self.exclude(published_sha256=F("blob__sha256"))


class Shard(models.Model):
    """A file of the dataset. Rephrasings point at their shard; the file is rewritten when they change."""

    campaign = models.ForeignKey(Campaign, on_delete=models.CASCADE, related_name="shards")
    number = models.PositiveIntegerField()
    version = models.PositiveIntegerField(default=1, help_text="Incremented when rows are withdrawn.")
    written_version = models.PositiveIntegerField(default=0, help_text="Version of the file; 0: not written.")
    rows = models.PositiveIntegerField(default=0, help_text="Rows in the file.")
    blob = models.ForeignKey(Blob, null=True, blank=True, on_delete=models.PROTECT, related_name="+")
    published_sha256 = models.CharField(max_length=64, blank=True, help_text="SHA-256 of the file on the Hub.")
    written_at = models.DateTimeField(null=True, blank=True)

    objects = ShardQuerySet.as_manager()

    class Meta:
        ordering = ["campaign_id", "number"]
        constraints = [models.UniqueConstraint(fields=["campaign", "number"], name="one_shard_per_number")]

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        """Path in the dataset."""
        return f"data/shard-{self.number:05d}.parquet"


class RephrasingQuerySet(models.QuerySet["Rephrasing"]):
    def accepted(self) -> RephrasingQuerySet:
        return self.filter(state=Rephrasing.State.ACCEPTED)

    def unsharded(self) -> RephrasingQuerySet:
        """Return the accepted texts that are in no shard."""
        return self.accepted().filter(shard=None)


class Rephrasing(models.Model):
    """A chunk in one style, written by one volunteer with the campaign's model and prompts."""

    class State(models.TextChoices):
        ACCEPTED = "accepted"
        REJECTED = "rejected"  # by the checks
        REPLICA = "replica"  # passed the checks; used for comparison only
        WITHDRAWN = "withdrawn"  # the volunteer was banned

    campaign = models.ForeignKey(Campaign, on_delete=models.CASCADE, related_name="+")
    packet = models.ForeignKey(Packet, on_delete=models.CASCADE, related_name="rephrasings")
    assignment = models.ForeignKey(Assignment, on_delete=models.CASCADE, related_name="rephrasings")
    volunteer = models.ForeignKey(Volunteer, on_delete=models.PROTECT, related_name="+", db_index=False)
    chunk = models.PositiveIntegerField(help_text="Index of the chunk in the document.")
    style = models.CharField(max_length=10)
    state = models.CharField(max_length=10, choices=State.choices)
    reasons = models.JSONField(default=list, blank=True)
    text = models.TextField(blank=True)
    sha256 = models.CharField(max_length=64)
    source_sha256 = models.CharField(max_length=64)
    duplicate_key = models.CharField(
        max_length=16, default="", help_text="Equal for texts that differ in case, spaces and punctuation only."
    )
    tokens = models.PositiveIntegerField(default=0, help_text="Token count of the volunteer's back end.")
    back_end = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(default=timezone.now)
    shard = models.ForeignKey(Shard, null=True, blank=True, on_delete=models.SET_NULL, related_name="rephrasings")

    objects = RephrasingQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(fields=["campaign", "created_at"], name="rephrasings_by_time"),
            models.Index(fields=["duplicate_key"], condition=models.Q(state="accepted"), name="rephrasings_by_key"),
            models.Index(
                fields=["campaign", "packet", "chunk", "style"],
                condition=models.Q(state="accepted", shard=None),
                name="rephrasings_to_collate",
            ),
            models.Index(fields=["volunteer"], condition=models.Q(state="accepted"), name="rephrasings_by_volunteer"),
            models.Index(fields=["created_at"], condition=~models.Q(state="accepted"), name="rephrasings_to_delete"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["packet", "chunk", "style"], condition=models.Q(state="accepted"), name="one_accepted_text"
            )
        ]

    def __str__(self) -> str:
        return f"chunk {self.chunk} of packet {self.packet_id}, {self.style}"

    @property
    def source(self) -> str:
        """The text that was rephrased."""
        return self.packet.get_source_text(self.chunk)


class Paragraph(models.Model):
    """The hash of a paragraph seen in a campaign's source."""

    campaign = models.ForeignKey(Campaign, on_delete=models.CASCADE, related_name="+", db_index=False)
    digest = models.BigIntegerField(help_text="First 64 bits of the SHA-1 of the normalized text (cc_net).")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["campaign", "digest"], name="one_row_per_paragraph")]

    def __str__(self) -> str:
        return f"{self.digest:x}"
