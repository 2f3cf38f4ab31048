"""Updates from a gradient far beyond the usual are left out, and too many of them end the run."""

from __future__ import annotations

import pytest

from trainer.errors import ModelError
from trainer.training.grad_spikes import FACTOR, FEWEST, IN_A_ROW, GradientSpikeFilter


def warmed(mode: str = "skip") -> GradientSpikeFilter:
    guard = GradientSpikeFilter(mode)  # type: ignore[arg-type]
    assert all(guard.admits(1.0 + step % 3 / 10, step) for step in range(FEWEST))
    return guard


def test_a_spike_is_left_out_and_counted() -> None:
    guard = warmed()
    assert guard.admits(FACTOR * 0.9, 1)
    assert not guard.admits(FACTOR * 2, 2)
    assert guard.admits(1.0, 3)
    assert guard.skipped == 1


def test_at_first_nothing_is_unusual() -> None:
    assert GradientSpikeFilter("skip").admits(1.0, 1)
    assert GradientSpikeFilter("skip").admits(1e6, 2)


def test_many_in_a_row_end_the_run() -> None:
    guard = warmed()
    assert not any(guard.admits(100.0, step) for step in range(IN_A_ROW - 1))
    with pytest.raises(ModelError, match=r"at step 9 is 100, usual is 1\.1, 10 times in a row: training diverged"):
        guard.admits(100.0, 9)


def test_the_first_may_end_it() -> None:
    guard = warmed("stop")
    with pytest.raises(ModelError, match=r"at step 7 is 100, usual is 1\.1: training diverged"):
        guard.admits(100.0, 7)


def test_it_may_be_off() -> None:
    assert warmed("off").admits(1e9, 1)


def test_what_is_usual_moves_along() -> None:
    guard = warmed()
    assert all(guard.admits(1.05**step, step) for step in range(200))


def test_it_goes_on_where_it_was() -> None:
    guard, other = warmed(), GradientSpikeFilter("skip")
    guard.admits(100.0, 1)
    other.load_state_dict(guard.state_dict())
    assert other == guard
