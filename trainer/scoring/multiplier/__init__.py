"""The compute multiplier: how much compute the baseline needs for an entry's loss, over what the entry used.

`compare_entries(results, baseline)` is the entry point; `docs/multiplier.md` explains the numbers and how they were
checked. numpy and scipy only: the site imports this.
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
