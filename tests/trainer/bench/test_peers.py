"""`benchmarks/peers.py`: both sides are tuned alike, runs are kept, and multipliers are read off the peer's ladder."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks import peers
from benchmarks.contenders import nanochat, ours
from benchmarks.contenders.base import SEQUENCE_LENGTH, Factors, Plan, Size, train_contender
from benchmarks.contenders.results import Entry, Trainer
from benchmarks.contenders.search import SECOND, tune_factors
from trainer.data.dataset import Dataset
from trainer.errors import UserError
from trainer.models import gpt

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

    flops_per_token, parameters, steps = 1e6, 0, 5

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


def make_plan(factors: Factors = Factors(), size: Size = SIZE) -> Plan:  # noqa: B008  (it is frozen)
    return Plan(size, factors, 1, 320, 2 * SEQUENCE_LENGTH, size.budget)


def test_train_ours_uses_its_budget_and_learns(dataset_folder: Path) -> None:
    dataset = Dataset.open(dataset_folder)
    outcome = train_contender(ours.OurGPT, make_plan(), dataset)
    untrained = train_contender(ours.OurGPT, make_plan(Factors(matrices=1e-9, embeddings=1e-9, scalars=1e-9)), dataset)
    assert outcome.flops == pytest.approx(SIZE.budget, rel=0.1)
    assert outcome.bits_per_byte < untrained.bits_per_byte - 0.3


def test_scale_recipe_multiplies_rates_and_decay() -> None:
    recipe = gpt.recipe(dataclasses.replace(gpt.Config.sized(4, 320, 256), memory_rows=8))
    factors = Factors(matrices=2, embeddings=3, scalars=5, smear=11, memory=13, decay=7, warmup=0.2)
    scaled = ours.scale_recipe(recipe, factors)
    ratios = {
        new.name: new.learning_rate / old.learning_rate for new, old in zip(scaled.groups, recipe.groups, strict=True)
    }
    embeddings = {"embedding": 3, "value embeddings": 3, "head": 3}
    assert ratios == pytest.approx({**embeddings, "smear": 11, "memory": 13, "scalars": 5, "matrices": 2})
    assert scaled.groups[-1].weight_decay == pytest.approx(7 * recipe.groups[-1].weight_decay)
    assert scaled.schedule.warmup == 0.2


def test_nanochat_trains_a_checkout_and_its_schedule_ends_at_five_percent(checkout: Path, dataset_folder: Path) -> None:
    build = partial(nanochat.build_nanochat, path=checkout)
    outcome = train_contender(build, make_plan(), Dataset.open(dataset_folder))
    assert outcome.flops / outcome.tokens == 6 * 64 * 320 - 2 * 64 * 320 + 2 * 64 * 320
    assert outcome.bits_per_byte > 0
    contender = nanochat.Nanochat(make_plan(Factors(matrices=0.5, smear=0.1, warmup=0.1)), checkout)
    contender.steps = 1000
    embedding, smear, matrices = contender.optimizer.param_groups
    contender.set_schedule(49)
    assert matrices["lr"] == pytest.approx(0.5 * 0.02 * 0.5)
    assert matrices["momentum"] == pytest.approx(0.85 + 0.12 * 0.049 / nanochat.MOMENTUM_WARMUP)
    contender.set_schedule(300)
    assert (embedding["lr"], smear["lr"]) == pytest.approx((0.3, 0.02))
    contender.set_schedule(999)
    assert matrices["lr"] == pytest.approx(0.01 * 0.05, rel=0.05)
    assert matrices["momentum"] == pytest.approx(0.90, abs=1e-3)
    assert matrices["weight_decay"] < 1e-4 * contender.decay
    faster = nanochat.Nanochat(make_plan(Factors(matrices=2.0)), checkout)
    assert faster.decay * 2.0 == pytest.approx(contender.decay * 0.5), "decay times rate"


def test_main_without_a_checkout_or_text_says_what_is_missing(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"no checkout of nanochat: it has no nanochat/gpt\.py"):
        peers.main(["--nanochat", str(tmp_path), "--corpus", "files:nothing"])
    monkeypatch.delenv("DAILYTRAIN_DATA", raising=False)
    with pytest.raises(UserError, match="set DAILYTRAIN_DATA to the folder of text/gutenberg/"):
        peers.main(["--nanochat", str(checkout)])


def test_trainer_does_not_repeat_a_finished_run_and_keeps_a_diverged_one(dataset_folder: Path, tmp_path: Path) -> None:
    reported: list[str] = []
    trainer = Trainer(tmp_path / "results.json", Dataset.open(dataset_folder), reported.append)
    entry = Entry("constant", Constant, "source")
    rows = [trainer.run(entry, SIZE, 1.0, 1, Factors(), 2, "ladder") for _ in range(2)]
    assert rows[0] == rows[1]
    assert len(reported) == 1
    trainer.run(dataclasses.replace(entry, source="changed"), SIZE, 1.0, 1, Factors(), 2, "ladder")
    row = trainer.run(entry, SIZE, 1.0, 1, Factors(matrices=3), 2, "search")
    assert (row["bits_per_byte"], row["diverged"]) == (None, "the loss became nan at step 0")
    assert len(json.loads((tmp_path / "results.json").read_text())["runs"]) == 3


def test_tune_returns_the_best_and_repeats_its_draws() -> None:
    def compute_loss(factors: Factors) -> float | None:
        tried.append(factors)
        return None if factors.matrices > 2 else abs(math.log(factors.matrices))

    tried: list[Factors] = []
    best = tune_factors(Factors(matrices=0.1), 8, compute_loss)
    first = list(tried)
    assert tried[0] == Factors(matrices=0.1)
    assert tried[1] == best == SECOND
    assert tune_factors(Factors(matrices=0.1), 8, compute_loss) == best
    assert tried[8:] == first


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
    speed = {f"{SIZE.name} eager": {"nanochat": {"median": 2.0}, "gpt": {"median": 1.0}}}
    row = peers.compare_size(make_runs(1.3), speed, SIZE, "gpt")
    assert row is not None
    assert row["flops"]["cm"] == pytest.approx(1.3, rel=1e-3)
    assert row["flops"]["low"] < 1.3 < row["flops"]["high"]
    assert row["paired"]["cm"] == pytest.approx(1.3, rel=1e-3)
    assert row["paired"]["high"] - row["paired"]["low"] < (row["flops"]["high"] - row["flops"]["low"]) / 2
    assert row["eager_seconds"]["cm"] == pytest.approx(2.6, rel=1e-3)
    assert "1.30 (1." in peers.format_table([row])
    assert "not measured" in peers.format_table([row])
    others = [run for run in make_runs(1.0) if run["entry"] == "nanochat"]
    assert peers.compare_size(others, {}, SIZE, "gpt") is None, "without runs of ours"


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
    flags += ["--trials", "2", "--out", str(tmp_path / "peers.json")]
    assert peers.main(flags) == 0
    first = json.loads((tmp_path / "peers.json").read_text())
    # A trial of ours at its defaults is its seed 1; the peer's second trial may be its best.
    assert {run["entry"] for run in first["runs"]} == {"nanochat", "gpt", "gpt with memory"}
    assert [(row["entry"], row["runs"]) for row in first["multipliers"]] == [("gpt", 10), ("gpt with memory", 10)]
    assert "| 1x64 | 4e+09 |" in capsys.readouterr().out
    assert peers.main([*flags, "--report"]) == 0
    assert json.loads((tmp_path / "peers.json").read_text()) == first
