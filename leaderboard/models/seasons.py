"""Seasons and tracks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.urls import reverse
from django.utils import timezone
from typing_extensions import TypedDict

from leaderboard import initial_weights
from leaderboard.models.dicts import build_dict
from leaderboard.recomputation import request_recomputation
from scheduler import matching, windows
from scheduler.models import Blob, Checkpoint
from trainer import protocol
from trainer.accounting.budget import Budget
from trainer.accounting.training_size import (
    KEPT_ON_NODE,
    ModelSize,
    UploadLimits,
    compute_model_size,
    compute_upload_limits,
    estimate_memory,
)
from trainer.data.corpora import find_corpus
from trainer.data.tokenizer_names import check_tokenizer_name
from trainer.errors import UserError

# What a track's `limits` leave out. Beyond the budget there must be time for the start, evaluation and uploads.
WALL_FACTOR = 2.0
WALL_EXTRA_SECONDS = 600.0
MEMORY_BYTES = 6 * 2**30
CUDA_MEMORY_BYTES = 12 * 2**30  # with a GPU, for each: CUDA's libraries and the processes of torch.compile
DISK_BYTES = 4 * 2**30
PROCESSES = 128
UPLOAD_LIMITS = ("file_bytes", "lease_bytes")
"""Names in a track's `limits` that the site applies itself."""

MOST_SEEDS = 20
MOST_MONTHLY = 10
RUNGS = (1 / 64, 64)
"""Smallest and largest rung, as parts of the budget."""

MANIFEST = "manifest.json"
"""Of a dataset."""
CAPS = ("parameters", "stored_bytes", "constant_bytes", "source_bytes", "scoring_flops")
SWARM_SIZES = {"stages", "workers", "minimum"}
MOST_SEATS = 64


class SeasonQuerySet(models.QuerySet["Season"]):
    def current(self) -> Season | None:
        """Return the season of new tracks."""
        return self.filter(active=True).order_by("-started_at").first()


def build_caps() -> dict[str, float]:
    """Return the caps of a new season."""
    return {"constant_bytes": 64_000, "source_bytes": 20_000, "scoring_flops": 4}


class Season(models.Model):
    """What is frozen so that results compare: dataset, tokenizer, baseline, environment."""

    name = models.CharField(max_length=80, unique=True)
    started_at = models.DateTimeField(default=timezone.now)
    active = models.BooleanField(default=True)
    corpus = models.CharField(max_length=200)
    tokenizer = models.CharField(max_length=200)
    limit_bytes = models.BigIntegerField(null=True, blank=True, validators=[MinValueValidator(1)])
    dataset_hash = models.CharField(
        max_length=64, blank=True, help_text="Empty until `manage.py prepare_season` has built the dataset."
    )
    vocabulary_size = models.PositiveIntegerField(
        null=True, blank=True, help_text="Tokens of the prepared dataset's vocabulary."
    )
    caps = models.JSONField(
        default=build_caps,
        blank=True,
        help_text="Limits of traced entries: parameters, stored_bytes, constant_bytes, source_bytes (compressed, "
        "beyond main's own files), scoring_flops (per token, times the baseline's). A missing one is no limit.",
    )
    baseline = models.ForeignKey(
        "Entry", null=True, blank=True, on_delete=models.PROTECT, related_name="+", help_text="A pinned commit."
    )

    objects = SeasonQuerySet.as_manager()

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **kwargs: Any) -> None:
        super().save(*args, **kwargs)
        for track_id in self.tracks.values_list("pk", flat=True):
            request_recomputation(track_id)

    def clean(self) -> None:
        known = isinstance(self.caps, dict) and set(self.caps) <= set(CAPS)
        if not known or not all(is_number(cap) and cap > 0 for cap in self.caps.values()):
            raise ValidationError({"caps": f"A table of numbers above 0 by name: {', '.join(CAPS)}."})
        if not self.is_prepared:
            check_field("corpus", find_corpus, self.corpus)
            check_field("tokenizer", check_tokenizer_name, self.tokenizer)

    @property
    def is_prepared(self) -> bool:
        return bool(self.dataset_hash)

    @property
    def is_stored(self) -> bool:
        """Whether nodes can download the dataset. Its manifest is stored last."""
        return self.files.filter(kind=SeasonFile.Kind.DATASET, path=MANIFEST).exists()

    def dataset(self, *splits: str) -> protocol.DatasetPin:
        """Return the pin of a job that reads these splits of the dataset. The season must be prepared.

        It names no files while the dataset is not stored as a whole: nodes then prepare it.
        """
        folders = ("", *splits)
        files = self.files.filter(kind=SeasonFile.Kind.DATASET).select_related("blob") if self.is_stored else ()
        return protocol.DatasetPin(
            corpus=self.corpus,
            tokenizer=self.tokenizer,
            limit_bytes=self.limit_bytes,
            hash=self.dataset_hash,
            files=tuple(file.get_reference() for file in files if file.path.rpartition("/")[0] in folders) or None,
        )


def check_field(field: str, check: Callable[[str], object], value: str) -> None:
    try:
        check(value)
    except UserError as error:
        raise ValidationError({field: str(error)}) from error


class SeasonFile(models.Model):
    """A file of a season in the storage, which nodes download by its hash."""

    class Kind(models.TextChoices):
        DATASET = "dataset"

    season = models.ForeignKey(Season, on_delete=models.CASCADE, related_name="files")
    kind = models.CharField(max_length=12, choices=Kind.choices)
    path = models.CharField(max_length=200, help_text="In the folder of the dataset.")
    blob = models.ForeignKey(Blob, on_delete=models.PROTECT, related_name="+")

    class Meta:
        ordering = ["season", "kind", "path"]
        constraints = [models.UniqueConstraint(fields=["season", "kind", "path"], name="one_season_file_per_path")]

    def __str__(self) -> str:
        return self.path

    def get_reference(self) -> protocol.FileRef:
        return protocol.FileRef(path=self.path, sha256=self.blob.sha256, size=self.blob.size)


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
    ladder: dict[str, Any]
    seeds: int
    config: dict[str, Any]
    suite: list[str]
    nightly: bool
    is_default: bool
    page: str


def known_zone(name: str) -> None:
    if windows.parse_time_zone(name) is None:
        raise ValidationError(f"{name} is no time zone; try Europe/Berlin or UTC.")


def check_ladder(ladder: object) -> None:
    """Raise ValueError unless this is {} or {"rungs": [...], "seeds": n}."""
    if ladder == {}:
        return
    if not isinstance(ladder, dict) or set(ladder) != {"rungs", "seeds"}:
        raise ValueError('ladder: it is {"rungs": [0.125, 0.25, 0.5, 1, 2], "seeds": 3}, or empty')
    rungs, seeds = ladder["rungs"], ladder["seeds"]
    if not isinstance(rungs, list) or not all(is_number(rung) and RUNGS[0] <= rung <= RUNGS[1] for rung in rungs):
        raise ValueError(f"ladder: rungs are parts of the budget, from 1/64 to {RUNGS[1]}")
    if len(set(rungs)) != len(rungs) or 1 not in rungs:
        raise ValueError("ladder: each rung comes once, and 1 (the whole budget) is one of them")
    if not isinstance(seeds, int) or isinstance(seeds, bool) or not 1 <= seeds <= MOST_SEEDS:
        raise ValueError(f"ladder: seeds is a whole number from 1 to {MOST_SEEDS}")


def check_trial(trial: object, ladder: object) -> None:
    """Raise ValueError unless this is {}, or {"part": p, "config": {...}} without a ladder."""
    if trial == {}:
        return
    if not isinstance(trial, dict) or not {"part"} <= set(trial) <= {"part", "config"}:
        raise ValueError('trial: it is {"part": 0.1, "config": {"model": {"depth": 4}}}, or empty')
    if not is_number(trial["part"]) or not RUNGS[0] <= trial["part"] < 1:
        raise ValueError("trial: part is a part of the budget, from 1/64 to less than 1")
    if not isinstance(trial.get("config", {}), dict):
        raise ValueError("trial: config is a table of names and values")
    if ladder:
        raise ValueError("trial: smaller models would stand on the ladder beside others; a track has one or the other")


def check_swarm(track: Track) -> None:
    """Raise ValueError unless a swarm's track has valid sizes, and another track has none."""
    if track.kind != Track.Kind.SWARM:
        if track.swarm:
            raise ValueError("swarm: only a track of kind swarm has it")
        return
    given = track.swarm
    if not isinstance(given, dict) or not {"stages", "workers"} <= set(given) <= {*SWARM_SIZES, "patience"}:
        raise ValueError('swarm: it is {"stages": 2, "workers": 2, "minimum": 1, "patience": 30}')
    for name in SWARM_SIZES & given.keys():
        if not isinstance(given[name], int) or isinstance(given[name], bool) or not 1 <= given[name] <= MOST_SEATS:
            raise ValueError(f"swarm: {name} is a whole number from 1 to {MOST_SEATS}")
    if not is_number(given.get("patience", 30)) or not 0 < given.get("patience", 30) <= 3600:
        raise ValueError("swarm: patience is in seconds, up to 3600")
    if Budget.parse(track.budget).kind != "steps":
        raise ValueError("swarm: its budget is a number of steps, such as 2000steps")
    if track.ladder or track.trial or track.releases or track.start_run_id:
        raise ValueError("swarm: its track has no ladder, no trial, no releases and starts from scratch")


def check_traced(track: Track) -> None:
    """Raise ValueError if the runs of a traced track could not train a graph."""
    if not track.is_traced:
        return
    train = track.config.get("train", {})
    if track.kind == Track.Kind.SWARM or track.start_run_id or track.config.get("devices", 1) != 1:
        raise ValueError("is_traced: a swarm, a start run and several devices need the Python of an architecture")
    if train.get("chunk") or train.get("activation_checkpointing") or train.get("precision") == "fp8":
        raise ValueError("is_traced: chunk, activation_checkpointing and fp8 need the Python of an architecture")


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class TrackQuerySet(models.QuerySet["Track"]):
    def default(self) -> Track | None:
        """Return the track that `/` shows."""
        return self.in_order().order_by("-is_default", "position", "slug").first()

    def for_pull_requests(self) -> Track | None:
        """Return the track that a pull request is offered: a playground if there is one, else the default track."""
        return self.in_order().filter(kind=Track.Kind.PLAYGROUND, season__active=True).first() or self.default()

    def find(self, slug: str | None) -> Track | None:
        """Return the track with this slug; the default track if it is empty."""
        return self.filter(slug=slug).first() if slug else self.default()

    def in_order(self) -> TrackQuerySet:
        return self.select_related("season").order_by("position", "slug")

    def with_standings(self, axis: str) -> TrackQuerySet:
        """Select each track's standings table as `standings`; the attribute is missing before the first computation."""
        own = models.FilteredRelation("standings_tables", condition=models.Q(standings_tables__axis=axis))
        return self.annotate(standings=own).select_related("season", "standings")  # type: ignore[misc]

    def nightly(self) -> TrackQuerySet:
        return self.filter(nightly=True, season__active=True).select_related("season__baseline")

    def with_ladder(self) -> TrackQuerySet:
        """Return tracks whose ladder can be filled: their season has a baseline and a prepared dataset."""
        return (
            self.filter(season__active=True, season__baseline__isnull=False)
            .exclude(ladder={})
            .exclude(season__dataset_hash="")
            .select_related("season__baseline")
        )


class Track(models.Model):
    """A table of the board: a budget on a class of machine."""

    class Kind(models.TextChoices):
        COMPETITION = "competition"  # whatever else is compared
        COMMUNITY = "community"  # wanted by many: those of the most impact first
        PLAYGROUND = "playground"  # a hypothesis and a small model first; gives way to a nightly
        SWARM = "swarm"  # one model trained by many machines together

    slug = models.SlugField(unique=True)
    name = models.CharField(max_length=80)
    season = models.ForeignKey(Season, on_delete=models.PROTECT, related_name="tracks")
    description = models.TextField(blank=True)
    budget = models.CharField(
        max_length=40, help_text="As for `dailytrain train --budget`: 180s, 24h, 500steps, 3B-tokens, 1e19flops."
    )
    expected_seconds = models.FloatField()
    config = models.JSONField(
        default=dict,
        blank=True,
        help_text="Configuration that the track fixes for every run (size, batch, sequence length).",
    )
    suite = models.JSONField(default=list, blank=True, help_text="lm-eval task names.")
    suite_limit = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)], help_text="Number of items per task. Null: all."
    )
    needs_labels = models.JSONField(default=list, blank=True)
    ladder = models.JSONField(
        default=dict,
        blank=True,
        help_text='Standing runs of the baseline: {"rungs": [0.125, 0.25, 0.5, 1, 2], "seeds": 3}, rungs as parts '
        "of the budget. Empty: no ladder and no multipliers.",
    )
    seeds = models.PositiveIntegerField(
        default=1,
        validators=[MinValueValidator(1), MaxValueValidator(MOST_SEEDS)],
        help_text="Runs of an entry: one after approval, the others once the ladder is full.",
    )
    limits = models.JSONField(
        default=dict,
        blank=True,
        help_text="Of the training job: wall_seconds, memory_bytes, disk_bytes, processes, and for uploads file_bytes "
        "and lease_bytes. Missing values follow from the expected seconds and the model's size.",
    )
    probe_seconds = models.FloatField(
        default=2.0,
        validators=[MinValueValidator(0)],
        help_text="Duration of the speed probe before and after each training. 0: no probe and no seconds axis.",
    )
    kappa_tolerance = models.FloatField(
        default=0.03,
        validators=[MinValueValidator(0)],
        help_text="A larger relative deviation from the median speed of the node class voids the run's seconds.",
    )
    drift_tolerance = models.FloatField(
        default=0.01,
        validators=[MinValueValidator(0)],
        help_text="A larger relative change of the node's speed during a run voids its seconds.",
    )
    confirmations = models.PositiveIntegerField(
        default=3,
        validators=[MinValueValidator(1)],
        help_text="Number of confirmation runs of a record candidate, fixed before the first one starts.",
    )
    is_default = models.BooleanField(default=False)
    nightly = models.BooleanField(default=False, help_text="Run `main` on this track every night.")
    monthly = models.PositiveSmallIntegerField(
        default=0,
        validators=[MaxValueValidator(MOST_MONTHLY)],
        help_text="Number of best entries on the monthly train, with seven times the budget. 0: none.",
    )
    releases = models.PositiveSmallIntegerField(
        default=0,
        validators=[MaxValueValidator(50)],
        help_text="Keep and publish a run’s weights every so many percent of its budget; 0: only at its end.",
    )
    is_traced = models.BooleanField(
        default=True,
        help_text="Architectures are traced once, in a sandbox, and nodes train the graphs. Nothing else ranks. Not "
        "for swarms, start runs and several devices.",
    )
    hours_zone = models.CharField(
        max_length=64, default="UTC", validators=[known_zone], help_text="IANA time zone of the track's hours."
    )
    position = models.IntegerField(default=0)

    kind = models.CharField(max_length=12, choices=Kind.choices, default=Kind.COMPETITION)
    trial = models.JSONField(
        default=dict,
        blank=True,
        help_text='Smaller first run of an entry: {"part": 0.1, "config": {"model": {"depth": 4}}}, the part of '
        "the budget and configuration overrides. The full run follows when the trial is scored. Empty: none.",
    )
    start_run = models.ForeignKey(
        "Run",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        verbose_name="starts from",
        help_text="Number of a run: the track's runs start from its weights. Empty: from scratch.",
    )
    start_checkpoint = models.ForeignKey(
        Checkpoint,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        verbose_name="at",
        help_text="One of that run's kept checkpoints. Empty: its final one, so that it must be finished.",
    )
    needs_memory_bytes = models.BigIntegerField(
        default=0, help_text="Memory that a node must have. The memory limit of the job is in `limits`."
    )

    swarm = models.JSONField(
        default=dict,
        blank=True,
        help_text='For tracks of kind swarm: {"stages": 2, "workers": 2, "minimum": 1, "patience": 30}: model '
        "stages, machines wanted per stage, machines per stage before the first step, seconds until one is lost.",
    )

    objects = TrackQuerySet.as_manager()

    class Meta:
        ordering = ["position", "slug"]

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **kwargs: Any) -> None:
        super().save(*args, **kwargs)
        request_recomputation(self.pk)

    def get_absolute_url(self) -> str:
        return reverse("track", args=[self.slug])

    def clean(self) -> None:
        """Reject what every run of this track would fail on."""
        try:
            Budget.parse(self.budget)
            self.training_limits()
            self.upload_limits()
            check_ladder(self.ladder)
            check_trial(self.trial, self.ladder)
            check_swarm(self)
            check_traced(self)
            Budget.parse(self.trial_budget or self.budget)
            self.rungs()
            self.check_start()
        except ValueError as error:
            raise ValidationError(str(error)) from error

    def check_start(self) -> None:
        """Raise ValueError if nothing can start from what is named, or if other runs of the track did not."""
        if refusal := initial_weights.explain_refusal(self.start_run, self.start_checkpoint):
            raise ValueError(f"starts from: {refusal}")
        if self.pk and self.runs_from_elsewhere().exists():
            raise ValueError("starts from: the track has runs that start from something else; make another track")

    def runs_from_elsewhere(self) -> models.QuerySet[Any]:
        """Return its runs with another start than its own, rewinds excepted."""
        same = models.Q(start_run=self.start_run_id, start_checkpoint=self.start_checkpoint_id)
        return self.runs.exclude(purpose="rewind").exclude(same)

    def rungs(self) -> dict[str, float]:
        """Return the ladder: each rung's budget and which part of the track's it is, smallest first.

        Raises ValueError where two rungs come out as the same budget, or one as none.
        """
        full = Budget.parse(self.budget)
        parts: list[float] = sorted(self.ladder.get("rungs", []))
        rungs = {self.budget if part == 1 else str(full.times(part)): float(part) for part in parts}
        if len(rungs) != len(parts):
            raise ValueError(f"ladder: the budget {self.budget} is too small for rungs so near each other")
        return rungs

    @property
    def trial_budget(self) -> str:
        """Return the budget of an entry's first run; empty for the whole one."""
        return str(Budget.parse(self.budget).times(self.trial["part"])) if self.trial else ""

    def part(self, budget: str) -> float:
        """Return another budget as a part of the track's; 1 if they cannot be compared."""
        if budget == self.budget:
            return 1.0
        return self.rungs().get(budget) or Budget.parse(budget).share_of(Budget.parse(self.budget)) or 1.0

    @property
    def size(self) -> ModelSize | None:
        """Return the baseline's size on this track; None if no formula covers its configuration."""
        return compute_model_size(self.config, vocabulary_size=self.season.vocabulary_size)

    @property
    def gpu_memory(self) -> dict[str, int]:
        """Return an upper bound of the memory of one GPU, by part; empty without a formula or a micro-batch."""
        size = self.size
        if size is None or not self.config.get("train", {}).get("micro_batch"):
            return {}
        return estimate_memory(size, self.config)

    def training_limits(self, part: float = 1.0) -> protocol.JobLimits:
        """Return the sandbox limits of a training job with `part` of the track's budget.

        Beyond the defaults there is memory for two copies of a checkpoint, and disk for those that a node keeps.
        """
        checkpoint_bytes = self.get_checkpoint_bytes()
        base_bytes = CUDA_MEMORY_BYTES if matching.parse_labels(tuple(self.needs_labels)).gpus else MEMORY_BYTES
        given = {
            "wall_seconds": WALL_FACTOR * self.expected_seconds + WALL_EXTRA_SECONDS,
            "memory_bytes": base_bytes * self.config.get("devices", 1) + 2 * checkpoint_bytes,
            "disk_bytes": DISK_BYTES + KEPT_ON_NODE * checkpoint_bytes,
            "processes": PROCESSES * self.config.get("devices", 1),
            **{name: value for name, value in self.limits.items() if name not in UPLOAD_LIMITS},
        }
        limits = protocol.JobLimits.model_validate(given)
        return limits.model_copy(update={"wall_seconds": limits.wall_seconds * max(part, 1.0)})

    def get_checkpoint_bytes(self, parameters: int = 0) -> int:
        """Return the size of a run's checkpoints; 0 if unknown.

        `parameters`: of its graph, which counts if it is larger than the baseline, with AdamW's two momenta.
        """
        size = self.size
        return max(size.checkpoint_bytes if size else 0, 12 * parameters)

    def upload_limits(self, parameters: int = 0) -> UploadLimits | None:
        """Return the upload limits of a run; None if its size is unknown, for those of the settings."""
        checkpoint_bytes = self.get_checkpoint_bytes(parameters)
        given = {name: self.limits[name] for name in UPLOAD_LIMITS if name in self.limits}
        if not checkpoint_bytes and len(given) < len(UPLOAD_LIMITS):
            return None
        return UploadLimits(**{**vars(compute_upload_limits(checkpoint_bytes)), **given})

    def to_dict(self) -> TrackDict:
        season = self.season
        pins = {"corpus": season.corpus, "tokenizer": season.tokenizer, "dataset_hash": season.dataset_hash}
        return build_dict(self, TrackDict, **pins, season=season.name, page=self.get_absolute_url())
