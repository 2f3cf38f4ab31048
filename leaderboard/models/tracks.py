"""Tracks: budgets on classes of machines, and the sizes and limits of their runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.urls import reverse
from django.utils import timezone
from typing_extensions import TypedDict

from leaderboard.models.dicts import build_dict
from leaderboard.models.field_checks import (
    MOST_SEEDS,
    check_hosts,
    check_ladder,
    check_swarm_sizes,
    check_trial,
    known_zone,
)
from leaderboard.models.seasons import Season
from leaderboard.recomputation import request_recomputation
from scheduler import matching
from scheduler.models import Checkpoint
from trainer import protocol
from trainer.accounting.budget import Budget
from trainer.accounting.training_size import (
    DEFAULT_GPU_SEQUENCE_LENGTH,
    KEPT_ON_NODE,
    CheckpointSizes,
    ModelSize,
    UploadLimits,
    compute_checkpoint_sizes,
    compute_model_size,
    compute_upload_limits,
    estimate_memory,
    estimate_scoring_memory,
    explain_too_large,
)
from trainer.errors import UserError
from trainer.scoring import benchmark_tasks
from trainer.scoring.multiplier import futility

# What a track's `limits` leave out. Beyond the budget there must be time for the start, evaluation and uploads.
WALL_FACTOR = 2.0
WALL_EXTRA_SECONDS = 600.0
MEMORY_BYTES = 6 * 2**30
CUDA_MEMORY_BYTES = 12 * 2**30  # with a GPU, for each: CUDA's libraries and the processes of torch.compile
DISK_BYTES = 4 * 2**30
PROCESSES = 128
UPLOAD_LIMITS = ("file_bytes", "lease_bytes")
"""Names in a track's `limits` that the site applies itself."""
MOST_MONTHLY = 10
EVALUATIONS = round(1 / min(futility.LOOKS))
"""Of a run, or a multiple of it: then each look at which runs are compared with the ladder has one."""


class TrackDict(TypedDict):
    slug: str
    name: str
    description: str
    season: str
    corpus: str
    tokenizer: str
    dataset_hash: str
    test_tokens: int  # scored, at most
    budget: str
    expected_seconds: float
    ladder: dict[str, Any]
    seeds: int
    config: dict[str, Any]
    suite: list[str]
    nightly: bool
    is_default: bool
    qualifier: str | None  # slug of the track on which an entry starts
    approval: str
    caps: dict[str, float]  # of its season
    stops_early: bool
    page: str


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
        COMPETITION = "competition"  # any other comparison
        COMMUNITY = "community"  # wanted by many: those of the most impact first
        PLAYGROUND = "playground"  # a hypothesis and a small model first; gives way to a nightly
        SWARM = "swarm"  # one model trained by many machines together

    class Approval(models.TextChoices):
        """Whose traced entries are approved without a maintainer, within `ApprovalLimits`."""

        MAINTAINER = "maintainer", "no author's: a maintainer approves each commit"
        KNOWN = "known", "authors with a scored entry"
        ANYONE = "anyone", "anyone signed in to GitHub"

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
        help_text="Runs of an entry: one after approval, the others once the ladder is full; where runs that are "
        "behind stop, one by one and only while its interval contains 1 and ends above 1.02.",
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
    milestones = models.PositiveSmallIntegerField(
        default=10,
        validators=[MaxValueValidator(50)],
        help_text="Keep a run’s weights in bf16 every so many percent of its budget; 0: only its final weights. The "
        "newest two checkpoints, with the optimizer’s state, are kept until two days after its end.",
    )
    releases = models.PositiveSmallIntegerField(
        default=0,
        validators=[MaxValueValidator(50)],
        help_text="Publish and score the weights every so many percent of the budget; 0: only at the end.",
    )
    is_traced = models.BooleanField(
        default=True,
        help_text="Architectures are traced once, in a sandbox, and nodes train the graphs. Nothing else ranks. Not "
        "for swarms, start runs and several devices.",
    )
    notebook_hosts = models.JSONField(
        default=list,
        db_default=[],
        blank=True,
        validators=[check_hosts],
        help_text="Hosts from which its notebooks may fetch by HTTPS, with their subdomains, such as "
        '["huggingface.co", "hf.co"]. Nodes log each connection. Empty: notebooks have no network.',
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
    followed_track = models.ForeignKey(
        "self",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="followers",
        verbose_name="fine-tunes the releases of",
        help_text="Each new release of a run on that track starts one run here, from its weights. Empty: none.",
    )
    follows_since = models.DateTimeField(null=True, blank=True, editable=False)
    qualifier = models.ForeignKey(
        "self",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="next_tracks",
        verbose_name="qualifying track",
        help_text="Entries start there, and move up once they are above 1 with confidence. Empty: they start here.",
    )
    approval = models.CharField(
        max_length=10,
        choices=Approval.choices,
        default=Approval.MAINTAINER,
        db_default=Approval.MAINTAINER,
        help_text="Whose traced entries are approved without a maintainer, within the hours of the approval limits.",
    )
    stops_early = models.BooleanField(
        "stops runs that are behind",
        default=False,
        db_default=False,
        help_text="At 1/8, 1/4 and 1/2 of the budget, entries stop that have no chance to end above the baseline. Not "
        "main, ladder or confirmation runs. Needs a budget in FLOPs, a ladder and evaluations at these parts.",
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
        constraints = [
            models.UniqueConstraint(
                fields=["is_default"],
                condition=models.Q(is_default=True),
                name="one_default_track",
                violation_error_message="Another track is the default. Clear its mark first.",
            )
        ]

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **kwargs: Any) -> None:
        if self.followed_track_id is None:
            self.follows_since = None
        elif self.follows_since is None:
            self.follows_since = timezone.now()
        if "followed_track" in (fields := kwargs.get("update_fields") or ()):
            kwargs["update_fields"] = {*fields, "follows_since"}
        super().save(*args, **kwargs)
        request_recomputation(self.pk)

    def get_absolute_url(self) -> str:
        return reverse("track", args=[self.slug])

    def clean(self) -> None:
        """Reject what every run of this track would fail on."""
        try:
            if self.season_id and self.season.published_secret:
                raise ValueError(f"season: {self.season} has ended, and its test text is public")
            Budget.parse(self.budget)
            self.training_limits()
            self.upload_limits()
            check_ladder(self.ladder)
            check_trial(self.trial, self.ladder)
            self.check_swarm()
            self.check_traced()
            self.check_followed()
            self.check_chain()
            self.check_early_stops()
            Budget.parse(self.trial_budget or self.budget)
            self.rungs()
            self.check_milestones()
            self.check_start()
            benchmark_tasks.check_names(self.suite)
            self.check_size()
        except (ValueError, UserError) as error:
            raise ValidationError(str(error)) from error

    def check_swarm(self) -> None:
        """Raise ValueError unless a swarm's track has what a swarm needs, and another track has no sizes of one."""
        if self.kind != self.Kind.SWARM:
            if self.swarm:
                raise ValueError("swarm: only a track of kind swarm has it")
            return
        check_swarm_sizes(self.swarm)
        if Budget.parse(self.budget).kind != "steps":
            raise ValueError("swarm: its budget is a number of steps, such as 2000steps")
        if self.ladder or self.trial or self.releases or self.start_run_id:
            raise ValueError("swarm: its track has no ladder, no trial, no releases and starts from scratch")

    def check_traced(self) -> None:
        """Raise ValueError if the runs of a traced track could not train a graph."""
        if not self.is_traced:
            return
        train = self.config.get("train", {})
        if self.kind == self.Kind.SWARM or self.start_run_id or self.config.get("devices", 1) != 1:
            raise ValueError("is_traced: a swarm, a start run and several devices need the Python of an architecture")
        if train.get("chunk") or train.get("activation_checkpointing"):
            raise ValueError("is_traced: chunk and activation_checkpointing need the Python of an architecture")

    def check_followed(self) -> None:
        """Raise ValueError unless runs of a track that follows releases can start from them, and from nothing else."""
        followed = self.followed_track
        if followed is None:
            return
        name = "fine-tunes the releases of"
        if followed.pk == self.pk or followed.followed_track_id is not None:
            raise ValueError(f"{name}: {followed} fine-tunes releases itself; name a track that trains from scratch")
        if not followed.releases:
            raise ValueError(f"{name}: {followed} has no releases; set them there first, such as every 10 percent")
        if followed.season.tokenizer != self.season.tokenizer:
            raise ValueError(f"{name}: {followed} has another tokenizer, {followed.season.tokenizer}")
        if self.ladder or self.trial or self.nightly or self.monthly or self.start_run_id or self.is_traced:
            raise ValueError(
                f"{name}: such a track has no ladder, trial, nightly or monthly run, starts from no run, and is not "
                "traced"
            )
        if self.kind == self.Kind.SWARM:
            raise ValueError(f"{name}: a swarm starts from scratch")

    def check_chain(self) -> None:
        """Raise ValueError unless entries can qualify for the track, and policy approves graphs only."""
        if self.approval != self.Approval.MAINTAINER and not self.is_traced:
            raise ValueError("approval: only a maintainer approves the Python of an untraced track")
        if self.qualifier and not (self.is_traced and self.qualifier.is_traced and self.qualifier.ladder):
            raise ValueError("qualifying track: both tracks are traced, and it has a ladder that gives multipliers")
        before = self.qualifier
        while before is not None:
            if before.pk == self.pk:
                raise ValueError("qualifying track: the chain of tracks leads back to this one")
            before = before.qualifier

    def check_early_stops(self) -> None:
        """Raise ValueError unless runs can be compared with those of the ladder at parts of the budget."""
        if not self.stops_early:
            return
        if not (self.ladder and self.is_traced and Budget.parse(self.budget).kind == "flops"):
            raise ValueError("stops runs that are behind: its track is traced and has a ladder and a budget in FLOPs")
        evaluations = self.config.get("train", {}).get("evaluations") or 0
        if evaluations % EVALUATIONS or not evaluations:
            raise ValueError(f"stops runs that are behind: train.evaluations is a multiple of {EVALUATIONS}")

    def list_earlier(self) -> list[Track]:
        """Return the tracks of its season on which an entry qualifies for it, the first one first."""
        before = self.qualifier
        is_linked = before is not None and before.season_id == self.season_id
        return [*before.list_earlier(), before] if before is not None and is_linked else []

    def check_milestones(self) -> None:
        """Raise ValueError unless one spacing is a multiple of the other: a run sends weights at one spacing only."""
        small, large = sorted((self.milestones, self.releases))
        if small and large % small:
            raise ValueError(
                f"milestones and releases: one must be a multiple of the other, not {self.milestones} and "
                f"{self.releases} percent. Choose 10 and 20, for example."
            )

    def check_size(self) -> None:
        """Raise ValueError if the model that the track's configuration names does not fit its GPUs."""
        if "arch" in self.config and (excess := self.explain_size_excess(self.config)):
            raise ValueError(f"config: {excess}")

    def explain_size_excess(self, config: Mapping[str, Any]) -> str:
        """Return why its GPUs cannot hold the model of a run's configuration; empty if they can or may."""
        card_bytes = matching.parse_labels(tuple(self.needs_labels)).gpu_memory_bytes
        if not card_bytes:
            return ""
        return explain_too_large(config, self.budget, card_bytes, self.season.vocabulary_size)

    def check_start(self) -> None:
        """Raise ValueError if nothing can start from what is named, or if other runs of the track did not."""
        if self.start_run is None and self.start_checkpoint is not None:
            raise ValueError("starts from: A checkpoint belongs to a run: name that too.")
        if self.start_run is not None and (refusal := self.start_run.explain_start_refusal(self.start_checkpoint)):
            raise ValueError(f"starts from: {refusal}")
        if self.pk and self.runs_from_elsewhere().exists():
            raise ValueError("starts from: the track has runs that start from something else; make another track")

    def runs_from_elsewhere(self) -> models.QuerySet[Any]:
        """Return its runs with another start than its own, rewinds and fine-tunes of releases excepted."""
        same = models.Q(start_run=self.start_run_id, start_checkpoint=self.start_checkpoint_id)
        return self.runs.exclude(purpose__in=("rewind", "finetune")).exclude(same)

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

        Beyond the defaults there is memory for two copies of a checkpoint, and disk for those that a node keeps and for
        all milestones, should the site be unreachable.
        """
        sizes = self.get_checkpoint_sizes()
        base_bytes = CUDA_MEMORY_BYTES if matching.parse_labels(tuple(self.needs_labels)).gpus else MEMORY_BYTES
        given = {
            "wall_seconds": WALL_FACTOR * self.expected_seconds + WALL_EXTRA_SECONDS,
            "memory_bytes": base_bytes * self.config.get("devices", 1) + 2 * sizes.checkpoint,
            "disk_bytes": DISK_BYTES + KEPT_ON_NODE * sizes.checkpoint + sizes.milestones * sizes.milestone,
            "processes": PROCESSES * self.config.get("devices", 1),
            **{name: value for name, value in self.limits.items() if name not in UPLOAD_LIMITS},
        }
        limits = protocol.JobLimits.model_validate(given)
        return limits.model_copy(update={"wall_seconds": limits.wall_seconds * max(part, 1.0)})

    @property
    def milestone_percent(self) -> int:
        """Return the spacing of the weights that a run sends, milestones and releases; 0: none."""
        return min(filter(None, (self.milestones, self.releases)), default=0)

    def get_scoring_memory(self, parameters: int = 0) -> int:
        """Return the memory of a device that scores a run, an upper bound; 0 if unknown.

        `parameters`: of its graph, which counts if it is larger than the baseline.
        """
        size, length = self.size, self.config.get("train", {}).get("sequence_length", DEFAULT_GPU_SEQUENCE_LENGTH)
        return sum(estimate_scoring_memory(size, length, parameters).values()) if size else 0

    def scoring_limits(self, parameters: int = 0) -> protocol.JobLimits:
        """Return the limits of a score job: those of training, or less.

        There is memory for the trained and the untrained weights, for the device's part where it is the CPU, and disk
        for weights without optimizer state.
        """
        limits = self.training_limits()
        if not (needed := self.get_scoring_memory(parameters)):
            return limits
        has_gpu = bool(matching.parse_labels(tuple(self.needs_labels)).gpus)
        memory = (CUDA_MEMORY_BYTES if has_gpu else MEMORY_BYTES) + needed
        disk = DISK_BYTES + needed
        smaller = {"memory_bytes": min(limits.memory_bytes, memory), "disk_bytes": min(limits.disk_bytes, disk)}
        return limits.model_copy(update=smaller)

    def get_checkpoint_sizes(self, parameters: int = 0) -> CheckpointSizes:
        """Return the sizes of what a run uploads; zeros if unknown. `parameters`: of its graph."""
        return compute_checkpoint_sizes(self.size, self.milestone_percent, parameters)

    def upload_limits(self, parameters: int = 0) -> UploadLimits | None:
        """Return the upload limits of a run; None if its size is unknown, for those of the settings."""
        sizes = self.get_checkpoint_sizes(parameters)
        given = {name: self.limits[name] for name in UPLOAD_LIMITS if name in self.limits}
        if not sizes.checkpoint and len(given) < len(UPLOAD_LIMITS):
            return None
        return UploadLimits(**{**vars(compute_upload_limits(sizes)), **given})

    def to_dict(self) -> TrackDict:
        season = self.season
        names = ("corpus", "tokenizer", "dataset_hash", "test_tokens", "caps")
        pins = {name: getattr(season, name) for name in names}
        qualifier = self.qualifier.slug if self.qualifier else None
        return build_dict(
            self, TrackDict, **pins, season=season.name, qualifier=qualifier, page=self.get_absolute_url()
        )
