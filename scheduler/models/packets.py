"""The dataset swarm: campaigns, their packets, who was given which, what was written, and the shards made of it."""

from __future__ import annotations

import secrets
from typing import Any

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.utils import timezone

from scheduler.models.jobs import Blob, Job, Lease
from scheduler.models.pool import Node

SHARE = [MinValueValidator(0.0), MaxValueValidator(0.5)]
REPOSITORY = RegexValidator(r"\A[\w.-]{1,96}\Z", "Letters, digits, dots, dashes and underscores, please.")


def a_seed() -> int:
    return secrets.randbits(62)


def four_styles() -> list[str]:
    return ["easy", "medium", "hard", "qa"]


class Campaign(models.Model):
    """A corpus, rephrased by volunteers. What it is made with is fixed as soon as it has begun."""

    class State(models.TextChoices):
        DRAFT = "draft"  # can be changed
        RUNNING = "running"
        PAUSED = "paused"  # nothing is read or handed out; what is being written is still taken
        DONE = "done"  # every chunk is written in every style, or set aside

    class Source(models.TextChoices):
        HUB = "hub", "a dataset on the Hugging Face Hub"
        FILES = "files", "files of this server (below REPHRASE_FILES)"

    slug = models.SlugField(max_length=60, unique=True)
    name = models.CharField(max_length=100)
    about = models.TextField(blank=True, max_length=2000)
    state = models.CharField(max_length=10, choices=State.choices, default=State.DRAFT)
    reason = models.CharField(max_length=500, blank=True)
    """Why it is in this state."""

    # Where the text is from.
    source = models.CharField(max_length=10, choices=Source.choices, default=Source.FILES)
    dataset = models.CharField(
        max_length=200, help_text="owner/name on the Hub; of files a glob such as c4/*.jsonl.gz or books/*.parquet."
    )
    config = models.CharField(max_length=100, blank=True)
    split = models.CharField(max_length=50, default="train", blank=True)
    revision = models.CharField(max_length=80, default="main", blank=True)
    """Of a dataset on the Hub; pinned to a commit when the campaign begins."""
    text_field = models.CharField(max_length=50, default="text")

    # What is left out of it.
    min_characters = models.PositiveIntegerField(default=300)
    language = models.CharField(max_length=3, default="en", blank=True, help_text="ISO 639; empty: any.")
    language_score = models.FloatField(default=0.5, validators=[MinValueValidator(0.0), MaxValueValidator(1.0)])
    drop_repeated = models.BooleanField(default=True, help_text="Paragraphs that came before, by 64-bit hashes.")
    buckets = models.JSONField(
        default=list, blank=True, help_text='Of quality, such as ["head", "middle"]; empty: all text.'
    )
    chunk_tokens = models.PositiveIntegerField(default=300, validators=[MinValueValidator(20), MaxValueValidator(2000)])
    chunks_per_packet = models.PositiveSmallIntegerField(
        default=8, validators=[MinValueValidator(1), MaxValueValidator(64)]
    )
    """A longer document is cut into several packets."""

    # How it is rephrased.
    styles = models.JSONField(default=four_styles)
    model = models.CharField(max_length=200, default="TheBloke/Mistral-7B-Instruct-v0.2-AWQ")
    model_revision = models.CharField(max_length=80, blank=True)
    temperature = models.FloatField(default=0.8, validators=[MinValueValidator(0.0), MaxValueValidator(2.0)])
    top_p = models.FloatField(default=0.95, validators=[MinValueValidator(0.01), MaxValueValidator(1.0)])
    max_tokens = models.PositiveIntegerField(default=2048, validators=[MinValueValidator(1), MaxValueValidator(32768)])
    prompt_version = models.PositiveIntegerField(default=1)
    thresholds = models.JSONField(
        null=True, blank=True, help_text="What `dailytrain rephrase calibrate` proposes; empty: the start values."
    )
    needs_gigabytes = models.FloatField(
        default=12.0, help_text="Of a card's memory, told to volunteers: about 12 for Mistral-7B in 4 bits."
    )

    # What becomes of it.
    licence = models.CharField(max_length=50, default="odc-by", help_text="One of the Hub's identifiers.")
    target = models.CharField(
        max_length=96, blank=True, validators=[REPOSITORY], help_text="Name of the dataset on the Hub; empty: none."
    )
    rows_per_shard = models.PositiveIntegerField(default=10_000, validators=[MinValueValidator(1)])
    settle_minutes = models.FloatField(
        default=60.0, help_text="So long a text waits for its volunteer to be found out, before it goes into a shard."
    )

    # How it is handed out.
    low_mark = models.PositiveIntegerField(default=2_000, help_text="With fewer packets waiting, more are made.")
    high_mark = models.PositiveIntegerField(default=10_000, help_text="Up to that many.")
    tries = models.PositiveSmallIntegerField(default=3, validators=[MinValueValidator(1)])
    second_share = models.FloatField(default=0.07, validators=SHARE, help_text="Of packets, given to two volunteers.")
    known_share = models.FloatField(default=0.02, validators=SHARE, help_text="Of what is given out: known already.")
    seed = models.BigIntegerField(default=a_seed, editable=False)
    """Which packets go to two volunteers: nobody else can tell."""

    # How far it is; the producer's own, changed with the packets that it makes.
    files = models.JSONField(default=list, editable=False)
    """Of the source, in order; known when the campaign begins."""
    cursor = models.JSONField(default=dict, editable=False)
    """{"file": index, "row": the next one in it}."""
    rows_read = models.BigIntegerField(default=0, editable=False)
    packets_made = models.BigIntegerField(default=0, editable=False)
    chunks_made = models.BigIntegerField(default=0, editable=False)
    dropped = models.JSONField(default=dict, editable=False)
    """{reason: documents}, and "paragraphs" of those that were kept."""
    exhausted = models.BooleanField(default=False, editable=False)
    trouble = models.CharField(max_length=500, blank=True, editable=False)
    """Why the source could not be read the last time."""
    quality = models.ForeignKey(Blob, null=True, blank=True, editable=False, on_delete=models.PROTECT, related_name="+")
    """What its buckets are measured with (`scheduler/campaigns/quality.py`)."""

    created_at = models.DateTimeField(default=timezone.now, editable=False)
    started_at = models.DateTimeField(null=True, blank=True, editable=False)
    finished_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        ordering = ["-created_at", "-pk"]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return f"/campaigns/{self.slug}/"

    @property
    def sampling(self) -> dict[str, Any]:
        """A `protocol.Sampling`."""
        return {"temperature": self.temperature, "top_p": self.top_p, "max_tokens": self.max_tokens}


class Volunteer(models.Model):
    """Who writes: a person with all of their nodes, or a node that nobody has signed in for."""

    class State(models.TextChoices):
        NEW = "new"  # gets little until its answers have agreed with others'
        KNOWN = "known"
        BARRED = "barred"  # gets nothing; what it wrote is withdrawn

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="volunteer"
    )
    node = models.OneToOneField(Node, null=True, blank=True, on_delete=models.SET_NULL, related_name="volunteer")
    name = models.CharField(max_length=80)
    state = models.CharField(max_length=10, choices=State.choices, default=State.NEW)
    reason = models.CharField(max_length=500, blank=True)
    right_in_a_row = models.PositiveIntegerField(default=0)
    """Comparisons with others' work that agreed, since the last that did not (`scheduler/campaigns/reputation.py`)."""
    wrong_in_a_row = models.PositiveIntegerField(default=0)
    since = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["name", "pk"]

    def __str__(self) -> str:
        return self.name


class Share(models.Model):
    """What one volunteer has done for one campaign, counted as it comes in."""

    campaign = models.ForeignKey(Campaign, on_delete=models.CASCADE, related_name="shares")
    volunteer = models.ForeignKey(Volunteer, on_delete=models.CASCADE, related_name="shares")
    packets = models.PositiveIntegerField(default=0)
    """Handed in."""
    refused = models.PositiveIntegerField(default=0)
    """Of these: made with something else than was asked for."""
    accepted = models.PositiveIntegerField(default=0)
    """Outputs."""
    rejected = models.PositiveIntegerField(default=0)
    withdrawn = models.PositiveIntegerField(default=0)
    tokens = models.BigIntegerField(default=0)
    """Of what was accepted."""
    agreed = models.PositiveIntegerField(default=0)
    """Packets that another volunteer wrote too, or that had a known answer."""
    disagreed = models.PositiveIntegerField(default=0)
    reasons = models.JSONField(default=dict)
    """{reason of a rejection: outputs}."""
    failing = models.FloatField(default=0.0)
    """Share of its latest outputs that were rejected (`scheduler/campaigns/reputation.py`)."""
    first_at = models.DateTimeField(default=timezone.now)
    last_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["campaign", "volunteer"], name="one_share_each")]

    def __str__(self) -> str:
        return f"{self.volunteer_id} in {self.campaign_id}"


class Sitting(models.Model):
    """A job of kind `rephrase`: under its lease a volunteer takes packets and hands them in."""

    job = models.OneToOneField(Job, on_delete=models.CASCADE, related_name="sitting")
    campaign = models.ForeignKey(Campaign, on_delete=models.CASCADE, related_name="sittings")

    def __str__(self) -> str:
        return f"job {self.job_id} for campaign {self.campaign_id}"


class Packet(models.Model):
    """A document, or some chunks of a long one."""

    class State(models.TextChoices):
        WAITING = "waiting"
        HELD = "held"  # a volunteer works on it
        DONE = "done"  # every chunk has an accepted text in every style
        ASIDE = "aside"  # what it lacks will not come: `lacking` says why

    class Second(models.TextChoices):
        """Whether a second volunteer writes it as well, to be compared."""

        NO = "no"
        LATER = "later"  # as soon as it is done
        WANTED = "wanted"
        HELD = "held"
        AGREED = "agreed"  # from now on a packet whose answer is known
        DISAGREED = "disagreed"

    campaign = models.ForeignKey(Campaign, on_delete=models.CASCADE, related_name="packets")
    row = models.BigIntegerField()
    """Of the source, counted from 0 over all of its files."""
    part = models.PositiveIntegerField(default=0)
    """Of its document."""
    document = models.CharField(max_length=200)
    first = models.PositiveIntegerField(default=0)
    """Index in the document of its first chunk."""
    chunks = models.JSONField()
    """Their texts."""
    state = models.CharField(max_length=10, choices=State.choices, default=State.WAITING)
    second = models.CharField(max_length=10, choices=Second.choices, default=Second.NO)
    lacking = models.JSONField(null=True, blank=True)
    """[[chunk, style, [reasons of the last try]]]; null: everything, nothing was handed in yet."""
    tries = models.PositiveSmallIntegerField(default=0)
    """Handed in with something rejected."""
    handed_out = models.PositiveSmallIntegerField(default=0)

    class Meta:
        indexes = [
            models.Index(fields=["campaign", "id"], condition=models.Q(state="waiting"), name="packets_waiting"),
            models.Index(fields=["campaign"], condition=models.Q(state="held"), name="packets_held"),
            models.Index(fields=["campaign", "id"], condition=models.Q(state="aside"), name="packets_aside"),
            models.Index(fields=["campaign", "id"], condition=models.Q(second="wanted"), name="packets_for_two"),
            models.Index(fields=["campaign", "id"], condition=models.Q(second="agreed"), name="packets_known"),
        ]
        constraints = [models.UniqueConstraint(fields=["campaign", "row", "part"], name="one_packet_per_part")]

    def __str__(self) -> str:
        return f"packet {self.pk} ({self.document})"


class Handout(models.Model):
    """A packet in a volunteer's hands: whose work something is."""

    class Purpose(models.TextChoices):
        WORK = "work"
        SECOND = "second"  # another volunteer has written it: do the verdicts agree?
        KNOWN = "known"  # two others have, and agreed

    class State(models.TextChoices):
        HELD = "held"
        TAKEN = "taken"  # handed in, judged output by output
        REFUSED = "refused"  # handed in, made with something else than was asked for
        BACK = "back"  # the lease ended first
        VOID = "void"  # taken, and withdrawn since: its volunteer was found out

    packet = models.ForeignKey(Packet, on_delete=models.CASCADE, related_name="handouts")
    lease = models.ForeignKey(Lease, on_delete=models.CASCADE, related_name="handouts")
    volunteer = models.ForeignKey(Volunteer, on_delete=models.PROTECT, related_name="handouts")
    purpose = models.CharField(max_length=8, choices=Purpose.choices, default=Purpose.WORK)
    state = models.CharField(max_length=8, choices=State.choices, default=State.HELD)
    reasons = models.JSONField(default=list, blank=True)
    """Why it was refused."""
    at = models.DateTimeField(default=timezone.now)
    answered_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [
            models.Index(fields=["lease"], condition=models.Q(state="held"), name="handouts_held"),
            models.Index(fields=["volunteer", "at"], name="handouts_of_volunteer"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["lease", "packet"], name="once_under_a_lease"),
            models.UniqueConstraint(
                fields=["packet"], condition=models.Q(state="held", purpose="work"), name="one_writer_at_a_time"
            ),
        ]

    def __str__(self) -> str:
        return f"packet {self.packet_id} for volunteer {self.volunteer_id}"


class Shard(models.Model):
    """A file of the dataset. Its rows are those that point at it; what is in the file follows them."""

    campaign = models.ForeignKey(Campaign, on_delete=models.CASCADE, related_name="shards")
    number = models.PositiveIntegerField()
    version = models.PositiveIntegerField(default=1)
    """Raised when rows are withdrawn from it."""
    written = models.PositiveIntegerField(default=0)
    """The version that `blob` holds; 0: none."""
    rows = models.PositiveIntegerField(default=0)
    """In `blob`."""
    blob = models.ForeignKey(Blob, null=True, blank=True, on_delete=models.PROTECT, related_name="+")
    published = models.CharField(max_length=64, blank=True)
    """SHA-256 of what the Hub has under its name."""
    written_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["campaign_id", "number"]
        constraints = [models.UniqueConstraint(fields=["campaign", "number"], name="one_shard_per_number")]

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        """Of its file."""
        return f"data/shard-{self.number:05d}.parquet"


class Rephrasing(models.Model):
    """One chunk in one style, by one volunteer. Model, prompts and sampling are the campaign's: others are refused."""

    class State(models.TextChoices):
        ACCEPTED = "accepted"
        REJECTED = "rejected"  # by the checks
        SPARE = "spare"  # accepted, and only for comparison
        WITHDRAWN = "withdrawn"  # its volunteer was found out

    campaign = models.ForeignKey(Campaign, on_delete=models.CASCADE, related_name="+")
    packet = models.ForeignKey(Packet, on_delete=models.CASCADE, related_name="rephrasings")
    handout = models.ForeignKey(Handout, on_delete=models.CASCADE, related_name="rephrasings")
    volunteer = models.ForeignKey(Volunteer, on_delete=models.PROTECT, related_name="+", db_index=False)
    chunk = models.PositiveIntegerField()
    """Its index in the document."""
    style = models.CharField(max_length=10)
    state = models.CharField(max_length=10, choices=State.choices)
    reasons = models.JSONField(default=list, blank=True)
    text = models.TextField(blank=True)
    sha256 = models.CharField(max_length=64)
    source_sha256 = models.CharField(max_length=64)
    key = models.CharField(max_length=16, default="")
    """The same for texts that differ in case, spaces and punctuation only (`checks.duplicate_key`)."""
    tokens = models.PositiveIntegerField(default=0)
    """As the volunteer's back end counts."""
    back_end = models.CharField(max_length=200, blank=True)
    at = models.DateTimeField(default=timezone.now)
    shard = models.ForeignKey(Shard, null=True, blank=True, on_delete=models.SET_NULL, related_name="rephrasings")

    class Meta:
        indexes = [
            models.Index(fields=["campaign", "at"], name="rephrasings_lately"),
            models.Index(fields=["key"], condition=models.Q(state="accepted"), name="rephrasings_by_key"),
            models.Index(
                fields=["campaign", "packet", "chunk", "style"],
                condition=models.Q(state="accepted", shard=None),
                name="rephrasings_to_collate",
            ),
            models.Index(fields=["volunteer"], condition=models.Q(state="accepted"), name="rephrasings_by_whom"),
            models.Index(fields=["at"], condition=~models.Q(state="accepted"), name="rephrasings_to_forget"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["packet", "chunk", "style"], condition=models.Q(state="accepted"), name="one_text_that_counts"
            )
        ]

    def __str__(self) -> str:
        return f"chunk {self.chunk} of packet {self.packet_id}, {self.style}"


class Paragraph(models.Model):
    """The hash of a paragraph that a campaign has seen."""

    campaign = models.ForeignKey(Campaign, on_delete=models.CASCADE, related_name="+", db_index=False)
    digest = models.BigIntegerField()
    """The first 64 bits of the SHA-1 of its normalised text (cc_net, arXiv 1911.00359)."""

    class Meta:
        constraints = [models.UniqueConstraint(fields=["campaign", "digest"], name="paragraphs_seen")]

    def __str__(self) -> str:
        return f"{self.digest:x}"
