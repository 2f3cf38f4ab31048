"""Runs."""

from __future__ import annotations

from fractions import Fraction
from typing import cast

from django.db import models
from django.db.models import BooleanField, Count, Exists, ExpressionWrapper, F, FilteredRelation, OuterRef, Q, Sum
from django.urls import reverse
from django.utils import timezone
from typing_extensions import TypedDict

from leaderboard.models.confirmations import Confirmation
from leaderboard.models.dicts import build_dict
from leaderboard.models.entries import Entry
from leaderboard.models.graphs import TracedGraph
from leaderboard.models.seasons import Season
from leaderboard.models.tracks import Track
from scheduler.models import Checkpoint, Job, JobFile
from trainer.protocol.files import RUN_FILE

BENCHMARK_AVERAGE = "average/normalized"
"""Score that is the average over the track's lm-eval tasks."""


class LiveDict(TypedDict):
    """The fields that change during a run. `fraction` and later ones are reported by the training process."""

    id: int
    state: str
    reason: str
    cause: str
    trust: str
    node: str
    node_class: str
    step: int
    fraction: float
    tokens: int
    loss: float | None
    seconds_left: float | None
    bits_per_byte: float | None
    bits_per_byte_stderr: float | None
    look_fraction: float | None  # of the budget, where it was last compared with the baseline
    look_behind: float | None  # share of the compute that it lost there; below 0: it is ahead
    look_error: float | None  # standard error of that as a forecast of its end
    revision: int


class RunDict(LiveDict):
    entry: int
    title: str
    author: str
    architecture: str
    kind: str
    repository: str
    sha: str
    track: str
    season: str
    purpose: str
    seed: int
    budget: str
    graph: str | None
    parameters: int | None
    train_flops: float | None
    train_seconds: float | None
    created_at: str
    started_at: str | None
    trained_at: str | None
    finished_at: str | None
    page: str


class RunQuerySet(models.QuerySet["Run"]):
    def with_entry(self) -> RunQuerySet:
        """Select what `to_dict` and the rows of tables need."""
        return self.select_related("entry", "track", "season").annotate(graph_hash=F("graph__hash"))

    def with_job(self) -> RunQuerySet:
        return self.select_related("entry", "track", "season", "job")

    def scored(self, track: Track) -> RunQuerySet:
        """Return the scored runs of the track's season, the ladder's rungs included."""
        return (
            self.filter(track=track.pk, season=track.season_id, state=Run.State.FINISHED, bits_per_byte__isnull=False)
            .exclude(purpose__in=Run.NOT_COMPARED)
            .annotate(
                overall=FilteredRelation("scores", condition=Q(scores__name=BENCHMARK_AVERAGE)),
                broke_record=Exists(
                    Confirmation.objects.filter(
                        entry=OuterRef("entry"), season=OuterRef("season"), outcome=Confirmation.Outcome.RECORD
                    )
                ),
            )
            .order_by("bits_per_byte", "pk")
        )

    def on_board(self, track: Track) -> RunQuerySet:
        """Return the scored runs with the track's whole budget, best first."""
        return self.scored(track).with_entry().filter(budget=track.budget)

    def live(self) -> RunQuerySet:
        """Return runs that are training, paused or being scored."""
        return self.with_entry().filter(state__in=Run.LIVE).order_by("started_at", "pk")

    def order_nightly_first(self) -> RunQuerySet:
        """Order by start, after the nightly run; paused runs come last."""
        is_paused = ExpressionWrapper(Q(state=Run.State.PAUSED), BooleanField())
        is_other = ExpressionWrapper(~Q(purpose=Run.Purpose.NIGHTLY), BooleanField())
        return self.order_by(is_paused, is_other, F("started_at").asc(nulls_last=True), "pk")

    def in_queue_order(self) -> RunQuerySet:
        return self.order_by("job__priority", "-job__impact", "job__expected_seconds", "job__queued_at", "pk")

    def queued(self) -> RunQuerySet:
        return self.with_entry().filter(state=Run.State.QUEUED).in_queue_order()

    def waiting(self) -> RunQuerySet:
        """Return runs that have not started: unapproved ones and queued ones."""
        return self.with_entry().filter(state__in=Run.NOT_STARTED).in_queue_order()

    def failed(self) -> RunQuerySet:
        """Return runs that ended without a result, latest first."""
        return self.with_entry().filter(state__in=Run.WITHOUT_RESULT).order_by("-finished_at")

    def without_rank(self) -> RunQuerySet:
        """Return runs that ended and that the board does not compare."""
        excluded_trust = (Run.Trust.PROVISIONAL, Run.Trust.DISPUTED)
        is_excluded = (
            Q(bits_per_byte=None)
            | Q(purpose__in=Run.NOT_COMPARED)
            | Q(trust__in=excluded_trust)
            | Q(track__is_traced=True, graph=None)
            | Q(checks__look_ahead__is_beyond_rounding=True)
            | Q(passes_differ=True)
        )
        return self.filter(Q(state__in=Run.WITHOUT_RESULT) | Q(is_excluded, state=Run.State.FINISHED))

    def version(self) -> str:
        """Return a word that differs after any change of these runs, for ETags."""
        total = self.order_by().aggregate(count=Count("pk"), revisions=Sum("revision"))
        return f"{total['count']}.{total['revisions'] or 0}"


class Run(models.Model):
    """One training of an entry with one seed on one track, and its result."""

    class State(models.TextChoices):
        WAITING = "waiting"  # for approval
        QUEUED = "queued"
        TRAINING = "training"
        PAUSED = "paused"  # lost its node; continues from its last checkpoint
        SCORING = "scoring"
        FINISHED = "finished"
        FAILED = "failed"
        CANCELLED = "cancelled"
        STOPPED = "stopped"  # behind the baseline, without a chance to end above it by enough

    WITHOUT_RESULT = (State.FAILED, State.CANCELLED, State.STOPPED)
    LIVE = (State.TRAINING, State.PAUSED, State.SCORING)
    NOT_STARTED = (State.WAITING, State.QUEUED)
    UNFINISHED = (*NOT_STARTED, *LIVE)

    class Trust(models.TextChoices):
        PROVISIONAL = "provisional"  # nothing but the node's own word
        SCORED = "scored"  # by a trusted node
        REPLICATED = "replicated"
        RECORD = "record"
        DISPUTED = "disputed"

    class Purpose(models.TextChoices):
        NIGHTLY = "nightly"
        MONTHLY = "monthly"  # one of the month's best entries, with a larger budget
        ENTRY = "entry"
        LADDER = "ladder"  # a seed of the baseline
        CONFIRMATION = "confirmation"  # of a record candidate: server's seed, unrelated trusted node
        REWIND = "rewind"  # continues from an earlier checkpoint of another run; no result of its own
        FINETUNE = "finetune"  # of a release of another run

    NOT_COMPARED = (Purpose.REWIND, Purpose.FINETUNE)
    """They start from weights of their own, so the board does not compare them."""

    entry = models.ForeignKey(Entry, on_delete=models.PROTECT, related_name="runs")
    track = models.ForeignKey(Track, on_delete=models.PROTECT, related_name="runs")
    season = models.ForeignKey(Season, on_delete=models.PROTECT, related_name="runs")
    purpose = models.CharField(max_length=12, choices=Purpose.choices, default=Purpose.ENTRY)
    seed = models.BigIntegerField()
    budget = models.CharField(max_length=40)
    state = models.CharField(max_length=10, choices=State.choices, default=State.WAITING, db_index=True)
    reason = models.CharField(max_length=500, blank=True)
    cause = models.CharField(
        max_length=16,
        blank=True,
        help_text="Cause of a failure: `model` (it counts) or `infrastructure` (the seed may run again).",
    )
    counts = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Whether its end used up an attempt of its entry: then only a maintainer starts another.",
    )
    trust = models.CharField(max_length=12, choices=Trust.choices, default=Trust.PROVISIONAL)
    job = models.OneToOneField(Job, null=True, blank=True, on_delete=models.SET_NULL, related_name="run")
    score_job = models.OneToOneField(Job, null=True, blank=True, on_delete=models.SET_NULL, related_name="scored_run")
    checkpoint = models.ForeignKey(
        Checkpoint,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        help_text="Final checkpoint: the scored weights.",
    )
    config = models.JSONField(default=dict, blank=True, help_text="Resolved configuration from the node (`run.json`).")
    start_run = models.ForeignKey(
        "self",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        help_text="Run whose weights it starts from. Null: from scratch.",
    )
    start_checkpoint = models.ForeignKey(
        Checkpoint,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        help_text="Checkpoint of `start_run`. Null: its final one.",
    )
    release = models.ForeignKey(
        "Publication",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="finetunes",
        help_text="Release of `start_run` that it fine-tunes, on a track that follows another one.",
    )
    graph = models.ForeignKey(
        TracedGraph,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="runs",
        help_text="Trained instead of the entry's Python.",
    )
    node_name = models.CharField(max_length=80, blank=True)
    node_class = models.CharField(max_length=120, blank=True)
    revision = models.BigIntegerField(
        default=0, help_text="Increases with every change of the row, its curve or its samples."
    )

    # How far it is, as the training process says (advisory).
    step = models.BigIntegerField(default=0)
    fraction = models.FloatField(default=0, help_text="Used fraction of the budget, 0 to 1.")
    tokens = models.BigIntegerField(default=0)
    seconds = models.FloatField(default=0, help_text="Training seconds charged so far.")
    loss = models.FloatField(null=True, blank=True)

    # The last comparison with a ladder run of the same seed, at a part of the budget (`schedule.early_stops`).
    look_fraction = models.FloatField(null=True, blank=True)
    look_behind = models.FloatField(null=True, blank=True, help_text="Share of its compute that it lost there.")
    look_error = models.FloatField(null=True, blank=True, help_text="Standard error of that as a forecast of its end.")
    is_behind = models.BooleanField(
        default=False, db_default=False, help_text="Whether that leaves it no chance, so that it stops."
    )
    goes_on = models.BooleanField(
        default=False, db_default=False, help_text="Whether a maintainer let it go on: it is not compared again."
    )

    # The verdict of the trusted scorer.
    bits_per_byte = models.FloatField(null=True, blank=True)
    bits_per_byte_stderr = models.FloatField(null=True, blank=True)
    parameters = models.BigIntegerField(null=True, blank=True)
    parameters_embedding = models.BigIntegerField(null=True, blank=True, help_text="Parameters in embedding tables.")
    train_flops = models.FloatField(null=True, blank=True)
    train_seconds = models.FloatField(null=True, blank=True)
    scoring_flops_per_token = models.FloatField(null=True, blank=True)
    checks = models.JSONField(default=dict, blank=True, help_text="Look-ahead correction and untrained score.")
    passes_differ = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Whether its training graph predicts otherwise than its evaluation graph, beyond random numbers.",
    )
    suite_seconds = models.JSONField(
        default=dict, blank=True, help_text="Seconds that the scorer spent on each benchmark task."
    )
    suite_missing = models.JSONField(
        default=list, blank=True, help_text="lm-eval tasks whose data the scoring node lacked."
    )

    # The node's speed beside this training, by the site's own probe.
    probe_speed = models.FloatField(
        null=True,
        blank=True,
        help_text="Tokens/s of the probe's model by the site's own probe: geometric mean of before and after.",
    )
    kappa = models.FloatField(
        null=True,
        blank=True,
        help_text="`probe_speed` relative to the median of its node class in the season, when the training ended.",
    )
    drift = models.FloatField(
        null=True, blank=True, help_text="Relative change of the node's speed during the training."
    )
    seconds_void = models.CharField(
        max_length=300, blank=True, help_text="Why its seconds do not count. Empty if they count."
    )

    created_at = models.DateTimeField(default=timezone.now)
    started_at = models.DateTimeField(null=True, blank=True)
    trained_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    objects = RunQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at"]
        constraints = [
            models.UniqueConstraint(fields=["entry", "track", "seed", "budget"], name="one_run_per_entry_and_seed"),
            models.UniqueConstraint(fields=["track", "release"], name="one_run_per_release"),
            models.CheckConstraint(
                name="only_entries_behind_stop",
                condition=models.Q(is_behind=False)
                | models.Q(purpose="entry", goes_on=False, look_behind__gt=0, look_error__isnull=False)
                & models.Q(look_fraction__isnull=False),
            ),
            models.CheckConstraint(
                name="stopped_runs_are_behind", condition=~models.Q(state="stopped") | models.Q(is_behind=True)
            ),
        ]
        indexes = [
            models.Index(fields=["track", "state", "bits_per_byte"]),
            models.Index(  # all that `rankings.standings` has to read to know that its table is still that of today
                fields=["track", "season", "purpose", "revision", "id"],
                condition=models.Q(state="finished", bits_per_byte__isnull=False),
                name="judged_runs",
            ),
            models.Index(  # the board's last failures
                fields=["track", "-finished_at"],
                condition=models.Q(state__in=["failed", "cancelled", "stopped"]),
                name="failed_runs",
            ),
        ]

    def __str__(self) -> str:
        return f"run {self.pk} of {self.entry.title}, seed {self.seed}"

    def get_absolute_url(self) -> str:
        return reverse("run", args=[self.pk])

    @property
    def is_over(self) -> bool:
        return self.state not in self.UNFINISHED

    @property
    def is_swarm(self) -> bool:
        return self.track.kind == Track.Kind.SWARM

    @property
    def lacks_graph(self) -> bool:
        """Whether it cannot rank, since its track compares graphs and it trained Python."""
        return self.track.is_traced and self.graph_id is None and self.state not in self.NOT_STARTED

    @property
    def part(self) -> float:
        """Return its part of the track's budget: 1, or a rung of the ladder."""
        return self.track.part(self.budget)

    @property
    def is_trial(self) -> bool:
        """Whether it is the smaller first run of an entry."""
        return self.purpose == self.Purpose.ENTRY and self.budget == self.track.trial_budget

    @property
    def expected_seconds(self) -> float:
        return self.track.expected_seconds * self.part

    @property
    def seconds_left(self) -> float | None:
        """Return the training seconds until the budget is used, at the pace so far; None if unknown."""
        if self.state in (self.State.WAITING, self.State.QUEUED):
            return self.expected_seconds
        if self.state not in (self.State.TRAINING, self.State.PAUSED):
            return None
        if self.fraction <= 0 or self.seconds <= 0:
            return self.expected_seconds
        return self.seconds / self.fraction * (1 - self.fraction)

    def describe_look(self) -> str:
        """Return its last comparison with the baseline, such as "at 1/4: 6.1 ± 0.9 % behind."; empty if none."""
        if self.look_fraction is None or self.look_behind is None or self.look_error is None:
            return ""
        return (
            f"at {Fraction(self.look_fraction)}: {100 * self.look_behind:.1f} ± {100 * self.look_error:.1f} % behind."
        )

    def get_run_file(self) -> JobFile | None:
        """Return its `run.json`; None before it is sent."""
        return JobFile.objects.select_related("blob").filter(job=self.job_id, path=RUN_FILE).first()

    def explain_start_refusal(self, checkpoint: Checkpoint | None) -> str:
        """Return why no run can start from this checkpoint of it (None: its final weights); empty if one can."""
        if checkpoint is not None and checkpoint.job_id != self.job_id:
            return f"That is not a checkpoint of run {self.pk}."
        if checkpoint is not None and checkpoint.files_deleted_at is not None:
            return f"The files of that checkpoint of run {self.pk} have been deleted."
        if (checkpoint or self.checkpoint) is None:
            return f"Run {self.pk} has not been trained to its end: name one of its checkpoints."
        if checkpoint is not None and self.is_swarm and checkpoint.pk != self.checkpoint_id:
            return f"Run {self.pk} was trained by a swarm: only its final checkpoint is a whole model."
        if self.get_run_file() is None:
            return f"Run {self.pk} has not sent its {RUN_FILE} yet: no run can start from it."
        return ""

    def get_graph_hash(self) -> str | None:
        """Return the hash of its graph, without a query if `with_entry()` has selected it."""
        if "graph_hash" in vars(self):
            return cast("str | None", vars(self)["graph_hash"])
        return self.graph.hash if self.graph else None

    def live_dict(self) -> LiveDict:
        return build_dict(self, LiveDict, node=self.node_name, seconds_left=self.seconds_left)

    def to_dict(self) -> RunDict:
        """Return the row of a run from `with_entry()`."""
        entry = self.entry
        times = ("created_at", "started_at", "trained_at", "finished_at")
        return build_dict(
            self,
            RunDict,
            **self.live_dict(),
            **{name: getattr(entry, name) for name in ("title", "author", "architecture", "kind", "sha")},
            **{name: at.isoformat() if (at := getattr(self, name)) else None for name in times},
            repository=entry.public_repository,
            track=self.track.slug,
            season=self.season.name,
            graph=self.get_graph_hash(),
            page=self.get_absolute_url(),
        )
