"""Comparison of two scored runs by paired bootstrap over their common items: documents, and questions of the suite.

The same items are drawn for both (with replacement, Efron 1979; Koehn 2004 for pairs of systems), so the difficulty of
an item cancels. Pure numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from trainer.errors import UserError
from trainer.scoring.items import TEXT_TASK, ItemKey

DRAWS = 4000
CHUNK = 2**22  # numbers drawn at a time

FloatArray = NDArray[np.float64]


class NoCommonItemsError(UserError):
    """The two runs were scored on different items."""


@dataclass(frozen=True)
class MetricDifference:
    """Difference between two runs in one metric."""

    task: str
    metric: str
    items: int
    first: float
    second: float
    difference: float  # second - first
    low: float
    high: float  # 95 % interval of the difference
    p: float  # two-sided p-value of the difference, over the draw of items

    @classmethod
    def from_sums(
        cls, task: str, metric: str, first: FloatArray, second: FloatArray, weights: FloatArray, seed: int = 0
    ) -> Self:
        """Compare sum(first) / sum(weights) with sum(second) / sum(weights), over items."""
        one, two = first.sum() / weights.sum(), second.sum() / weights.sum()
        drawn = draw_bootstrap_ratios(second - first, weights, np.random.default_rng(seed))
        low, high = np.quantile(drawn, [0.025, 0.975])
        # The observed value is included, so p is never 0 (Davison & Hinkley 1997, eq. 4.11).
        tail = (1 + min(int((drawn <= 0).sum()), int((drawn >= 0).sum()))) / (1 + len(drawn))
        numbers = (float(number) for number in (one, two, two - one, low, high))
        return cls(task, metric, len(first), *numbers, min(1.0, 2 * tail))


def draw_bootstrap_ratios(values: FloatArray, weights: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Return [DRAWS] of sum(values) / sum(weights) over items drawn with replacement."""
    count = len(values)
    step = max(1, CHUNK // count)
    ratios = []
    for start in range(0, DRAWS, step):
        drawn = rng.integers(0, count, (min(step, DRAWS - start), count))
        ratios.append(values[drawn].sum(1) / weights[drawn].sum(1))
    return np.concatenate(ratios)


def compare_items(
    first: dict[ItemKey, dict[str, Any]], second: dict[ItemKey, dict[str, Any]]
) -> list[MetricDifference]:
    """Compare every common task and metric over the common items. Raise `NoCommonItemsError`."""
    shared = sorted(first.keys() & second.keys())
    differences = []
    for task in dict.fromkeys(key[0] for key in shared):
        pairs = [(first[key], second[key]) for key in shared if key[0] == task]
        differences += compare_text(pairs) if task == TEXT_TASK else compare_task(task, pairs)
    if not differences:
        raise NoCommonItemsError("The two files have no item in common.")
    return differences


def compare_text(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[MetricDifference]:
    if any(one["bytes"] != two["bytes"] for one, two in pairs):
        raise NoCommonItemsError("The two runs were scored on different documents.")
    columns = (np.array([pair[i]["bits"] for pair in pairs], float) for i in (0, 1))
    return [
        MetricDifference.from_sums(TEXT_TASK, TEXT_TASK, *columns, np.array([one["bytes"] for one, _ in pairs], float))
    ]


def compare_task(task: str, pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[MetricDifference]:
    metrics = [name for name in ("acc", "acc_norm") if all(name in line for pair in pairs for line in pair)]
    columns = {name: (np.array([pair[i][name] for pair in pairs], float) for i in (0, 1)) for name in metrics}
    return [MetricDifference.from_sums(task, name, *columns[name], np.ones(len(pairs))) for name in metrics]
