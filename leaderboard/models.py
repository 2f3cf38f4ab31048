"""The public record: tracks, entries, their runs, the curves and the scores."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.urls import reverse
from django.utils import timezone

from scheduler.models import Blob, Checkpoint, Job


class Season(models.Model):
    """What is frozen so that results compare: dataset, tokenizer, baseline, environment."""

    name = models.CharField(max_length=80, unique=True)
    started_at = models.DateTimeField(default=timezone.now)
    active = models.BooleanField(default=True)
    corpus = models.CharField(max_length=200)
    tokenizer = models.CharField(max_length=200)
    limit_bytes = models.BigIntegerField(null=True, blank=True)
    dataset_hash = models.CharField(max_length=64, blank=True)
    """Empty until `manage.py prepare_season` has built the dataset once."""
    baseline = models.ForeignKey(
        "Entry", null=True, blank=True, on_delete=models.PROTECT, related_name="+", help_text="A pinned commit."
    )

    def __str__(self) -> str:
        return self.name


class Track(models.Model):
    """One table of the board: a budget on a class of machine."""

    slug = models.SlugField(unique=True)
    name = models.CharField(max_length=80)
    season = models.ForeignKey(Season, on_delete=models.PROTECT, related_name="tracks")
    description = models.TextField(blank=True)
    budget = models.CharField(max_length=40)
    """As for `dailytrain train --budget`: 180s, 24h, 500steps, 3B-tokens, 1e19flops."""
    expected_seconds = models.FloatField()
    config = models.JSONField(default=dict, blank=True)
    """Part of every run's configuration: what this track fixes (size, batch, sequence length)."""
    suite = models.JSONField(default=list, blank=True)
    """lm-eval task names."""
    needs_labels = models.JSONField(default=list, blank=True)
    limits = models.JSONField(default=dict, blank=True)
    """A `wire.Limits` for the training job."""
    is_default = models.BooleanField(default=False)
    nightly = models.BooleanField(default=False)
    """The nightly run of `main` is on this track."""
    position = models.IntegerField(default=0)

    class Meta:
        ordering = ["position", "slug"]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("track", args=[self.slug])


class Entry(models.Model):
    """One commit of one repository that wants to be trained."""

    class Kind(models.TextChoices):
        ARCHITECTURE = "architecture"  # source files under trainer/models/ and nothing else: may hold a record
        OPEN = "open"  # changes more: shown as such
        NOTEBOOK = "notebook"
        MAIN = "main"

    class State(models.TextChoices):
        PROPOSED = "proposed"
        SMOKE = "smoke"
        APPROVED = "approved"
        REJECTED = "rejected"
        WITHDRAWN = "withdrawn"

    kind = models.CharField(max_length=12, choices=Kind.choices)
    state = models.CharField(max_length=10, choices=State.choices, default=State.PROPOSED)
    reason = models.CharField(max_length=500, blank=True)
    title = models.CharField(max_length=120)
    author = models.CharField(max_length=120, blank=True)
    repository = models.CharField(max_length=400)
    sha = models.CharField(max_length=40)
    architecture = models.CharField(max_length=80)
    """Name in the commit's `trainer/models` dict."""
    config = models.JSONField(default=dict, blank=True)
    """The entry's own part of the configuration, over the track's."""
    track = models.ForeignKey(Track, on_delete=models.PROTECT, related_name="entries")
    hypothesis = models.TextField(blank=True)
    url = models.URLField(blank=True)
    bundle = models.ForeignKey(Blob, null=True, blank=True, on_delete=models.PROTECT, related_name="+")
    """Tar of the commit's `trainer/models/`."""
    approved_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    approved_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        verbose_name_plural = "entries"
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["repository", "sha", "architecture", "track"], name="one_entry_per_commit_and_architecture"
            )
        ]

    def __str__(self) -> str:
        return f"{self.title} ({self.sha[:8]})"

    def get_absolute_url(self) -> str:
        return reverse("entry", args=[self.pk])


class Run(models.Model):
    """One training of one entry with one seed on one track, and its verdict."""

    class State(models.TextChoices):
        WAITING = "waiting"  # for approval
        QUEUED = "queued"
        TRAINING = "training"
        PAUSED = "paused"  # lost its node; goes on from its last checkpoint
        SCORING = "scoring"
        FINISHED = "finished"
        FAILED = "failed"
        CANCELLED = "cancelled"

    class Trust(models.TextChoices):
        PROVISIONAL = "provisional"  # nothing but the node's own word
        SCORED = "scored"  # by a trusted node
        REPLICATED = "replicated"
        RECORD = "record"
        DISPUTED = "disputed"

    class Purpose(models.TextChoices):
        NIGHTLY = "nightly"
        ENTRY = "entry"
        LADDER = "ladder"  # a seed of the baseline

    entry = models.ForeignKey(Entry, on_delete=models.PROTECT, related_name="runs")
    track = models.ForeignKey(Track, on_delete=models.PROTECT, related_name="runs")
    season = models.ForeignKey(Season, on_delete=models.PROTECT, related_name="runs")
    purpose = models.CharField(max_length=10, choices=Purpose.choices, default=Purpose.ENTRY)
    seed = models.BigIntegerField()
    budget = models.CharField(max_length=40)
    state = models.CharField(max_length=10, choices=State.choices, default=State.WAITING, db_index=True)
    reason = models.CharField(max_length=500, blank=True)
    cause = models.CharField(max_length=16, blank=True)
    trust = models.CharField(max_length=12, choices=Trust.choices, default=Trust.PROVISIONAL)
    job = models.OneToOneField(Job, null=True, blank=True, on_delete=models.SET_NULL, related_name="run")
    score_job = models.OneToOneField(Job, null=True, blank=True, on_delete=models.SET_NULL, related_name="scored_run")
    checkpoint = models.ForeignKey(Checkpoint, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    """The final one: what was scored."""
    config = models.JSONField(default=dict, blank=True)
    """What the node resolved (`run.json`)."""
    node_name = models.CharField(max_length=80, blank=True)
    node_class = models.CharField(max_length=120, blank=True)

    # How far it is, as the training process says (advisory).
    step = models.BigIntegerField(default=0)
    fraction = models.FloatField(default=0)
    """Of the budget used, 0 to 1."""
    tokens = models.BigIntegerField(default=0)
    loss = models.FloatField(null=True, blank=True)

    # The verdict of the trusted scorer.
    bits_per_byte = models.FloatField(null=True, blank=True)
    bits_per_byte_stderr = models.FloatField(null=True, blank=True)
    parameters = models.BigIntegerField(null=True, blank=True)
    train_flops = models.FloatField(null=True, blank=True)
    train_seconds = models.FloatField(null=True, blank=True)

    created_at = models.DateTimeField(default=timezone.now)
    started_at = models.DateTimeField(null=True, blank=True)
    trained_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(fields=["entry", "track", "seed", "budget"], name="one_run_per_entry_and_seed")
        ]
        indexes = [models.Index(fields=["track", "state", "bits_per_byte"])]

    def __str__(self) -> str:
        return f"run {self.pk} of {self.entry.title}, seed {self.seed}"

    def get_absolute_url(self) -> str:
        return reverse("run", args=[self.pk])


class CurvePoint(models.Model):
    """One line of a run's metrics. A resumed run writes the same steps with the same values."""

    class Series(models.TextChoices):
        TRAIN = "train"
        DEV = "dev"

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="points")
    series = models.CharField(max_length=6, choices=Series.choices)
    step = models.BigIntegerField()
    tokens = models.BigIntegerField()
    flops = models.FloatField()
    seconds = models.FloatField()
    loss = models.FloatField()
    """Nats per token."""
    bits_per_byte = models.FloatField(null=True)
    learning_rate = models.FloatField(null=True)
    gradient_norm = models.FloatField(null=True)
    tokens_per_second = models.FloatField(null=True)
    mfu = models.FloatField(null=True)
    memory_bytes = models.BigIntegerField(null=True)

    class Meta:
        ordering = ["series", "step"]
        constraints = [models.UniqueConstraint(fields=["run", "series", "step"], name="one_point_per_step")]

    def __str__(self) -> str:
        return f"run {self.run_id} {self.series} step {self.step}"


class Sample(models.Model):
    """What the model wrote for a fixed prompt at a checkpoint."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="samples")
    step = models.BigIntegerField()
    prompt = models.TextField()
    text = models.TextField()

    class Meta:
        ordering = ["step", "pk"]
        constraints = [models.UniqueConstraint(fields=["run", "step", "prompt"], name="one_sample_per_prompt")]

    def __str__(self) -> str:
        return f"run {self.run_id} step {self.step}"


class Score(models.Model):
    """One number of the trusted scorer, with its standard error."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="scores")
    name = models.CharField(max_length=120)
    """`bits_per_byte`, `nats_per_token`, or `<lm-eval task>/<metric>`."""
    value = models.FloatField()
    stderr = models.FloatField(null=True)
    count = models.BigIntegerField(null=True)
    """Tokens or items behind it."""

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["run", "name"], name="one_score_per_name")]

    def __str__(self) -> str:
        return f"{self.name} = {self.value:.4f}"


class ApiToken(models.Model):
    """Lets a CI job ask for a run (`POST /api/v1/runs`). Stored hashed, shown once."""

    name = models.CharField(max_length=80)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    token_hash = models.CharField(max_length=64, unique=True)
    scope = models.CharField(max_length=20, default="runs:create")
    created_at = models.DateTimeField(default=timezone.now)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked = models.BooleanField(default=False)

    def __str__(self) -> str:
        return self.name
