"""Simulated nights: ladders, entries and records whose true multipliers are known, fitted thousands at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from trainer.scoring.multiplier.estimates import (
    CONFIDENCE,
    MAX_SLOPE_VARIATION,
    compute_log_ratio,
    estimate_multipliers,
)
from trainer.scoring.multiplier.ladder import Array, Ladder
from trainer.scoring.multiplier.records import LEVEL, RecordCandidate, run_record_test

BATCH = 100_000
"""Nights simulated at once, to bound memory."""

MULTIPLIERS = (1.0, 1.05, 1.2)
RUNS = (1, 2, 3)


def power_law(x: Array) -> Array:
    """Nats per token of a GPT-2-sized baseline x e-folds above the full budget: 1.68 + 1.6 C^-0.08."""
    return 1.68 + 1.6 * np.exp(-0.08 * x)


def small_model(x: Array) -> Array:
    """Nats per token of a model of a million parameters on two CPU cores. It bends more than a parabola."""
    return 3.2 + 0.62 * np.exp(-0.4 * x)


def quadratic(x: Array) -> Array:
    """The power law to second order, which the fitted curve can equal exactly."""
    return 3.28 - 0.128 * x + 0.00512 * x * x


def sample_normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.standard_normal(shape)


def sample_heavy_tailed(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Student's t with four degrees of freedom, scaled to variance 1: noise with outliers."""
    return rng.standard_t(4, shape) / math.sqrt(2)


@dataclass(frozen=True)
class Setting:
    """A track: its ladder, the true curve and the noise of one run."""

    name: str
    rungs: tuple[tuple[float, int], ...] = ((1 / 8, 3), (1 / 4, 3), (1 / 2, 3), (1, 10), (2, 3))
    """(compute in full budgets, seeds)."""
    sigma: float = 0.0013
    """Nats."""
    curve: Callable[[Array], Array] = quadratic
    noise: Callable[[np.random.Generator, tuple[int, ...]], Array] = sample_normal
    growth: float = 0.0
    """Relative growth of sigma when compute falls by a factor of e."""
    compute: Array = field(init=False)

    def __post_init__(self) -> None:
        compute = np.concatenate([np.full(seeds, at, dtype=float) for at, seeds in self.rungs])
        object.__setattr__(self, "compute", compute)

    def simulate_ladders(self, rng: np.random.Generator, trials: int) -> tuple[Ladder, Array]:
        """Return fitted ladders and the losses they were fitted to [trials, n]."""
        x = np.log(self.compute)
        noise = self.sigma * (1 + self.growth * np.maximum(-x, 0)) * self.noise(rng, (trials, len(x)))
        loss = self.curve(x) + noise
        return Ladder.fit(self.compute, loss, 1.0), loss

    def simulate_entry(
        self, rng: np.random.Generator, trials: int, multiplier: float, runs: int, compute: float = 1.0
    ) -> RecordCandidate:
        """Return an entry with this true multiplier and number of runs."""
        truth = self.curve(np.asarray(math.log(compute * multiplier)))
        return RecordCandidate(truth + self.sigma * self.noise(rng, (trials, runs)).mean(axis=-1), compute, runs)


DESIGN = Setting("the design's ladder")
FIVE_TIMES_THREE = tuple((2.0**k, 3) for k in range(-3, 2))
STRESS = (
    replace(DESIGN, name="the true curve is a power law", curve=power_law),
    replace(DESIGN, name="heavy-tailed noise (t with 4 degrees of freedom)", noise=sample_heavy_tailed),
    replace(DESIGN, name="noise grows by 20 % per e-fold below full budget", growth=0.2),
    Setting("no 2x rung: extrapolated", rungs=DESIGN.rungs[:-1]),
    Setting("3 seeds at each of 5 rungs", rungs=FIVE_TIMES_THREE),
    Setting("2 seeds at each of 3 rungs", rungs=((1 / 4, 2), (1 / 2, 2), (1, 2))),
    Setting("2 seeds at each of 2 rungs: a straight line", rungs=((1 / 2, 2), (1, 2))),
    Setting("3 seeds at each of 5 rungs, 10 times the noise", rungs=FIVE_TIMES_THREE, sigma=0.013),
    Setting("a small model, bending curve, 10 full-budget runs", sigma=0.009, curve=small_model),
    Setting("the same, a third of the noise", sigma=0.003, curve=small_model),
    Setting("a small model, 3 seeds at each of 5 rungs", rungs=FIVE_TIMES_THREE, sigma=0.009, curve=small_model),
    Setting("the same, a third of the noise", rungs=FIVE_TIMES_THREE, sigma=0.003, curve=small_model),
)


def split_trials(trials: int) -> Iterator[int]:
    for done in range(0, trials, BATCH):
        yield min(BATCH, trials - done)


@dataclass(frozen=True)
class Coverage:
    """Share of intervals that contain the true multiplier. Trials without an interval do not count."""

    multiplier: float
    runs: int
    rate: float
    half_width: float
    """Median over nights, as a share of the multiplier."""
    resolved: float
    """Share of nights with an interval; the others read "not resolvable"."""
    trials: int

    @property
    def error(self) -> float:
        """Standard error of the rate."""
        return math.sqrt(self.rate * (1 - self.rate) / max(1.0, self.trials * self.resolved))


def measure_coverage(rng: np.random.Generator, setting: Setting, multiplier: float, runs: int, trials: int) -> Coverage:
    held, widths, resolved = 0, [], 0
    for size in split_trials(trials):
        ladder, _ = setting.simulate_ladders(rng, size)
        reading = estimate_multipliers(ladder, setting.simulate_entry(rng, size, multiplier, runs).loss, 1.0, runs)
        low, high = reading.interval(ladder)
        sure = reading.slope_variation <= MAX_SLOPE_VARIATION
        held += int(np.sum(sure & (low <= multiplier) & (multiplier <= high)))
        resolved += int(np.sum(sure))
        widths.append(np.sqrt(high[sure] / low[sure]) - 1)
    return Coverage(
        multiplier, runs, held / max(1, resolved), float(np.median(np.concatenate(widths))), resolved / trials, trials
    )


def measure_coverages(rng: np.random.Generator, setting: Setting, trials: int) -> list[Coverage]:
    return [measure_coverage(rng, setting, multiplier, runs, trials) for multiplier in MULTIPLIERS for runs in RUNS]


@dataclass(frozen=True)
class Challenger:
    """An entry that is no better than the record, so that each of its records is false."""

    name: str
    multiplier: float
    """True multiplier of the challenger and of the record."""
    runs: int
    against: str
    """The record: "nothing" (none yet), "baseline" (its full-budget runs) or "record" (3 other runs)."""
    compute: float = 1.0
    """Compute of the challenger. The record used the full budget."""
    looks: int = 1
    """Number of runs after each of which the entry may claim the record. More than 1 is against the rules."""


CHALLENGERS = (
    Challenger("a copy of the baseline, 3 runs, no record yet", 1.0, 3, "nothing"),
    Challenger("a copy of the baseline, 3 runs, the baseline holds the record", 1.0, 3, "baseline"),
    Challenger("a copy of a 1.05 record, 1 run", 1.05, 1, "record"),
    Challenger("a copy of a 1.05 record, 3 runs", 1.05, 3, "record"),
    Challenger("a copy of a 1.2 record, 3 runs", 1.2, 3, "record"),
    Challenger("equal to a 1.2 record at 1/1.2 of its compute, 3 runs", 1.2, 3, "record", compute=1 / 1.2),
    Challenger("equal to a 1.2 record at 1.2 times its compute, 3 runs", 1.2, 3, "record", compute=1.2),
)
PEEKING = Challenger("against the rules: claims after any of 6 runs, no record yet", 1.0, 6, "nothing", looks=6)


def measure_false_records(
    rng: np.random.Generator, challenger: Challenger, trials: int, level: float = LEVEL, setting: Setting = DESIGN
) -> float:
    """Return how often an entry that is no better becomes a record."""
    won = 0
    for size in split_trials(trials):
        ladder, losses = setting.simulate_ladders(rng, size)
        record = build_record(rng, challenger, size, losses, setting)
        if challenger.looks == 1:
            new = setting.simulate_entry(rng, size, challenger.multiplier, challenger.runs, challenger.compute)
            won += int(np.sum(run_record_test(ladder, new, record, level).is_record))
            continue
        runs = [setting.simulate_entry(rng, size, challenger.multiplier, 1).loss for _ in range(challenger.looks)]
        looks = [RecordCandidate(np.mean(runs[:n], axis=0), 1.0, n) for n in range(1, challenger.looks + 1)]
        won += int(np.sum(np.any([run_record_test(ladder, look, record, level).is_record for look in looks], axis=0)))
    return won / trials


def build_record(
    rng: np.random.Generator, challenger: Challenger, trials: int, losses: Array, setting: Setting
) -> RecordCandidate | None:
    if challenger.against == "nothing":
        return None
    if challenger.against == "record":
        return setting.simulate_entry(rng, trials, challenger.multiplier, 3)
    full = setting.compute == 1.0
    return RecordCandidate(losses[:, full].mean(axis=-1), 1.0, int(full.sum()))


def measure_false_separations(rng: np.random.Generator, multiplier: float, runs: tuple[int, int], trials: int) -> float:
    """Return how often two equal entries are not shown as tied."""
    apart = 0
    for size in split_trials(trials):
        ladder, _ = DESIGN.simulate_ladders(rng, size)
        one, other = (
            estimate_multipliers(
                ladder, DESIGN.simulate_entry(rng, size, multiplier, count, compute).loss, compute, count
            )
            for count, compute in zip(runs, (1.0, 0.8), strict=True)
        )
        gap, error = compute_log_ratio(ladder, one, other)
        apart += int(np.sum(np.abs(gap) > ladder.quantile((1 + CONFIDENCE) / 2) * error))
    return apart / trials
