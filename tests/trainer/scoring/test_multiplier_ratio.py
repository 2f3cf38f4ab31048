"""Two entries against each other: the same arithmetic as their ties."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trainer.scoring.multiplier import RunResult, TrackComparison, compare_entries


@pytest.fixture(scope="module")
def board() -> TrackComparison:
    rng = np.random.default_rng(7)

    def runs(name: str, cm: float, part: float, count: int) -> list[RunResult]:
        x = math.log(part * cm)
        return [
            RunResult(
                entry=name, seed=seed, flops=1e13 * part, seconds=None,
                bits_per_byte=2 - 0.1 * x + 0.01 * x * x + float(rng.normal(0, 0.002)),
            )
            for seed in range(count)
        ]  # fmt: skip

    found = [run for part in (0.125, 0.25, 0.5, 1, 2) for run in runs("base", 1.0, part, 3)]
    return compare_entries(
        [*found, *runs("good", 1.2, 1, 3), *runs("near", 1.19, 1, 1), *runs("bad", 0.8, 1, 3)], "base"
    )


def test_ratio_is_quotient_of_multipliers(board: TrackComparison) -> None:
    ratio = board.ratio("good", "bad")
    assert ratio
    assert ratio.cm == pytest.approx((board["good"].cm or 0) / (board["bad"].cm or 1))
    assert ratio.low < 1.5 < ratio.high


def test_ratio_of_swapped_entries_is_inverse(board: TrackComparison) -> None:
    for one, other in (("good", "bad"), ("good", "near"), ("good", "base")):
        there, back = board.ratio(one, other), board.ratio(other, one)
        assert there
        assert back
        assert (back.cm, back.low, back.high) == pytest.approx((1 / there.cm, 1 / there.high, 1 / there.low))


def test_entries_are_tied_if_ratio_interval_contains_one(board: TrackComparison) -> None:
    names = [row.entry for row in board.entries]
    for one in names:
        for other in set(names) - {one}:
            ratio = board.ratio(one, other)
            assert ratio
            assert (ratio.low <= 1 <= ratio.high) == (other in board[one].tied_with), (one, other)


def test_ratio_without_interval_is_none() -> None:
    runs = [RunResult(entry=name, seed=1, flops=1e13, seconds=None, bits_per_byte=2.0) for name in ("base", "x")]

    assert compare_entries(runs, "base").ratio("x", "base") is None
