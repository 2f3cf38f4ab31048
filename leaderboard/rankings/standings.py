"""Where a track's entries stand: multipliers with intervals, from the judged runs of its season.

The arithmetic is `trainer.scoring.multiplier`'s, on the very records that anyone can download, so that
`dailytrain multiplier` gives the same digits. Nothing here is stored: the result is cached until a run changes.
"""

from __future__ import annotations

import hashlib
import logging
import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from typing import Any, TypeVar

from django.db import connection
from django.db.models import BigIntegerField, Count, Max, Sum
from django.urls import reverse
from typing_extensions import TypedDict

from leaderboard.models import Run, Track
from leaderboard.rankings.eligible_runs import (
    COLUMNS,
    Judged,
    RecordDict,
    choose,
    compute,
    name_of,
    on_one_clock,
    record,
)
from scheduler.prepared import Later, Prepared
from trainer.accounting.budget import Budget
from trainer.scoring.multiplier import (
    Axis,
    EntryMultiplier,
    ResultsError,
    TrackComparison,
    compare_entries,
    parse_results,
)

KEPT_SECONDS = 600
"""How long a computed table is kept; a change of any run makes another one at once."""
MOST_KEPT = 40
MOST_PREPARED = 10
Made = TypeVar("Made")
logger = logging.getLogger(__name__)
KEPT: dict[str, tuple[float, Standings]] = {}
"""By what went into them, with when each has to go. Of this process: Django's cache would take a table of thousands of
runs apart and put it together again for each page."""
LAST: dict[str, Standings] = {}
"""The latest of each track and axis, under the rules that it was made by."""
MAKING: set[str] = set()
"""What a thread computes just now."""
SLOW_SECONDS = 0.3
"""A page does not wait for a table that takes longer than this."""
VERSION = Prepared(
    lambda: (
        Run.objects.judged_in(Later("track", BigIntegerField()), Later("season", BigIntegerField()))
        .order_by()
        .values_list("track")
        .annotate(count=Count("pk"), last=Max("pk"), revisions=Sum("revision"))
    )
)
"""What is another after any change of a judged run; every page asks it."""


class LeftOutDict(TypedDict):
    run: int
    reason: str


class ResultsDict(TypedDict):
    """A track's file: `dailytrain multiplier FILE --baseline BASELINE --axis AXIS --full FULL` gives `printed`."""

    track: str
    season: str
    baseline: str | None
    axis: str
    full: float | None
    command: str
    printed: dict[str, Any] | None
    """What the command prints with --json. None where there is no multiplier yet; `problem` says why."""
    problem: str
    left_out: list[LeftOutDict]
    runs: list[RecordDict]


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are known and not 0."""
    known = [value for value in values if value]
    return math.fsum(known) / len(known) if known else None


@dataclass(frozen=True, kw_only=True)
class Row:
    """One entry on the board. Its table is kept, so what is worked out of its runs is kept with it."""

    entry: int
    runs: tuple[Judged, ...]
    """Those that had the track's whole budget and count, latest first; all disputed ones where none counts."""
    is_baseline: bool
    estimate: EntryMultiplier | None = None
    """None where the track has no multipliers yet."""

    @property
    def latest(self) -> Judged:
        return self.runs[0]

    @cached_property
    def page(self) -> str:
        return reverse("entry", args=[self.entry])

    @cached_property
    def bits_per_byte(self) -> float:
        return math.fsum(run.bits_per_byte for run in self.runs) / len(self.runs)

    @cached_property
    def stderr(self) -> float | None:
        """Over documents, which all runs are scored on: more runs do not lessen it."""
        known = [run.stderr for run in self.runs if run.stderr is not None]
        return math.fsum(known) / len(known) if known else None

    @cached_property
    def trust(self) -> Run.Trust:
        """The most that any of its runs has."""
        ranks = list(Run.Trust)
        return max((Run.Trust(run.trust) for run in self.runs), key=ranks.index)

    @cached_property
    def seconds(self) -> float | None:
        return mean(run.seconds for run in self.runs)

    @cached_property
    def flops(self) -> float | None:
        return mean(run.flops for run in self.runs)

    @cached_property
    def tokens(self) -> float | None:
        return mean(run.tokens for run in self.runs)

    @cached_property
    def tokens_per_second(self) -> float | None:
        """Over the runs whose seconds count."""
        return mean(run.tokens / run.seconds for run in self.runs if run.seconds)

    @cached_property
    def average(self) -> float | None:
        """Over the track's lm-eval tasks, of the runs that had all of them."""
        found = [run.average for run in self.runs if run.average is not None]
        return math.fsum(found) / len(found) if found else None

    @cached_property
    def voided(self) -> str:
        """Why its time does not count; empty unless that is so of all its runs."""
        reasons = [run.seconds_void for run in self.runs]
        return reasons[0] if all(reasons) else ""


@dataclass(frozen=True, kw_only=True)
class Standings:
    """A track's table on one axis."""

    track: str
    season: str
    budget: str
    seeds: int
    """How many runs the track gives an entry."""
    axis: Axis
    full: float | None
    """The track's budget on this axis."""
    baseline: int | None
    rungs: dict[str, float]
    """Budget of each rung, and which part of the track's it is."""
    wanted: int
    """Runs that a full ladder has."""
    counted: tuple[Judged, ...]
    left_out: tuple[tuple[Judged, str], ...]
    """Judged runs that do not count, and why."""
    rows: tuple[Row, ...]
    board: TrackComparison | None
    problem: str
    """Why there are no multipliers; empty where there are."""
    made_in: float = 0.0
    """Seconds that the computation took."""
    made: dict[object, Any] = field(default_factory=dict, repr=False, compare=False)
    """What pages have made of it; see `once`."""
    outdone: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)
    """Set when it was shown although a run has changed since: the next table is being made."""

    def once(self, name: object, make: Callable[[], Made]) -> Made:
        """Return what is made of this table and nothing else. It is made once and kept with the table: scales, pictures
        and rows that go through thousands of runs."""
        if name not in self.made:
            self.made[name] = make()
        found: Made = self.made[name]
        return found

    def row(self, entry: int) -> Row | None:
        return self.by_entry.get(entry)

    @cached_property
    def by_entry(self) -> dict[int, Row]:
        return {row.entry: row for row in self.rows}

    def title(self, name: str) -> str:
        """Return the title of the entry that downloads call `name`."""
        return self.titles.get(name, name)

    @cached_property
    def titles(self) -> dict[str, str]:
        return {name_of(run.entry): run.title for run in reversed(self.counted)}

    @cached_property
    def by_budget(self) -> dict[tuple[int, str], list[Judged]]:
        """Return the runs that count, by entry and budget."""
        found: dict[tuple[int, str], list[Judged]] = defaultdict(list)
        for run in self.counted:
            found[run.entry, run.budget].append(run)
        return dict(found)

    @cached_property
    def ladder(self) -> tuple[Judged, ...]:
        """The baseline's runs at all rungs, smallest first."""
        own = [run for run in self.counted if run.entry == self.baseline]
        return tuple(sorted(own, key=lambda run: (compute(run, self.axis) or 0, run.seed)))

    @property
    def done(self) -> int:
        """How many runs of the ladder have been judged, at most as many of a rung as it asks for."""
        if not self.rungs:
            return 0
        seeds = self.wanted // len(self.rungs)
        judged = Counter(run.budget for run in self.ladder if run.budget in self.rungs)
        return sum(min(number, seeds) for number in judged.values())

    @property
    def command(self) -> str:
        """What prints these multipliers from the downloaded file."""
        full = "" if self.full is None else f" --full {exact(self.full)}"
        name = name_of(self.baseline) if self.baseline else "NAME"
        return f"dailytrain multiplier results.json --baseline {name} --axis {self.axis}{full} --json"

    def to_dict(self) -> ResultsDict:
        return {
            "track": self.track,
            "season": self.season,
            "baseline": name_of(self.baseline) if self.baseline else None,
            "axis": self.axis,
            "full": self.full,
            "command": self.command,
            "printed": None if self.board is None else dict(self.board.to_dict()),
            "problem": self.problem,
            "left_out": [{"run": run.run, "reason": reason} for run, reason in self.left_out],
            "runs": [record(run) for run in self.counted],
        }


class StandingDict(TypedDict):
    """What `dailytrain multiplier --json` prints of an entry, with its rank, the axis and the budget on it."""

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


def estimate_dict(standings: Standings, entry: int) -> StandingDict | None:
    """Return an entry's multiplier as the JSON API gives it; None where there is none."""
    row = standings.row(entry)
    if row is None or row.estimate is None:
        return None
    return {
        **row.estimate.to_dict(),
        "rank": row.estimate.rank,
        "axis": standings.axis,
        "full": standings.full,
    }


def exact(value: float) -> str:
    """Return the shortest text that reads back as the same number: 1e13, 104.25."""
    return f"{Decimal(repr(value)).normalize():e}".replace("e+", "e") if value >= 1e6 else repr(value)


def of(track: Track, axis: Axis = "flops", *, may_lag: bool = False) -> Standings:
    """Return the track's standings: one query while no run has changed, else two. The track has its season selected.

    `may_lag` is for pages: where a table takes long they show the last one while the next is made. Whatever decides
    something, or is told as of now, waits.
    """
    version = VERSION.tuples(track=track.pk, season=track.season_id)
    rules = (track.season_id, track.season.baseline_id, track.budget, track.ladder, track.seeds, track.confirmations)
    place = hash_of(track.pk, axis, rules)
    key = hash_of(place, version)
    known, last = KEPT.get(key), LAST.get(place)
    if known is not None and known[0] > time.monotonic():
        return known[1]
    if may_lag and last is not None and last.made_in > SLOW_SECONDS:
        if key not in MAKING:
            MAKING.add(key)
            later(lambda: make(track, axis, key, place))
        last.outdone.set()
        return last
    return make(track, axis, key, place)


def prepare() -> None:
    """Make the tables that pages show first, so that nobody has to wait for them in a process that has just started."""
    tracks = Track.objects.select_related("season").order_by("-is_default", "position")
    for track in tracks[:MOST_PREPARED]:
        try:
            of(track)
        except Exception:
            logger.exception("The table of %s could not be made; the first page of it tries again.", track.slug)


def make(track: Track, axis: Axis, key: str, place: str) -> Standings:
    """Compute a table and keep it."""
    began = time.monotonic()
    try:
        rows = Run.objects.judged(track).values_list(*COLUMNS.values())
        found = stand(track, [Judged(**dict(zip(COLUMNS, row, strict=True))) for row in rows], axis)
    finally:
        MAKING.discard(key)
    found = LAST[place] = replace(found, made_in=time.monotonic() - began)
    KEPT[key] = (time.monotonic() + KEPT_SECONDS, found)
    for kept in (KEPT, LAST):
        while len(kept) > MOST_KEPT:
            kept.pop(next(iter(kept)), None)  # the oldest
    return found


def later(work: Callable[[], object]) -> None:
    """Do it in a thread of its own, with a connection of its own."""

    def alone() -> None:
        try:
            work()
        except Exception:
            logger.exception("The standings could not be computed; the next page tries again.")
        finally:
            connection.close()

    threading.Thread(target=alone, name="standings", daemon=True).start()


def hash_of(*facts: object) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def stand(track: Track, judged: Sequence[Judged], axis: Axis = "flops") -> Standings:
    """Compare judged runs with the ladder of the season's baseline. Pure, but for the track's own columns."""
    baseline = track.season.baseline_id
    counted, left_out = choose(judged, baseline, track.confirmations)
    counted = on_one_clock(counted, baseline)
    full = full_budget(track.budget, [run for run in counted if run.entry == baseline], axis)
    board, problem = compared(counted, baseline, axis, full)
    return Standings(
        track=track.slug,
        season=track.season.name,
        budget=track.budget,
        seeds=track.seeds,
        axis=axis,
        full=full,
        baseline=baseline,
        rungs=track.rungs(),
        wanted=len(track.rungs()) * int(track.ladder.get("seeds", 0)),
        counted=tuple(counted),
        left_out=tuple(left_out),
        rows=tuple(rows_of(shown(counted, left_out), track.budget, baseline, board)),
        board=board,
        problem=problem,
    )


def full_budget(text: str, ladder: Sequence[Judged], axis: Axis) -> float | None:
    """Return the track's budget on the axis; what the baseline used of it where it is of another kind, if known."""
    budget = Budget.parse(text)
    if budget.kind == axis:
        return budget.amount
    used = [used for run in ladder if run.budget == text and (used := compute(run, axis))]
    return math.exp(math.fsum(map(math.log, used)) / len(used)) if used else None


def compared(
    runs: Sequence[Judged], baseline: int | None, axis: Axis, full: float | None
) -> tuple[TrackComparison | None, str]:
    """Return the multipliers, or why there are none."""
    if baseline is None:
        return None, "This season has no baseline yet, so there is nothing to compare with."
    if not any(run.entry == baseline for run in runs):
        return None, "The baseline has not arrived yet; multipliers are read off its runs."
    try:
        return compare_entries(parse_results([record(run) for run in runs]), name_of(baseline), axis, full), ""
    except ResultsError as error:
        return None, str(error).replace(repr(name_of(baseline)), "").replace("  ", " ")


def shown(counted: Sequence[Judged], left_out: Sequence[tuple[Judged, str]]) -> list[Judged]:
    """Return the runs that have a row: those that count, and all of an entry that has none of these."""
    there = {(run.entry, run.budget) for run in counted}
    return [*counted, *(run for run, _ in left_out if (run.entry, run.budget) not in there)]


def rows_of(runs: Sequence[Judged], budget: str, baseline: int | None, board: TrackComparison | None) -> list[Row]:
    """Return a row for each entry that ran with the whole budget: by rank, then by multiplier, then by loss."""
    estimates = {} if board is None else {estimate.entry: estimate for estimate in board.entries}
    own: dict[int, list[Judged]] = defaultdict(list)
    for run in runs:
        if run.budget == budget:
            own[run.entry].append(run)
    rows = [
        Row(
            entry=entry,
            runs=tuple(sorted(found, key=lambda run: -run.run)),
            is_baseline=entry == baseline,
            estimate=estimates.get(name_of(entry)),
        )
        for entry, found in own.items()
    ]
    return sorted(rows, key=place)


def place(row: Row) -> tuple[float, float, float]:
    cm = row.estimate.cm if row.estimate else None
    rank = row.estimate.rank if row.estimate else None
    return math.inf if rank is None else rank, -(cm or 0.0), row.bits_per_byte
