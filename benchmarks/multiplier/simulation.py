"""Check the multiplier's statistics on simulated nights with known true multipliers.

    python -m benchmarks.multiplier.simulation

simulates and rewrites the tables of benchmarks/results/multiplier.md. It takes a minute on one core.
The code under test is the board's own: thousands of ladders are fitted at once along a leading axis.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.multiplier import tables
from benchmarks.multiplier.nights import (
    CHALLENGERS,
    DESIGN,
    PEEKING,
    STRESS,
    measure_coverage,
    measure_coverages,
    measure_false_records,
    measure_false_separations,
)
from trainer.scoring.multiplier.records import LEVEL

RESULTS = Path(__file__).resolve().parents[1] / "results"
TRIALS = 40_000
RECORD_TRIALS = 1_000_000
STRESS_RECORD_TRIALS = 200_000


def main() -> None:
    rng = np.random.default_rng(20260821)
    found = measure_coverages(rng, DESIGN, TRIALS)
    stressed = [(setting, measure_coverage(rng, setting, 1.05, runs, TRIALS)) for setting in STRESS for runs in (1, 3)]
    strained = [measure_false_records(rng, CHALLENGERS[0], STRESS_RECORD_TRIALS, setting=setting) for setting in STRESS]
    rates = [
        (challenger, *(measure_false_records(rng, challenger, RECORD_TRIALS, level) for level in (0.999, LEVEL)))
        for challenger in (*CHALLENGERS, PEEKING)
    ]
    separations = measure_false_separations(rng, 1.05, (1, 3), TRIALS)
    tables.replace_tables(
        RESULTS / "multiplier.md", tables.format_tables(found, stressed, strained, rates, separations, RECORD_TRIALS)
    )


if __name__ == "__main__":
    main()
