"""`benchmarks/peers.py`: both sides are tuned alike, runs are kept, and multipliers are read off the peer's ladder."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import peers
from benchmarks.contenders import base, nanochat, ours
from benchmarks.contenders.base import Factors, Plan, Size
from benchmarks.contenders.results import Entry, Trainer
from trainer.data.dataset import Dataset

pytestmark = pytest.mark.slow

SIZE = Size(1, 64, 4e9)
CHECKOUT = {
    "nanochat/optim.py": "",
    "nanochat/common.py": "",
    "nanochat/flash_attention.py": "",
    "nanochat/gpt.py": """
from dataclasses import dataclass
import torch, torch.nn as nn, torch.nn.functional as F

@dataclass
class GPTConfig:
    sequence_len: int
    vocab_size: int
    n_layer: int
    n_head: int
    n_kv_head: int
    n_embd: int
    window_pattern: str

class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.n_embd)
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.backout_lambda = nn.Parameter(torch.zeros(1))

    def init_weights(self):
        nn.init.normal_(self.embedding.weight)
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.backout_lambda)

    def setup_optimizer(self, unembedding_lr, embedding_lr, matrix_lr, scalar_lr, weight_decay):
        groups = [
            dict(params=[self.embedding.weight], lr=embedding_lr, kind="adamw"),
            dict(params=[self.backout_lambda], lr=0.2, kind="adamw"),
            dict(params=[self.head.weight], lr=matrix_lr, kind="muon", momentum=0.95, weight_decay=weight_decay),
        ]
        optimizer = torch.optim.SGD(groups)
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
        return optimizer

    def forward(self, tokens, targets=None, loss_reduction="mean"):
        logits = self.head(self.embedding(tokens) * (1 + self.backout_lambda))
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=loss_reduction)
""",
}


class Constant:
    """A contender whose loss never changes."""

    flops_per_token, parameters, steps, parts = 1e6, 0, 5, ()

    def __init__(self, plan: Plan, memory_rows: int = 0) -> None:
        self.plan = plan

    def train_step(self, inputs: Tensor, targets: Tensor, step: int) -> float:
        return math.nan if self.plan.factors.matrices > 2 else 1.0

    def compute_losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return torch.ones(targets.numel())


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the modules that the adapter imports, which are not kept after the test."""
    for name, text in CHECKOUT.items():
        path = tmp_path / "checkout" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    for name in ("nanochat", "nanochat.gpt"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path / "checkout"


@pytest.mark.parametrize("name", ["gpt with memory", "nanochat"])
def test_interrupted_run_resumes_to_the_same_result(
    name: str, checkout: Path, dataset_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(plan: Plan) -> Any:
        built = nanochat.Nanochat(plan, checkout) if name == "nanochat" else ours.OurGPT(plan, memory_rows=512)
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
    arguments = (Entry(name, build, "source"), SIZE, 1.0, 1, Factors(), 2, "ladder")
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


def test_main_tunes_trains_and_prints_the_table(
    checkout: Path,
    corpus_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def measure_cpu_seconds(entries: Any, *_: Any) -> dict[str, Any]:
        return {entry.name: {"median": 1e-6, "rounds": [1e-6]} for entry in entries}

    monkeypatch.setenv("DAILYTRAIN_CACHE", str(tmp_path))
    monkeypatch.setattr(peers, "SIZES", (SIZE,))
    monkeypatch.setattr(peers, "measure_cpu_seconds", measure_cpu_seconds)
    monkeypatch.setattr(ours, "OurGPT", Constant)
    flags = ["--nanochat", str(checkout), "--corpus", f"files:{corpus_folder}/*.txt", "--tokenizer", "bpe:320"]
    flags += ["--trials", "2", "--out", str(tmp_path / "peers.jsonl")]
    assert peers.main(flags) == 0
    first = (tmp_path / "peers.jsonl").read_text()
    rows = [json.loads(line) for line in first.splitlines()]
    names = ["gpt", "gpt, 262,144 rows", "gpt, 524,288 rows"]
    ladder = [("nanochat", share) for share in (0.5, 1, 2)] + [(name, 1) for name in names]
    runs = [row for row in rows if "speed" not in row]
    assert [(run["entry"], run["budget"] / SIZE.budget) for run in runs[:6]] == ladder
    # The first trials are runs of the first look; the peer's second may be its best.
    assert {run["entry"] for run in runs if run["part"] == "search"} == {"nanochat", "gpt", "gpt, 262,144 rows"}
    # All losses of ours are equal, so that theirs are the rates to start from.
    assert [run["seed"] for run in runs if run["entry"] == "gpt" and run["part"] == "ladder"] == [1, 2, 3]
    printed = capsys.readouterr().out
    assert printed.count("| 1x64 | 4e+09 | gpt, 524,288 rows |") == 3
    assert printed.count("Rates tuned here") == 1  # not before there are any
    assert peers.main([*flags, "--report"]) == 0
    assert (tmp_path / "peers.jsonl").read_text() == first
