"""Updates from a gradient far beyond the usual are left out, and too many of them end the run."""

from __future__ import annotations

import pytest

from trainer.errors import ModelError
from trainer.training.grad_spikes import MAX_IN_A_ROW, MIN_NORMS, SPIKE_FACTOR, GradientSpikeFilter


def warmed(mode: str = "skip") -> GradientSpikeFilter:
    guard = GradientSpikeFilter(mode)  # type: ignore[arg-type]
    assert all(guard.accept(1.0 + step % 3 / 10, step) for step in range(MIN_NORMS))
    return guard


def test_spike_is_skipped_and_counted() -> None:
    guard = warmed()
    assert guard.accept(SPIKE_FACTOR * 0.9, 1)
    assert not guard.accept(SPIKE_FACTOR * 2, 2)
    assert guard.accept(1.0, 3)
    assert guard.skipped == 1


def test_first_norms_are_accepted() -> None:
    assert GradientSpikeFilter("skip").accept(1.0, 1)
    assert GradientSpikeFilter("skip").accept(1e6, 2)


def test_many_spikes_in_a_row_raise() -> None:
    guard = warmed()
    assert not any(guard.accept(100.0, step) for step in range(MAX_IN_A_ROW - 1))
    with pytest.raises(ModelError, match=r"at step 9 is 100, the median 1\.1, 10 times in a row: training diverged"):
        guard.accept(100.0, 9)


def test_stop_mode_raises_at_first_spike() -> None:
    guard = warmed("stop")
    with pytest.raises(ModelError, match=r"at step 7 is 100, the median 1\.1: training diverged"):
        guard.accept(100.0, 7)


def test_off_mode_accepts_spikes() -> None:
    assert warmed("off").accept(1e9, 1)


def test_median_follows_slow_growth() -> None:
    guard = warmed()
    assert all(guard.accept(1.05**step, step) for step in range(200))


def test_spike_filter_state_dict_round_trip() -> None:
    guard, other = warmed(), GradientSpikeFilter("skip")
    guard.accept(100.0, 1)
    other.load_state_dict(guard.state_dict())
    assert other == guard
