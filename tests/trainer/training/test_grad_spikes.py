"""Updates with a gradient norm far above the median are skipped, and too many in a row end the run."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainer.errors import ModelError
from trainer.training import loop
from trainer.training.run import MAX_IN_A_ROW, MIN_NORMS, SPIKE_FACTOR, GradientSpikeFilter


def build_filter(mode: str = "skip") -> GradientSpikeFilter:
    spike_filter = GradientSpikeFilter(mode)  # type: ignore[arg-type]
    assert all(spike_filter.accept(1.0 + step % 3 / 10, step) for step in range(MIN_NORMS))
    return spike_filter


@pytest.fixture
def tiny_step(monkeypatch: pytest.MonkeyPatch) -> Callable[..., GradientSpikeFilter]:
    """Run a step whose gradient is a thousand times the usual one; return the filter after it."""

    def run(clip: float | None) -> GradientSpikeFilter:
        model = torch.nn.Linear(1, 1, bias=False)
        fabric: Any = SimpleNamespace(world_size=1)

        def accumulate(*arguments: object) -> torch.Tensor:
            model.weight.grad = torch.full((1, 1), 1000.0)
            return torch.tensor(1.0)

        monkeypatch.setattr(loop, "accumulate_gradients", accumulate)
        spike_filter, optimizer = build_filter(), torch.optim.SGD(model.parameters(), 0.1)
        batch = (torch.zeros(1, 1), torch.zeros(1, 1))
        loop.train_step(fabric, model, [optimizer], batch, 1, spike_filter, clip).read()
        return spike_filter

    return run


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


def test_spike_of_a_clipped_gradient_is_no_spike(tiny_step: Callable[..., GradientSpikeFilter]) -> None:
    assert tiny_step(clip=None).skipped == 1
    assert tiny_step(clip=1.0).skipped == 0
