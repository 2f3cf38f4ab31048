"""The compute multiplier: how much compute the baseline needs for an entry's loss, over what the entry used.

`compare_entries(results, baseline)` is the entry point. `docs/explanation/multiplier.md` explains the numbers and
how they were checked. This package uses numpy and scipy only, because the site imports it.
"""

from __future__ import annotations

from trainer.scoring.multiplier.comparison import (
    EntryMultiplier,
    MultiplierRatio,
    MultiplierVerdict,
    TrackComparison,
    compare_entries,
)
from trainer.scoring.multiplier.ladder import Ladder
from trainer.scoring.multiplier.results import AXES, Axis, ResultsError, RunResult, load_results, parse_results

__all__ = [
    "AXES",
    "Axis",
    "EntryMultiplier",
    "Ladder",
    "MultiplierRatio",
    "MultiplierVerdict",
    "ResultsError",
    "RunResult",
    "TrackComparison",
    "compare_entries",
    "load_results",
    "parse_results",
]
