"""All entries of one track beside each other: multipliers, verdicts, ties, and the seeds that would settle them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TypedDict

import numpy as np
from scipy.special import fdtrc

from trainer.scoring.multiplier.estimates import (
    CONFIDENCE,
    MAX_SLOPE_VARIATION,
    MultiplierEstimates,
    count_seeds_against_baseline,
    count_seeds_between,
    estimate_multipliers,
    log_multiplier_difference,
)
from trainer.scoring.multiplier.ladder import Array, Ladder, pooled_deviation
from trainer.scoring.multiplier.records import RecordCandidate, RecordTest, run_record_test
from trainer.scoring.multiplier.results import Axis, ResultsError, RunResult
from trainer.scoring.multiplier.samples import RungSample, find_most_repeated_compute, find_nearest_rung, group_by_rung

SCATTER_LEVEL = 0.0001
"""An entry whose runs scatter so much more than the baseline's that chance does it less often than this loses its
interval. Strict, since it is for gross cases: three runs with four times the noise."""


MAX_BUDGET_FACTOR = 1000.0
"""A full budget this many times off all of the baseline's runs is a mistake of units."""


class MultiplierVerdict(StrEnum):
    """What is known of an entry. These sentences are stable: other programs may compare them."""

    BASELINE = "the baseline"
    BETTER = "better than the baseline"
    WORSE = "worse than the baseline"
    TIED = "tied with the baseline"
    VOID = "not resolvable: no run has its compute on this axis"
    ONE_RUNG = "not resolvable: the baseline has runs at one compute only"
    NOT_FALLING = "not resolvable: the baseline's loss does not fall with compute"
    OFF_THE_CURVE = "not resolvable: the baseline's curve never reaches this loss"
    SLOPE = "not resolvable: the baseline's slope is known to no better than 10 %"
    NO_REPEATS = "not resolvable: the baseline was never repeated at one compute, so its noise is unknown"
    NO_NOISE = "not resolvable: the baseline's repeats are identical, so its noise is unknown"
    SCATTER = "not resolvable: its own runs scatter far more than the baseline's"

    @property
    def resolved(self) -> bool:
        """Whether there is an interval."""
        return self in {
            MultiplierVerdict.BASELINE,
            MultiplierVerdict.BETTER,
            MultiplierVerdict.WORSE,
            MultiplierVerdict.TIED,
        }

    @property
    def has_multiplier(self) -> bool:
        """Whether there is at least a number: without an interval, it is only indicative."""
        return self.resolved or self in {
            MultiplierVerdict.NO_REPEATS,
            MultiplierVerdict.NO_NOISE,
            MultiplierVerdict.SCATTER,
        }


class EntryMultiplierDict(TypedDict):
    entry: str
    cm: float | None
    low: float | None
    high: float | None
    runs: int
    verdict: str
    tied_with: list[str]
    seeds_needed: int | None
    extrapolated: bool


class LadderDict(TypedDict):
    b0: float | None
    slope: float | None
    curvature: float | None
    sigma: float | None


class TrackComparisonDict(TypedDict):
    entries: list[EntryMultiplierDict]
    ladder: LadderDict


@dataclass(frozen=True, kw_only=True)
class EntryMultiplier:
    """One entry's row."""

    entry: str
    cm: float | None = None
    """None where it cannot be read off the ladder at all."""
    low: float | None = None
    """95 % interval. None where the noise is unknown."""
    high: float | None = None
    runs: int = 0
    """How many runs were used: those at the entry's rung nearest the full budget, one for each seed."""
    verdict: MultiplierVerdict
    tied_with: tuple[str, ...] = ()
    """Entries that it cannot be told from, best first."""
    seeds_needed: int | None = None
    """More runs until it is told from the baseline; once it is, more runs of it and of another until one of its ties is
    decided. 0: nothing is open. None: more seeds will not settle it, or nobody can say."""
    extrapolated: bool = False
    """The baseline needs more compute than its largest rung, or less than its smallest: read off beyond the ladder."""
    rank: int | None = None
    """One more than the entries that are surely better: entries may share a rank."""
    loss: float | None = None
    """Mean over the runs, bits per byte."""
    compute: float | None = None
    """Geometric mean over the runs, on the board's axis."""

    def to_dict(self) -> EntryMultiplierDict:
        return {
            "entry": self.entry,
            "cm": round_or_none(self.cm),
            "low": round_or_none(self.low),
            "high": round_or_none(self.high),
            "runs": self.runs,
            "verdict": str(self.verdict),
            "tied_with": list(self.tied_with),
            "seeds_needed": self.seeds_needed,
            "extrapolated": self.extrapolated,
        }


@dataclass(frozen=True)
class MultiplierRatio:
    """One entry's multiplier over another's: what the other needs for the one's loss, over what the one used."""

    cm: float
    low: float
    """95 % interval. Where it holds 1, the two are tied."""
    high: float


def have_intervals(one: EntryMultiplier, two: EntryMultiplier) -> bool:
    return None not in (one.cm, one.low, one.high, two.cm, two.low)


@dataclass(frozen=True)
class TrackComparison:
    """A track's entries, compared on one axis."""

    baseline: str
    axis: Axis
    ladder: Ladder
    entries: tuple[EntryMultiplier, ...]
    """Largest multiplier first; those without an interval last."""

    def __getitem__(self, entry: str) -> EntryMultiplier:
        """Raises `ResultsError` for an entry that has no runs."""
        if entry not in self.by_name:
            raise unknown_entry_error(entry, self.by_name)
        return self.by_name[entry]

    @cached_property
    def by_name(self) -> dict[str, EntryMultiplier]:
        return {estimate.entry: estimate for estimate in self.entries}

    def challenge(self, entry: str, record: str | None = None) -> RecordTest:
        """Judge an entry by the record rule; without a record, over the baseline alone. Runs are taken as they are:
        the caller passes confirmation runs only."""
        return run_record_test(self.ladder, self.standing(entry), None if record is None else self.standing(record))

    def ratio(self, entry: str, other: str) -> MultiplierRatio | None:
        """Compare two entries, as their ties are decided; None where one of them has no interval."""
        return self.ratios([(entry, other)])[0]

    def ratios(self, pairs: Sequence[tuple[str, str]]) -> list[MultiplierRatio | None]:
        """Compare many pairs at once."""
        rows = [(self[entry], self[other]) for entry, other in pairs]
        far = [self.baseline not in pair and have_intervals(*row) for pair, row in zip(pairs, rows, strict=True)]
        off = iter(self._read_off([row for row, is_far in zip(rows, far, strict=True) if is_far]))
        return [next(off) if is_far else self._known(*row) for row, is_far in zip(rows, far, strict=True)]

    def _known(self, one: EntryMultiplier, two: EntryMultiplier) -> MultiplierRatio | None:
        """What needs no reading: one of the two is the baseline, or has no interval."""
        if one.cm is None or one.low is None or one.high is None or two.cm is None or two.low is None:
            return None
        if two.entry == self.baseline:
            return MultiplierRatio(one.cm, one.low, one.high)
        return None if two.high is None else MultiplierRatio(1 / two.cm, 1 / two.high, 1 / two.low)

    def _read_off(self, rows: Sequence[tuple[EntryMultiplier, EntryMultiplier]]) -> list[MultiplierRatio]:
        if not rows:
            return []
        columns = (
            [[getattr(row, name) for row in side] for side in zip(*rows, strict=True)]
            for name in ("loss", "compute", "runs")
        )
        both = estimate_multipliers(self.ladder, *(np.array(column, float) for column in columns))  # [2, pairs]
        gap, error = log_multiplier_difference(self.ladder, both[0], both[1])
        width = self.ladder.quantile((1 + CONFIDENCE) / 2) * error
        return [MultiplierRatio(*ends) for ends in np.exp([gap, gap - width, gap + width]).T.tolist()]

    def standing(self, entry: str) -> RecordCandidate:
        row = self[entry]
        if row.low is None or row.loss is None or row.compute is None:
            return RecordCandidate(np.asarray(np.nan), self.ladder.full, 1)
        return RecordCandidate(np.asarray(row.loss), row.compute, row.runs)

    def to_dict(self) -> TrackComparisonDict:
        """Plain JSON: finite numbers of ten digits, or null."""
        b0, slope, curvature = (float(value) for value in self.ladder.coefficients)
        degree = self.ladder.degree
        return {
            "entries": [estimate.to_dict() for estimate in self.entries],
            "ladder": {
                "b0": round_or_none(b0),
                "slope": round_or_none(slope if degree >= 1 else None),
                "curvature": round_or_none(curvature if degree >= 2 else None),
                "sigma": round_or_none(float(self.ladder.sigma)),
            },
        }


def compare_entries(
    results: Iterable[RunResult], baseline: str, axis: Axis = "flops", full: float | None = None
) -> TrackComparison:
    """Compare all entries with the baseline. `full`: the track's budget; by default the rung of the baseline with most
    runs (the largest of equals). It chooses which runs count where an entry has several rungs, and where the ladder's
    slope is told; a multiplier does not depend on it. Raises `ResultsError`."""
    results = list(results)
    names = sorted({result.entry for result in results})
    if baseline not in names:
        raise unknown_entry_error(baseline, names)
    own: dict[str, list[RunResult]] = {name: [] for name in names}
    for result in results:
        own[result.entry].append(result)
    samples = {name: group_by_rung(found, axis) for name, found in own.items()}
    if not samples[baseline]:
        raise ResultsError(f"No run of the baseline {baseline!r} has its {axis}.")
    ladder = fit_ladder(samples[baseline], full)
    full = ladder.full
    chosen = {name: find_nearest_rung(found, full) for name, found in samples.items() if found}
    rows = estimate_entries(ladder, baseline, chosen)
    rows += [EntryMultiplier(entry=name, verdict=MultiplierVerdict.VOID) for name in names if name not in chosen]
    return TrackComparison(baseline, axis, ladder, tuple(sorted(rows, key=sort_key)))


def unknown_entry_error(entry: str, names: Iterable[str]) -> ResultsError:
    known = sorted(names)
    listed = ", ".join(known[:8]) + (f" and {len(known) - 8} more" if len(known) > 8 else "")
    return ResultsError(f"No run is of {entry!r}. Entries: {listed}.")


def fit_ladder(samples: Sequence[RungSample], full: float | None) -> Ladder:
    """Fit the baseline's ladder. Raises `ResultsError` for a full budget in other units than the runs."""
    compute, loss = (np.concatenate(parts) for parts in zip(*((s.compute, s.loss) for s in samples), strict=True))
    full = find_most_repeated_compute(samples) if full is None else full
    if not compute.min() / MAX_BUDGET_FACTOR < full < compute.max() * MAX_BUDGET_FACTOR:
        reach = f"{compute.min():.3g} to {compute.max():.3g}"
        raise ResultsError(f"A full budget of {full:.3g} is far from all runs of the baseline ({reach}).")
    return Ladder.fit(compute, loss, full)


def estimate_entries(ladder: Ladder, baseline: str, samples: dict[str, RungSample]) -> list[EntryMultiplier]:
    """Return a row for each sample, with ties among all that have an interval."""
    names = list(samples)
    loss = np.array([sample.mean_loss for sample in samples.values()])
    compute = np.array([sample.mean_compute for sample in samples.values()])
    reading = estimate_multipliers(ladder, loss, compute, [len(sample.loss) for sample in samples.values()])
    low, high = reading.interval(ladder)
    verdicts = [decide_verdict(ladder, reading[i], samples[name], name == baseline) for i, name in enumerate(names)]
    resolved = [i for i, verdict in enumerate(verdicts) if verdict.resolved]
    ties, ranks = find_ties(ladder, reading, resolved, names.index(baseline), (low <= 1) & (high >= 1))
    return [
        EntryMultiplier(
            entry=name,
            cm=float(np.exp(reading.log_multiplier[i])) if verdicts[i].has_multiplier else None,
            low=float(low[i]) if i in ties else None,
            high=float(high[i]) if i in ties else None,
            runs=int(reading.runs[i]),
            verdict=verdicts[i],
            tied_with=tuple(names[other] for other in ties.get(i, ())),
            seeds_needed=count_seeds_needed(ladder, reading, i, ties[i], verdicts[i]) if i in ties else None,
            extrapolated=bool(np.isfinite(reading.x[i]) and not ladder.inside(reading.x[i])),
            rank=ranks.get(i),
            loss=float(loss[i]),
            compute=float(compute[i]),
        )
        for i, name in enumerate(names)
    ]


def decide_verdict(
    ladder: Ladder, reading: MultiplierEstimates, sample: RungSample, is_baseline: bool
) -> MultiplierVerdict:
    """Return the verdict on one entry; the deepest reason first where there is no interval."""
    if ladder.degree == 0:
        return MultiplierVerdict.ONE_RUNG
    if not ladder.falls:
        return MultiplierVerdict.NOT_FALLING
    if not np.isfinite(reading.x):
        return MultiplierVerdict.OFF_THE_CURVE
    if not ladder.freedom:
        return MultiplierVerdict.NO_REPEATS
    if not ladder.noisy:
        return MultiplierVerdict.NO_NOISE
    if not reading.doubt <= MAX_SLOPE_VARIATION:
        return MultiplierVerdict.SLOPE
    if is_baseline:
        return MultiplierVerdict.BASELINE
    if has_excess_scatter(ladder, sample):
        return MultiplierVerdict.SCATTER
    low, high = reading.interval(ladder)
    if low > 1:
        return MultiplierVerdict.BETTER
    return MultiplierVerdict.WORSE if high < 1 else MultiplierVerdict.TIED


def has_excess_scatter(ladder: Ladder, sample: RungSample) -> bool:
    """Whether an entry's replicates refute that the baseline's sigma is theirs too, which every interval assumes."""
    if len(sample.loss) < 2:
        return False
    residual = sample.loss - ladder.loss_at(np.log(sample.compute / ladder.full))
    own = float(pooled_deviation(residual, np.zeros(len(residual), dtype=np.intp), 1))
    ratio = (own / float(ladder.sigma)) ** 2
    return bool(fdtrc(len(residual) - 1, ladder.freedom, ratio) < SCATTER_LEVEL)


def find_ties(
    ladder: Ladder, reading: MultiplierEstimates, resolved: Sequence[int], baseline: int, holds_one: Array
) -> tuple[dict[int, list[int]], dict[int, int]]:
    """Return for each resolved entry those it is tied with, best first, and its rank.

    Two entries are tied where the 95 % interval of their difference holds 0. Against the baseline the printed interval
    decides, so that no row contradicts its own verdict.
    """
    some = reading[list(resolved)]
    gap, error = log_multiplier_difference(ladder, some[:, None], some[None, :])
    apart = np.abs(gap) > ladder.quantile((1 + CONFIDENCE) / 2) * error
    order = np.argsort(-some.log_multiplier, kind="stable")
    if baseline in resolved:
        at = resolved.index(baseline)
        apart[at, :] = apart[:, at] = ~holds_one[list(resolved)]
        gap[:, at], gap[at, :] = some.log_multiplier, -some.log_multiplier
        apart[at, at] = False
    level = [order[~apart[i, order]].tolist() for i in range(len(resolved))]
    ties = {one: [resolved[j] for j in level[i] if j != i] for i, one in enumerate(resolved)}
    ranks = {one: 1 + int(np.sum(apart[i] & (gap[i] < 0))) for i, one in enumerate(resolved)}
    return ties, ranks


def count_seeds_needed(
    ladder: Ladder, reading: MultiplierEstimates, one: int, ties: Sequence[int], verdict: MultiplierVerdict
) -> int | None:
    if verdict is MultiplierVerdict.TIED:
        return count_seeds_against_baseline(ladder, reading[one])
    if verdict is MultiplierVerdict.BASELINE or not ties:
        return 0
    return count_seeds_between(ladder, reading[one], reading[list(ties)])


def sort_key(row: EntryMultiplier) -> tuple[bool, bool, float, str]:
    return row.low is None, row.cm is None, -(row.cm or 0.0), row.entry


def round_or_none(value: float | None) -> float | None:
    """Return ten significant digits: fewer than a computer's linear algebra may change, more than anyone needs."""
    return float(f"{value:.10g}") if value is not None and math.isfinite(value) else None
