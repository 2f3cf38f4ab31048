"""Loss and norm of a step are read one step late, weights do not see what is found then, and spikes are skipped."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.support.metrics_lines import lines
from trainer.checkpoint.files import list_checkpoints
from trainer.distributed.devices import compute_gradient_norm
from trainer.errors import GraphFaultError, ModelError
from trainer.ops.devices import DeferredRead
from trainer.training import loop
from trainer.training.run import MAX_IN_A_ROW, MIN_NORMS, SPIKE_FACTOR, GradientSpikeFilter, StepValues

Train = Callable[..., int]


@pytest.mark.parametrize("is_checkpointed", [False, True], ids=["late", "before a checkpoint"])
def test_divergence_is_found_after_the_update_and_never_saved(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_checkpointed: bool
) -> None:
    compute, updated = loop.compute_gradient_norm, []

    def diverge(parameters: list[torch.Tensor]) -> Any:
        norm = compute(parameters)
        updated.append([parameter.detach().clone() for parameter in parameters])
        if len(updated) == 4:
            for parameter in parameters:
                parameter.grad = torch.full_like(parameter, math.nan)
            return torch.tensor(math.nan)
        return norm

    monkeypatch.setattr(loop, "compute_gradient_norm", diverge)
    monkeypatch.setattr(loop, "TRAIN_LINES", 1)
    every = "4steps" if is_checkpointed else "3steps"
    flags = ("--budget", "20steps", "--train.evaluations", "1", "--checkpoint-every", every)
    assert train(tmp_path, *flags) == 3
    failure = json.loads((tmp_path / "failure.json").read_text())
    assert "The gradient became nan at step 4 (15% of the budget): training diverged" in failure["reason"]
    assert failure["cause"] == "model"
    assert len(updated) == (4 if is_checkpointed else 5), "one more step has begun unless a checkpoint was due"
    assert all(torch.equal(*pair) for pair in zip(updated[-1], updated[3], strict=True)), "without an update"
    kept = list_checkpoints(tmp_path)
    assert [folder.name for folder in kept] == ([] if is_checkpointed else ["step-00000003"])
    for folder in kept:
        assert all(tensor.isfinite().all() for tensor in load_file(folder / "model.safetensors").values())


@pytest.mark.parametrize("mode", ["skip", "stop", "off"])
def test_decision_on_the_device_equals_that_of_the_filter(mode: Any) -> None:
    torch.manual_seed(0)
    spike_filter = GradientSpikeFilter(mode)
    for step in range(4 * MIN_NORMS):
        norm = torch.randn(()).exp() * (25 if step % 7 == 6 else 1)
        copy = dataclasses.replace(spike_filter)
        values = StepValues(torch.ones(()), norm, spike_filter, None, step, 0.0)
        try:
            is_accepted = copy.accept(float(norm), step)
        except GraphFaultError:
            assert not values.is_accepted
            return
        assert bool(values.is_accepted) == is_accepted
        values.read()
        assert spike_filter == copy
    assert (spike_filter.skipped > 0) == (mode == "skip")


def test_gradient_norm_is_in_fp32_whatever_the_gradients_are() -> None:
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.zeros(1000, dtype=dtype)) for dtype in (torch.float32, torch.bfloat16)]
    for parameter in parameters:
        parameter.grad = torch.randn(1000).to(parameter.dtype)
    norm = compute_gradient_norm(parameters)
    wanted = torch.cat([parameter.grad.double() for parameter in parameters if parameter.grad is not None]).norm()
    torch.testing.assert_close(norm.double(), wanted, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (1.0, math.nan), (math.inf, 1.0), (1.0, math.inf)])
def test_values_that_are_not_finite_are_not_accepted(loss: float, norm: float) -> None:
    values = StepValues(torch.tensor(loss), torch.tensor(norm), GradientSpikeFilter("off"), None, 7, 0.5)
    assert not values.is_accepted
    with pytest.raises(GraphFaultError, match=r"at step 7 \(50% of the budget\)"):
        values.read()


def test_seconds_of_waiting_are_charged_to_the_step_that_is_read(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock on which launching a step takes nothing and reading it 50 ms, as on a GPU."""
    seconds, read = 0.0, DeferredRead.read

    def read_slowly(deferred: DeferredRead) -> Any:
        nonlocal seconds
        seconds += 0.05
        return read(deferred)

    monkeypatch.setattr(DeferredRead, "read", read_slowly)
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: seconds, monotonic=lambda: seconds))
    monkeypatch.setattr(loop, "TRAIN_LINES", 5)
    flags = ("--budget", "1s", "--checkpoint-every", "8steps", "--keep", "9", "--train.evaluations", "1")
    assert train(tmp_path, *flags) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["train_seconds"] == pytest.approx(0.05 * result["steps"])
    assert len(lines(tmp_path, "train")) == 5
    for folder in list_checkpoints(tmp_path):
        state = json.loads((folder / "state.json").read_text())
        assert sum(state["clock"]) / 1e6 == pytest.approx(state["spent"]["seconds"])


def build_filter(mode: str = "skip") -> GradientSpikeFilter:
    spike_filter = GradientSpikeFilter(mode)  # type: ignore[arg-type]
    assert all(spike_filter.accept(1.0 + step % 3 / 10, step) for step in range(MIN_NORMS))
    return spike_filter


def test_spike_is_skipped_and_counted() -> None:
    assert all(GradientSpikeFilter("skip").accept(norm, step) for step, norm in enumerate((1.0, 1e6))), "the first ones"
    assert build_filter("off").accept(1e9, 1)
    spike_filter = build_filter()
    assert spike_filter.accept(SPIKE_FACTOR * 0.9, 1)
    assert not spike_filter.accept(SPIKE_FACTOR * 2, 2)
    assert spike_filter.accept(1.0, 3)
    assert spike_filter.skipped == 1


def test_many_spikes_in_a_row_raise_and_in_stop_mode_the_first() -> None:
    spike_filter = build_filter()
    assert not any(spike_filter.accept(100.0, step) for step in range(MAX_IN_A_ROW - 1))
    with pytest.raises(ModelError, match=r"at step 9 is 100, the median 1\.1, 10 times in a row: training diverged"):
        spike_filter.accept(100.0, 9)
    with pytest.raises(ModelError, match=r"at step 7 is 100, the median 1\.1: training diverged"):
        build_filter("stop").accept(100.0, 7)


@pytest.mark.parametrize(("clip", "skipped"), [(None, 1), (1.0, 0)])
def test_spike_of_a_clipped_gradient_is_no_spike(
    clip: float | None, skipped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, fabric = torch.nn.Linear(1, 1, bias=False), SimpleNamespace(world_size=1)

    def accumulate(*arguments: object) -> torch.Tensor:
        model.weight.grad = torch.full((1, 1), 1000.0)
        return torch.tensor(1.0)

    monkeypatch.setattr(loop, "accumulate_gradients", accumulate)
    spike_filter, optimizer = build_filter(), torch.optim.SGD(model.parameters(), 0.1)
    batch = (torch.zeros(1, 1), torch.zeros(1, 1))
    loop.train_step(fabric, model, [optimizer], batch, 1, spike_filter, clip).read()
    assert spike_filter.skipped == skipped
