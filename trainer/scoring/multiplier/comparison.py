"""Comparison of all entries of one track: multipliers, verdicts, ties, and the seeds that would resolve them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, TypedDict

import numpy as np

from trainer.scoring.multiplier.estimates import (
    CONFIDENCE,
    MAX_SLOPE_VARIATION,
    MultiplierEstimates,
    compute_log_ratio,
    count_seeds_against_baseline,
    count_seeds_between,
    estimate_multipliers,
)
from trainer.scoring.multiplier.ladder import Array, Ladder, compute_pooled_deviation
from trainer.scoring.multiplier.records import RecordCandidate, RecordTest, run_record_test
from trainer.scoring.multiplier.results import Axis, ResultsError, RunResult
from trainer.scoring.multiplier.samples import RungSample, find_most_repeated_compute, find_nearest_rung, group_by_rung

SCATTER_LEVEL = 0.0001
"""An entry whose runs scatter more than the baseline's, with a p-value below this, gets no interval. Strict, since it
is for gross cases: three runs with four times the noise."""
MAX_BUDGET_FACTOR = 1000.0
"""A full budget this many times below or above all runs of the baseline is in the wrong unit."""


class MultiplierVerdict(StrEnum):
    """The verdict on an entry. The values are stable, so that other programs may compare them."""

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
    def is_resolved(self) -> bool:
        """Whether there is an interval."""
        return self in {
            MultiplierVerdict.BASELINE,
            MultiplierVerdict.BETTER,
            MultiplierVerdict.WORSE,
            MultiplierVerdict.TIED,
        }

    @property
    def has_multiplier(self) -> bool:
        """Whether there is at least a point estimate; without an interval it is only indicative."""
        return self.is_resolved or self in {
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


@dataclass(frozen=True, kw_only=True)
class EntryMultiplier:
    """One entry's row."""

    entry: str
    cm: float | None = None  # None if it cannot be estimated
    low: float | None = None  # 95 % interval. None if the noise is unknown.
    high: float | None = None
    runs: int = 0  # number of runs used: those at the entry's rung nearest the full budget, one for each seed
    verdict: MultiplierVerdict
    tied_with: tuple[str, ...] = ()  # entries whose difference is not significant, best first
    seeds_needed: int | None = None
    """More runs until it differs from the baseline; after that, more runs of it and of another entry until one of its
    ties is resolved. 0: no open tie. None: more seeds will not resolve it, or the number is unknown."""
    extrapolated: bool = False  # the baseline needs more compute than its largest rung, or less than its smallest
    rank: int | None = None  # one more than the number of significantly better entries; entries may share a rank
    loss: float | None = None  # mean over the runs, bits per byte
    compute: float | None = None  # geometric mean over the runs, on the axis of the comparison
    variance: float = 0.0  # of the mean look-ahead correction

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
    """Ratio of two multipliers: compute that the second entry needs for the first one's loss, over the first one's."""

    cm: float
    low: float  # 95 % interval. The two are tied if it contains 1.
    high: float


def have_intervals(one: EntryMultiplier, two: EntryMultiplier) -> bool:
    return None not in (one.cm, one.low, one.high, two.cm, two.low)


@dataclass(frozen=True)
class TrackComparison:
    """A track's entries, compared on one axis."""

    baseline: str
    axis: Axis
    ladder: Ladder
    entries: tuple[EntryMultiplier, ...]  # largest multiplier first; those without an interval last

    def __getitem__(self, entry: str) -> EntryMultiplier:
        """Raise `ResultsError` for an entry without runs."""
        if entry not in self.by_name:
            raise unknown_entry_error(entry, self.by_name)
        return self.by_name[entry]

    @cached_property
    def by_name(self) -> dict[str, EntryMultiplier]:
        return {estimate.entry: estimate for estimate in self.entries}

    def run_record_test(self, entry: str, record: str | None = None) -> RecordTest:
        """Test an entry against the baseline and the record, if there is one. Pass confirmation runs only."""
        return run_record_test(
            self.ladder, self.get_record_candidate(entry), None if record is None else self.get_record_candidate(record)
        )

    def ratio(self, entry: str, other: str) -> MultiplierRatio | None:
        """Compare two entries with the rule for ties; None if one of them has no interval."""
        return self.ratios([(entry, other)])[0]

    def ratios(self, pairs: Sequence[tuple[str, str]]) -> list[MultiplierRatio | None]:
        """Compare many pairs at once."""
        rows = [(self[entry], self[other]) for entry, other in pairs]
        # Pairs with the baseline reuse its intervals; all others are estimated together.
        others = [i for i, pair in enumerate(pairs) if self.baseline not in pair and have_intervals(*rows[i])]
        estimates = dict(zip(others, self._estimate_ratios([rows[i] for i in others]), strict=True))
        return [estimates[i] if i in estimates else self._ratio_to_baseline(*row) for i, row in enumerate(rows)]

    def _ratio_to_baseline(self, one: EntryMultiplier, two: EntryMultiplier) -> MultiplierRatio | None:
        """Return the ratio if one of the two is the baseline; None if one has no interval."""
        if one.cm is None or one.low is None or one.high is None or two.cm is None or two.low is None:
            return None
        if two.entry == self.baseline:
            return MultiplierRatio(one.cm, one.low, one.high)
        return None if two.high is None else MultiplierRatio(1 / two.cm, 1 / two.high, 1 / two.low)

    def _estimate_ratios(self, rows: Sequence[tuple[EntryMultiplier, EntryMultiplier]]) -> list[MultiplierRatio]:
        if not rows:
            return []
        columns = (
            [[getattr(row, name) for row in side] for side in zip(*rows, strict=True)]
            for name in ("loss", "compute", "runs", "variance")
        )
        both = estimate_multipliers(self.ladder, *(np.array(column, float) for column in columns))  # [2, pairs]
        gap, error = compute_log_ratio(self.ladder, both[0], both[1])
        width = self.ladder.quantile((1 + CONFIDENCE) / 2) * error
        return [MultiplierRatio(*ends) for ends in np.exp([gap, gap - width, gap + width]).T.tolist()]

    def get_record_candidate(self, entry: str) -> RecordCandidate:
        row = self[entry]
        if row.low is None or row.loss is None or row.compute is None:
            return RecordCandidate(np.asarray(np.nan), self.ladder.full, 1)
        return RecordCandidate(np.asarray(row.loss), row.compute, row.runs, row.variance)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON: finite numbers of ten digits, or null."""
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
    """Compare all entries with the baseline. Raise `ResultsError`.

    `full`: the track's budget; by default the rung of the baseline with most runs (the largest of equals). It selects
    the rung of entries with several, and where the ladder's slope is reported. A multiplier does not depend on it.
    """
    results = list(results)
    names = sorted({result.entry for result in results})
    if baseline not in names:
        raise unknown_entry_error(baseline, names)
    runs_by_entry: dict[str, list[RunResult]] = defaultdict(list)
    for result in results:
        runs_by_entry[result.entry].append(result)
    samples = {name: group_by_rung(runs_by_entry[name], axis) for name in names}
    if not samples[baseline]:
        raise ResultsError(f"No run of the baseline {baseline!r} has its {axis}.")
    ladder = fit_ladder(samples[baseline], full)
    full = ladder.full
    chosen = {name: find_nearest_rung(rungs, full) for name, rungs in samples.items() if rungs}
    rows = estimate_entries(ladder, baseline, chosen)
    rows += [EntryMultiplier(entry=name, verdict=MultiplierVerdict.VOID) for name in names if name not in chosen]
    return TrackComparison(baseline, axis, ladder, tuple(sorted(rows, key=sort_key)))


def unknown_entry_error(entry: str, names: Iterable[str]) -> ResultsError:
    known = sorted(names)
    listed = ", ".join(known[:8]) + (f" and {len(known) - 8} more" if len(known) > 8 else "")
    return ResultsError(f"No run is of {entry!r}. Entries: {listed}.")


def fit_ladder(samples: Sequence[RungSample], full: float | None) -> Ladder:
    """Fit the baseline's ladder. Raise `ResultsError` for a full budget in other units than the runs."""
    compute, loss = (np.concatenate(parts) for parts in zip(*((s.compute, s.loss) for s in samples), strict=True))
    full = find_most_repeated_compute(samples) if full is None else full
    if not compute.min() / MAX_BUDGET_FACTOR < full < compute.max() * MAX_BUDGET_FACTOR:
        reach = f"{compute.min():.3g} to {compute.max():.3g}"
        raise ResultsError(f"A full budget of {full:.3g} is far from all runs of the baseline ({reach}).")
    return Ladder.fit(compute, loss, full)


def estimate_entries(ladder: Ladder, baseline: str, samples: dict[str, RungSample]) -> list[EntryMultiplier]:
    """Return a row for each sample, with ties among all entries that have an interval."""
    names = list(samples)
    loss = np.array([sample.mean_loss for sample in samples.values()])
    compute = np.array([sample.mean_compute for sample in samples.values()])
    variance = np.array([sample.mean_variance for sample in samples.values()])
    runs = [len(sample.loss) for sample in samples.values()]
    estimates = estimate_multipliers(ladder, loss, compute, runs, variance)
    low, high = estimates.interval(ladder)
    verdicts = [decide_verdict(ladder, estimates[i], samples[name], name == baseline) for i, name in enumerate(names)]
    resolved = [i for i, verdict in enumerate(verdicts) if verdict.is_resolved]
    ties, ranks = find_ties(ladder, estimates, resolved, names.index(baseline), (low <= 1) & (high >= 1))
    return [
        EntryMultiplier(
            entry=name,
            cm=float(np.exp(estimates.log_multiplier[i])) if verdicts[i].has_multiplier else None,
            low=float(low[i]) if i in ties else None,
            high=float(high[i]) if i in ties else None,
            runs=int(estimates.runs[i]),
            verdict=verdicts[i],
            tied_with=tuple(names[other] for other in ties.get(i, ())),
            seeds_needed=count_seeds_needed(ladder, estimates, i, ties[i], verdicts[i]) if i in ties else None,
            extrapolated=bool(np.isfinite(estimates.x[i]) and not ladder.is_inside(estimates.x[i])),
            rank=ranks.get(i),
            loss=float(loss[i]),
            compute=float(compute[i]),
            variance=float(variance[i]),
        )
        for i, name in enumerate(names)
    ]


def decide_verdict(
    ladder: Ladder, estimates: MultiplierEstimates, sample: RungSample, is_baseline: bool
) -> MultiplierVerdict:
    """Return the verdict on one entry. Reasons for a missing interval are ordered by how fundamental they are."""
    if ladder.degree == 0:
        return MultiplierVerdict.ONE_RUNG
    if not ladder.is_falling:
        return MultiplierVerdict.NOT_FALLING
    if not np.isfinite(estimates.x):
        return MultiplierVerdict.OFF_THE_CURVE
    if not ladder.freedom:
        return MultiplierVerdict.NO_REPEATS
    if not ladder.has_noise:
        return MultiplierVerdict.NO_NOISE
    if not estimates.slope_variation <= MAX_SLOPE_VARIATION:
        return MultiplierVerdict.SLOPE
    if is_baseline:
        return MultiplierVerdict.BASELINE
    if has_excess_scatter(ladder, sample):
        return MultiplierVerdict.SCATTER
    low, high = estimates.interval(ladder)
    if low > 1:
        return MultiplierVerdict.BETTER
    return MultiplierVerdict.WORSE if high < 1 else MultiplierVerdict.TIED


def has_excess_scatter(ladder: Ladder, sample: RungSample) -> bool:
    """Return whether an entry's replicates contradict the assumption of all intervals: the baseline's sigma."""
    if len(sample.loss) < 2:
        return False
    from scipy.special import fdtrc  # here, because each process of the site imports this module

    residual = sample.loss - ladder.loss_at(np.log(sample.compute / ladder.full))
    deviation = float(compute_pooled_deviation(residual, np.zeros(len(residual), dtype=np.intp), 1))
    ratio = (deviation / float(ladder.sigma)) ** 2
    return bool(fdtrc(len(residual) - 1, ladder.freedom, ratio) < SCATTER_LEVEL)


def find_ties(
    ladder: Ladder, estimates: MultiplierEstimates, resolved: Sequence[int], baseline: int, includes_one: Array
) -> tuple[dict[int, list[int]], dict[int, int]]:
    """Return for each resolved entry those it is tied with, best first, and its rank.

    Two entries are tied if the 95 % interval of their difference contains 0. Ties with the
    baseline follow from the printed interval, so that no row contradicts its own verdict.
    """
    chosen = estimates[list(resolved)]
    gap, error = compute_log_ratio(ladder, chosen[:, None], chosen[None, :])
    is_different = np.abs(gap) > ladder.quantile((1 + CONFIDENCE) / 2) * error
    order = np.argsort(-chosen.log_multiplier, kind="stable")
    if baseline in resolved:
        row = resolved.index(baseline)
        is_different[row, :] = is_different[:, row] = ~includes_one[list(resolved)]
        gap[:, row], gap[row, :] = chosen.log_multiplier, -chosen.log_multiplier
        is_different[row, row] = False
    tied = [order[~is_different[i, order]].tolist() for i in range(len(resolved))]
    ties = {one: [resolved[j] for j in tied[i] if j != i] for i, one in enumerate(resolved)}
    ranks = {one: 1 + int(np.sum(is_different[i] & (gap[i] < 0))) for i, one in enumerate(resolved)}
    return ties, ranks


def count_seeds_needed(
    ladder: Ladder, estimates: MultiplierEstimates, one: int, ties: Sequence[int], verdict: MultiplierVerdict
) -> int | None:
    if verdict is MultiplierVerdict.TIED:
        return count_seeds_against_baseline(ladder, estimates[one])
    if verdict is MultiplierVerdict.BASELINE or not ties:
        return 0
    return count_seeds_between(ladder, estimates[one], estimates[list(ties)])


def sort_key(row: EntryMultiplier) -> tuple[bool, bool, float, str]:
    return row.low is None, row.cm is None, -(row.cm or 0.0), row.entry


def round_or_none(value: float | None) -> float | None:
    """Round to ten significant digits, which do not depend on the machine's linear algebra."""
    return float(f"{value:.10g}") if value is not None and math.isfinite(value) else None
