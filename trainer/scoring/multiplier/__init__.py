"""The compute multiplier: how much compute the baseline needs for an entry's loss, over what the entry used.

`compare_entries(results, baseline)` is the entry point; `docs/multiplier.md` explains the numbers and how they were
checked. numpy and scipy only: the site imports this.
"""

from __future__ import annotations

from trainer.scoring.multiplier.comparison import (
    EntryMultiplier,
    EntryMultiplierDict,
    LadderDict,
    MultiplierRatio,
    MultiplierVerdict,
    TrackComparison,
    TrackComparisonDict,
    compare_entries,
)
from trainer.scoring.multiplier.estimates import MultiplierEstimates, estimate_multipliers
from trainer.scoring.multiplier.ladder import Ladder
from trainer.scoring.multiplier.records import RecordCandidate, RecordTest, run_record_test
from trainer.scoring.multiplier.results import AXES, Axis, ResultsError, RunResult, load_results, parse_results

__all__ = [
    "AXES",
    "Axis",
    "EntryMultiplier",
    "EntryMultiplierDict",
    "Ladder",
    "LadderDict",
    "MultiplierEstimates",
    "MultiplierRatio",
    "MultiplierVerdict",
    "RecordCandidate",
    "RecordTest",
    "ResultsError",
    "RunResult",
    "TrackComparison",
    "TrackComparisonDict",
    "compare_entries",
    "estimate_multipliers",
    "load_results",
    "parse_results",
    "run_record_test",
]
