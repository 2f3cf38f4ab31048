"""Updates with a gradient norm far above the median are skipped, and too many in a row end the run."""

from __future__ import annotations

import pytest

from trainer.errors import ModelError
from trainer.training.grad_spikes import MAX_IN_A_ROW, MIN_NORMS, SPIKE_FACTOR, GradientSpikeFilter


def build_filter(mode: str = "skip") -> GradientSpikeFilter:
    spike_filter = GradientSpikeFilter(mode)  # type: ignore[arg-type]
    assert all(spike_filter.accept(1.0 + step % 3 / 10, step) for step in range(MIN_NORMS))
    return spike_filter


def test_spike_is_skipped_and_counted() -> None:
    spike_filter = build_filter()
    assert spike_filter.accept(SPIKE_FACTOR * 0.9, 1)
    assert not spike_filter.accept(SPIKE_FACTOR * 2, 2)
    assert spike_filter.accept(1.0, 3)
    assert spike_filter.skipped == 1


def test_first_norms_are_accepted() -> None:
    assert GradientSpikeFilter("skip").accept(1.0, 1)
    assert GradientSpikeFilter("skip").accept(1e6, 2)


def test_many_spikes_in_a_row_raise() -> None:
    spike_filter = build_filter()
    assert not any(spike_filter.accept(100.0, step) for step in range(MAX_IN_A_ROW - 1))
    with pytest.raises(ModelError, match=r"at step 9 is 100, the median 1\.1, 10 times in a row: training diverged"):
        spike_filter.accept(100.0, 9)


def test_stop_mode_raises_at_first_spike() -> None:
    spike_filter = build_filter("stop")
    with pytest.raises(ModelError, match=r"at step 7 is 100, the median 1\.1: training diverged"):
        spike_filter.accept(100.0, 7)


def test_off_mode_accepts_spikes() -> None:
    assert build_filter("off").accept(1e9, 1)


def test_median_follows_slow_growth() -> None:
    spike_filter = build_filter()
    assert all(spike_filter.accept(1.05**step, step) for step in range(200))


def test_spike_filter_state_dict_round_trip() -> None:
    spike_filter, other = build_filter(), GradientSpikeFilter("skip")
    spike_filter.accept(100.0, 1)
    other.load_state_dict(spike_filter.state_dict())
    assert other == spike_filter
