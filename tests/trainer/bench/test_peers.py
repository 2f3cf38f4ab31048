"""`benchmarks/peers.py`: interrupted runs resume, and multipliers are read off the peer's ladder."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from benchmarks import peers
from benchmarks.contenders import base, ours
from benchmarks.contenders.base import Factors, Plan, Size
from benchmarks.contenders.results import Entry, Trainer
from trainer.data.dataset import Dataset

pytestmark = pytest.mark.slow

SIZE = Size(1, 64, 4e9)


def test_interrupted_run_resumes_to_the_same_result(
    dataset_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(plan: Plan) -> Any:
        built: Any = ours.OurGPT(plan, memory_rows=512)
        train_step, built.steps = built.train_step, 6

        def stop_at_step_5(inputs: Tensor, targets: Tensor, step: int) -> float:
            steps.append(step)
            if len(steps) == 6:
                raise KeyboardInterrupt
            return train_step(inputs, targets, step)

        built.train_step = stop_at_step_5
        return built

    monkeypatch.setattr(base, "SNAPSHOT_SECONDS", -1.0)
    monkeypatch.setattr(base, "DEV_ROWS", 8)
    trainer = Trainer(tmp_path / "results.jsonl", Dataset.open(dataset_folder), print)
    arguments = (Entry("gpt with memory", build, "source"), SIZE, 1.0, 1, Factors(), 2, "ladder")
    steps: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        trainer.run(*arguments)
    resumed = trainer.run(*arguments)
    assert steps == [0, 1, 2, 3, 4, 5, 5]
    assert [file.name for file in tmp_path.glob("results*")] == ["results.jsonl"]
    steps = [-1] * 6
    whole = Trainer(tmp_path / "whole.jsonl", trainer.dataset, print).run(*arguments)
    assert resumed["bits_per_byte"] == whole["bits_per_byte"]


def make_runs(multiplier: float) -> list[dict[str, Any]]:
    """Return runs of a peer whose loss is 3 - 0.1 ln(budget) but for its noise, and ours that need less compute."""
    runs = []
    for share, seeds in peers.LADDER.items():
        for name, gain in (("nanochat", 1.0), ("gpt", multiplier)):
            for seed in seeds if name == "nanochat" or share == 1 else ():
                loss = 3 - 0.1 * math.log(SIZE.budget * share * gain) + 0.0005 * (seed - 2 if len(seeds) > 1 else 0)
                run = {"entry": name, "seed": seed, "size": SIZE.name, "budget": SIZE.budget * share}
                runs.append({**run, "flops": SIZE.budget * share, "tokens": 100 * share, "bits_per_byte": loss})
    return runs


def test_compare_size_finds_multiplier_in_flops_and_seconds() -> None:
    speed = {(SIZE.name, "eager"): {"nanochat": {"median": 2.0}, "gpt": {"median": 1.0}}}
    row = peers.compare_size(make_runs(1.3), speed, SIZE, "gpt")
    assert row is not None
    assert row["flops"]["cm"] == pytest.approx(1.3, rel=1e-3)
    assert row["flops"]["low"] < 1.3 < row["flops"]["high"]
    assert row["eager_seconds"]["cm"] == pytest.approx(2.6, rel=1e-3)
    assert "1.30 (1." in peers.format_table([row])
    assert "not measured" in peers.format_table([row])
