"""Two scored runs, compared by paired bootstrap over what both were asked: documents, and questions of the suite.

The same documents are drawn for both (with replacement, Efron 1979; Koehn 2004 for pairs of systems), so what makes a
document hard for either drops out. Pure numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from trainer.scoring.items import TEXT_TASK, ItemKey

DRAWS = 4000
CHUNK = 2**22
"""Numbers drawn at a time."""

FloatArray = NDArray[np.float64]


class NoCommonItemsError(ValueError):
    """The two runs were not asked the same things."""


@dataclass(frozen=True)
class MetricDifference:
    """How the second run differs from the first in one task."""

    task: str
    metric: str
    items: int
    first: float
    second: float
    difference: float
    """second - first."""
    low: float
    high: float
    """95 % interval of the difference."""
    p: float
    """Two-sided: how often as large a difference comes by the draw of items alone."""

    @classmethod
    def of(
        cls, task: str, metric: str, first: FloatArray, second: FloatArray, weights: FloatArray, seed: int = 0
    ) -> Self:
        """Of sums `first` and `second` over items, each divided by the sum of `weights`."""
        one, two = first.sum() / weights.sum(), second.sum() / weights.sum()
        drawn = draw_bootstrap_ratios(second - first, weights, np.random.default_rng(seed))
        low, high = np.quantile(drawn, [0.025, 0.975])
        # With the observed counted in, so that it is never 0 (Davison & Hinkley 1997, eq. 4.11).
        tail = (1 + min(int((drawn <= 0).sum()), int((drawn >= 0).sum()))) / (1 + len(drawn))
        numbers = (float(number) for number in (one, two, two - one, low, high))
        return cls(task, metric, len(first), *numbers, min(1.0, 2 * tail))


def draw_bootstrap_ratios(values: FloatArray, weights: FloatArray, dice: np.random.Generator) -> FloatArray:
    """[DRAWS] of sum(values) / sum(weights) over items drawn with replacement."""
    count = len(values)
    step = max(1, CHUNK // count)
    found = []
    for start in range(0, DRAWS, step):
        drawn = dice.integers(0, count, (min(step, DRAWS - start), count))
        found.append(values[drawn].sum(1) / weights[drawn].sum(1))
    return np.concatenate(found)


def compare_items(
    first: dict[ItemKey, dict[str, Any]], second: dict[ItemKey, dict[str, Any]]
) -> list[MetricDifference]:
    """Every task and metric that both have, over the items that both have. Raises `NothingInCommon`."""
    shared = sorted(first.keys() & second.keys())
    found = []
    for task in dict.fromkeys(key[0] for key in shared):
        pairs = [(first[key], second[key]) for key in shared if key[0] == task]
        found += compare_text(pairs) if task == TEXT_TASK else compare_task(task, pairs)
    if not found:
        raise NoCommonItemsError("The two files have no item in common.")
    return found


def compare_text(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[MetricDifference]:
    if any(one["bytes"] != two["bytes"] for one, two in pairs):
        raise NoCommonItemsError("The two runs were scored on different documents.")
    columns = (np.array([pair[i]["bits"] for pair in pairs], float) for i in (0, 1))
    return [MetricDifference.of(TEXT_TASK, TEXT_TASK, *columns, np.array([one["bytes"] for one, _ in pairs], float))]


def compare_task(task: str, pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[MetricDifference]:
    metrics = [name for name in ("acc", "acc_norm") if all(name in line for pair in pairs for line in pair)]
    columns = {name: (np.array([pair[i][name] for pair in pairs], float) for i in (0, 1)) for name in metrics}
    return [MetricDifference.of(task, name, *columns[name], np.ones(len(pairs))) for name in metrics]
