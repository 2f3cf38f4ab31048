"""The compute multiplier: how much compute the baseline needs for an entry's loss, over what the entry used.

`compare(results, baseline)` is all a page needs; `docs/multiplier.md` says what the numbers mean and how they were
checked. numpy and scipy only: the site imports this.
"""

from __future__ import annotations

from trainer.scoring.multiplier.board import (
    Board,
    BoardDict,
    Estimate,
    EstimateDict,
    LadderDict,
    Ratio,
    Verdict,
    compare,
)
from trainer.scoring.multiplier.ladder import Ladder
from trainer.scoring.multiplier.reading import Reading, read
from trainer.scoring.multiplier.records import Challenge, Standing, challenge
from trainer.scoring.multiplier.results import AXES, Axis, Result, ResultsError, load, parse

__all__ = [
    "AXES",
    "Axis",
    "Board",
    "BoardDict",
    "Challenge",
    "Estimate",
    "EstimateDict",
    "Ladder",
    "LadderDict",
    "Ratio",
    "Reading",
    "Result",
    "ResultsError",
    "Standing",
    "Verdict",
    "challenge",
    "compare",
    "load",
    "parse",
    "read",
]
