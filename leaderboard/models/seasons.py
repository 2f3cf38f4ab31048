"""What results are compared within."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator
from django.db import models
from django.urls import reverse
from django.utils import timezone
from typing_extensions import TypedDict

from trainer import wire
from trainer.budget import Budget

# What a track's `limits` leave out. Beyond the budget there must be time for the start, evaluation and uploads.
WALL_FACTOR = 2.0
WALL_EXTRA_SECONDS = 600.0
MEMORY_BYTES = 6 * 2**30
DISK_BYTES = 4 * 2**30
PROCESSES = 128


class SeasonQuerySet(models.QuerySet["Season"]):
    def current(self) -> Season | None:
        """Return the season that new tracks belong to."""
        return self.filter(active=True).order_by("-started_at").first()


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

    objects = SeasonQuerySet.as_manager()

    def __str__(self) -> str:
        return self.name

    @property
    def is_prepared(self) -> bool:
        return bool(self.dataset_hash)

    def dataset(self) -> wire.DatasetPin:
        """Return the pin that every job of this season carries; the season must be prepared."""
        return wire.DatasetPin(
            corpus=self.corpus, tokenizer=self.tokenizer, limit_bytes=self.limit_bytes, hash=self.dataset_hash
        )


class TrackDict(TypedDict):
    slug: str
    name: str
    description: str
    season: str
    corpus: str
    tokenizer: str
    dataset_hash: str
    budget: str
    expected_seconds: float
    config: dict[str, Any]
    suite: list[str]
    nightly: bool
    is_default: bool
    page: str


class TrackQuerySet(models.QuerySet["Track"]):
    def default(self) -> Track | None:
        """Return the track that `/` shows: the one marked so, else the first."""
        return self.select_related("season").order_by("-is_default", "position", "slug").first()

    def nightly(self) -> TrackQuerySet:
        return self.filter(nightly=True, season__active=True).select_related("season__baseline")


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
    suite_limit = models.PositiveIntegerField(null=True, blank=True, validators=[MinValueValidator(1)])
    """Only the first so many items of each task; null takes all."""
    needs_labels = models.JSONField(default=list, blank=True)
    limits = models.JSONField(default=dict, blank=True)
    """A `wire.Limits` for the training job; what it leaves out follows from the expected seconds."""
    is_default = models.BooleanField(default=False)
    nightly = models.BooleanField(default=False)
    """The nightly run of `main` is on this track."""
    position = models.IntegerField(default=0)

    objects = TrackQuerySet.as_manager()

    class Meta:
        ordering = ["position", "slug"]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("track", args=[self.slug])

    def clean(self) -> None:
        """Refuse in the admin what every run of this track would fail on."""
        try:
            Budget.parse(self.budget)
            self.training_limits()
        except ValueError as error:
            raise ValidationError(str(error)) from error

    def training_limits(self) -> wire.Limits:
        """Return what the sandbox allows a training job of this track."""
        limits = {
            "wall_seconds": WALL_FACTOR * self.expected_seconds + WALL_EXTRA_SECONDS,
            "memory_bytes": MEMORY_BYTES,
            "disk_bytes": DISK_BYTES,
            "processes": PROCESSES,
            **self.limits,
        }
        return wire.Limits.model_validate(limits)

    def to_dict(self) -> TrackDict:
        return {
            "slug": self.slug,
            "name": self.name,
            "description": self.description,
            "season": self.season.name,
            "corpus": self.season.corpus,
            "tokenizer": self.season.tokenizer,
            "dataset_hash": self.season.dataset_hash,
            "budget": self.budget,
            "expected_seconds": self.expected_seconds,
            "config": self.config,
            "suite": self.suite,
            "nightly": self.nightly,
            "is_default": self.is_default,
            "page": self.get_absolute_url(),
        }
