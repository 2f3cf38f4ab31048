"""Standings: where a track's entries stand, computed by Celery and stored as rows that pages read."""

from __future__ import annotations

from functools import cached_property

from django.db import models
from django.urls import reverse
from typing_extensions import TypedDict

from leaderboard.models.entries import Entry
from leaderboard.models.runs import Run
from leaderboard.models.tracks import Track
from trainer.scoring.multiplier import AXES, EntryMultiplier, MultiplierVerdict
from trainer.scoring.multiplier.futility import ENOUGH

UNDECIDED = models.Q(multiplier_low__lte=1, multiplier_high__gt=ENOUGH)
"""The condition for rows that could still become a gain that counts."""


def get_entry_name(entry_id: int) -> str:
    """Return an entry's name in downloads: unique, and safe in a command line."""
    return f"entry-{entry_id}"


def parse_entry_name(name: str) -> int:
    return int(name.removeprefix("entry-"))


class EstimateDict(TypedDict):
    """An entry in the output of `dailytrain multiplier --json`, with its rank, the axis and the budget on it."""

    entry: str
    cm: float | None
    low: float | None
    high: float | None
    runs: int
    verdict: str
    tied_with: list[str]
    seeds_needed: int | None
    extrapolated: bool
    rank: int | None
    axis: str
    full: float | None


class StandingsTable(models.Model):
    """A track's standings on one axis. Each recomputation replaces them with the rows."""

    track = models.ForeignKey(Track, on_delete=models.CASCADE, related_name="standings_tables")
    axis = models.CharField(max_length=8, choices=[(axis, axis) for axis in AXES])
    version = models.CharField(
        max_length=64, blank=True, help_text="Fingerprint of the runs and the track's rules that it is made from."
    )
    computed_at = models.DateTimeField(null=True)
    budget = models.CharField(max_length=40, blank=True)
    full_budget = models.FloatField(null=True, help_text="The track's budget on this axis.")
    baseline = models.ForeignKey(Entry, null=True, on_delete=models.SET_NULL, related_name="+")
    leader = models.ForeignKey(
        Entry,
        null=True,
        on_delete=models.SET_NULL,
        related_name="+",
        help_text="The record; while there is none, the first compared entry besides the baseline.",
    )
    problem = models.CharField(
        max_length=500, blank=True, help_text="Why there are no multipliers; empty where there are."
    )
    ladder_verdict = models.CharField(max_length=120, blank=True, help_text="Of the baseline.")
    noise_freedom = models.PositiveIntegerField(
        default=0, db_default=0, help_text="Degrees of freedom of the noise of one run, in every interval of the rows."
    )
    ladder_runs = models.PositiveIntegerField(default=0, help_text="Eligible runs of the baseline.")
    rungs_done = models.PositiveIntegerField(
        default=0, help_text="Eligible runs at the ladder's rungs, at most as many of a rung as it asks for."
    )
    rungs_wanted = models.PositiveIntegerField(default=0, help_text="Runs of a full ladder.")
    row_count = models.PositiveIntegerField(default=0)
    architectures = models.JSONField(default=list)
    trust_levels = models.JSONField(default=list)
    empty_columns = models.JSONField(default=list, help_text="Fields of the rows that have no value in any of them.")
    chart_data = models.JSONField(default=dict, help_text="Numbers of the charts, see `rankings.chart_data`.")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["track", "axis"], name="one_standings_table_per_axis")]

    def __str__(self) -> str:
        return f"standings of {self.track} by {self.axis}"

    @classmethod
    def build_empty(cls, track: Track, axis: str) -> StandingsTable:
        """Return an unsaved table for a track whose standings have not been computed."""
        return cls(track=track, axis=axis, budget=track.budget, problem="The standings have not been computed yet.")

    @property
    def command(self) -> str:
        """Return the command that prints these multipliers from the downloaded file."""
        full = "" if self.full_budget is None else f" --full {self.full_budget:.10g}".replace("e+", "e")
        name = get_entry_name(self.baseline_id) if self.baseline_id else "NAME"
        return f"dailytrain multiplier results.json --baseline {name} --axis {self.axis}{full} --json"

    def get_row(self, entry_id: int | None) -> Standing | None:
        if entry_id is None or self.pk is None:
            return None
        return self.rows.select_related("entry").filter(entry=entry_id).first()


LATEST_COMPUTATION = models.Subquery(
    StandingsTable.objects.exclude(computed_at=None).order_by("-computed_at").values("computed_at")[:1]
)
# When standings of any track were last computed; pages and feeds that show standings change then.


class Standing(models.Model):
    """An entry's row: means over its eligible runs with the track's whole budget, and its compute multiplier."""

    table = models.ForeignKey(StandingsTable, on_delete=models.CASCADE, related_name="rows")
    entry = models.ForeignKey(Entry, on_delete=models.CASCADE, related_name="standings")
    position = models.PositiveIntegerField(help_text="In the order of rank, multiplier and loss, from 0.")
    is_baseline = models.BooleanField(default=False)
    is_record = models.BooleanField(default=False, help_text="Its confirmation runs broke the record.")

    rank = models.PositiveIntegerField(null=True, help_text="Tied entries share a rank.")
    multiplier = models.FloatField(null=True)
    multiplier_low = models.FloatField(null=True, help_text="95 % interval.")
    multiplier_high = models.FloatField(null=True)
    verdict = models.CharField(max_length=120, blank=True, help_text="Empty where the entry is not compared.")
    ties = models.JSONField(default=list, help_text="Ids of the entries that it is tied with, best first.")
    tie_count = models.PositiveIntegerField(default=0, help_text="The baseline not counted.")
    tie_titles = models.JSONField(default=list, help_text="Of the first ties, the baseline left out.")
    seeds_needed = models.PositiveIntegerField(null=True)
    is_extrapolated = models.BooleanField(default=False)
    compared_runs = models.PositiveIntegerField(default=0)
    compared_loss = models.FloatField(null=True, help_text="Mean of the compared runs, bits per byte.")
    compared_compute = models.FloatField(null=True, help_text="Geometric mean of the compared runs, on the axis.")

    search_text = models.TextField(help_text="Case-folded title, author, architecture and commit.")
    run_ids = models.JSONField(
        default=list, help_text="Eligible runs with the whole budget, latest first; all scored ones where none is."
    )
    run_count = models.PositiveIntegerField(default=0)
    latest_run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="+")
    finished_at = models.DateTimeField(null=True, help_text="When its latest run was scored.")
    trust = models.CharField(max_length=12, choices=Run.Trust.choices, help_text="The highest of its runs.")
    bits_per_byte = models.FloatField()
    bits_per_byte_stderr = models.FloatField(
        null=True, help_text="Over documents. All runs are scored on the same ones, so more runs do not lessen it."
    )
    benchmark_average = models.FloatField(null=True, help_text="Over the track's lm-eval tasks.")
    parameters = models.BigIntegerField(null=True)
    stored_bytes = models.BigIntegerField(null=True, help_text="This and the next two: of its latest run's graph.")
    constant_bytes = models.BigIntegerField(null=True)
    scoring_flops = models.FloatField(null=True, help_text="FLOPs per scored token.")
    source_bytes = models.BigIntegerField(null=True, help_text="`Entry.source_bytes`.")
    train_flops = models.FloatField(null=True)
    train_seconds = models.FloatField(null=True)
    tokens = models.FloatField(null=True)
    tokens_per_second = models.FloatField(null=True)
    seconds_void = models.CharField(
        max_length=300, blank=True, help_text="Why its time does not count; empty unless that is so of all its runs."
    )

    left_out = models.CharField(max_length=300, blank=True, help_text="Why none of its runs counts. Empty: one does.")

    class Meta:
        ordering = ["position"]
        constraints = [
            models.UniqueConstraint(fields=["table", "entry"], name="one_standing_per_entry"),
            models.UniqueConstraint(fields=["table", "position"], name="one_standing_per_position"),
        ]

    def __str__(self) -> str:
        return f"{self.entry}: {self.bits_per_byte:.4f}"

    @property
    def is_undecided(self) -> bool:
        """Whether `UNDECIDED` is true of it."""
        low, high = self.multiplier_low, self.multiplier_high
        return low is not None and high is not None and low <= 1 and high > ENOUGH

    @property
    def page(self) -> str:
        return reverse("entry", args=[self.entry_id])

    @cached_property
    def estimate(self) -> EntryMultiplier | None:
        """Return the multiplier without its ties; None if the entry is not compared."""
        if not self.verdict:
            return None
        return EntryMultiplier(
            entry=get_entry_name(self.entry_id),
            cm=self.multiplier,
            low=self.multiplier_low,
            high=self.multiplier_high,
            runs=self.compared_runs,
            verdict=MultiplierVerdict(self.verdict),
            seeds_needed=self.seeds_needed,
            extrapolated=self.is_extrapolated,
            rank=self.rank,
            loss=self.compared_loss,
            compute=self.compared_compute,
        )

    def estimate_dict(self, table: StandingsTable) -> EstimateDict | None:
        """Return the multiplier for the JSON API; None if the entry is not compared."""
        if self.estimate is None:
            return None
        return {
            **self.estimate.to_dict(),
            "tied_with": [get_entry_name(entry_id) for entry_id in self.ties],
            "rank": self.rank,
            "axis": table.axis,
            "full": table.full_budget,
        }
