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
from benchmarks.contenders import base, nanochat, ours
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


def make_plan(factors: Factors = Factors(), size: Size = SIZE) -> Plan:  # noqa: B008  (it is frozen)
    return Plan(size, factors, 1, 320, 2 * SEQUENCE_LENGTH, size.budget)


def test_train_ours_uses_its_budget_and_learns(dataset_folder: Path) -> None:
    dataset = Dataset.open(dataset_folder)
    outcome = train_contender(ours.OurGPT, make_plan(), dataset)
    untrained = train_contender(ours.OurGPT, make_plan(Factors(matrices=1e-9, embeddings=1e-9, scalars=1e-9)), dataset)
    assert outcome.flops == pytest.approx(SIZE.budget, rel=0.1)
    assert outcome.bits_per_byte < untrained.bits_per_byte - 0.3


def test_train_ours_with_a_table_learns_more_from_it(dataset_folder: Path) -> None:
    dataset = Dataset.open(dataset_folder)
    build = partial(ours.OurGPT, memory_rows=4096)
    outcome = train_contender(build, make_plan(), dataset)
    frozen = train_contender(build, make_plan(Factors(memory=1e-9)), dataset)
    assert outcome.parameters == frozen.parameters > 4096 * SIZE.width
    assert outcome.bits_per_byte < frozen.bits_per_byte


def test_train_ours_follows_l2wrap_of_the_recipe(dataset_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "DEV_ROWS", 8)
    dataset, plan = Dataset.open(dataset_folder), dataclasses.replace(make_plan(), total_flops=1.0)
    plain, build_recipe = train_contender(ours.OurGPT, plan, dataset), gpt.recipe
    monkeypatch.setattr(gpt, "recipe", lambda config: dataclasses.replace(build_recipe(config), l2wrap=1e-2))
    assert train_contender(ours.OurGPT, plan, dataset).bits_per_byte != plain.bits_per_byte


def test_contender_of_gpt2_trains_and_counts_its_products(dataset_folder: Path) -> None:
    plan = dataclasses.replace(make_plan(), total_flops=1.0)
    outcome = train_contender(partial(ours.OurGPT, arch="nanogpt"), plan, Dataset.open(dataset_folder))
    width, depth = SIZE.width, SIZE.depth
    # 6 FLOPs a weight of the matrices (12 x width x width a block, and the head), and attention's two products.
    expected = 6 * (12 * depth * width**2 + 320 * width) + 12 * depth * SEQUENCE_LENGTH * width
    assert outcome.flops / outcome.tokens == pytest.approx(expected, rel=0.1)
    assert 0 < outcome.bits_per_byte < 8


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


def test_nanochat_adapter_trains_a_checkout(checkout: Path, dataset_folder: Path) -> None:
    outcome = train_contender(partial(nanochat.Nanochat, path=checkout), make_plan(), Dataset.open(dataset_folder))
    assert outcome.flops / outcome.tokens == 6 * 64 * 320 - 2 * 64 * 320 + 2 * 64 * 320
    assert outcome.bits_per_byte > 0


def test_nanochat_schedule_ends_at_five_percent(checkout: Path) -> None:
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


def test_nanochat_decay_times_rate_does_not_depend_on_rate(checkout: Path) -> None:
    decays = [nanochat.Nanochat(make_plan(Factors(matrices=f)), checkout).decay * f for f in (0.5, 2.0)]
    assert decays[0] == pytest.approx(decays[1])


def test_nanochat_wrong_folder_gets_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no checkout of nanochat: it has no nanochat/gpt\.py"):
        peers.main(["--nanochat", str(tmp_path), "--corpus", "files:nothing"])


def test_main_without_text_says_what_to_set(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAILYTRAIN_DATA", raising=False)
    with pytest.raises(UserError, match="set DAILYTRAIN_DATA to the folder of text/gutenberg/"):
        peers.main(["--nanochat", str(checkout)])


def test_trainer_does_not_repeat_a_finished_run(dataset_folder: Path, tmp_path: Path) -> None:
    reported: list[str] = []
    trainer = Trainer(tmp_path / "results.jsonl", Dataset.open(dataset_folder), reported.append)
    entry = Entry("constant", Constant, "source")
    rows = [trainer.run(entry, SIZE, 1.0, 1, Factors(), 2, "ladder") for _ in range(2)]
    assert rows[0] == rows[1]
    assert len(reported) == 1
    trainer.run(dataclasses.replace(entry, source="changed"), SIZE, 1.0, 1, Factors(), 2, "ladder")
    with trainer.file.open("a") as file:
        file.write('{"entry": "const')  # a line that a power cut left
    assert len(trainer.load()) == 2
    trainer.run(entry, SIZE, 1.0, 2, Factors(), 2, "ladder")
    assert [json.loads(line)["seed"] for line in trainer.file.read_text().splitlines()] == [1, 1, 2]


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


def test_trainer_keeps_a_diverged_run_without_loss(dataset_folder: Path, tmp_path: Path) -> None:
    trainer = Trainer(tmp_path / "results.jsonl", Dataset.open(dataset_folder), print)
    row = trainer.run(Entry("constant", Constant, "source"), SIZE, 1.0, 1, Factors(matrices=3), 2, "search")
    assert row["bits_per_byte"] is None
    assert row["diverged"] == "the loss became nan at step 0"


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
    speed = {(SIZE.name, "eager"): {"nanochat": {"median": 2.0}, "gpt": {"median": 1.0}}}
    row = peers.compare_size(make_runs(1.3), speed, SIZE, "gpt")
    assert row is not None
    assert row["flops"]["cm"] == pytest.approx(1.3, rel=1e-3)
    assert row["flops"]["low"] < 1.3 < row["flops"]["high"]
    assert row["eager_seconds"]["cm"] == pytest.approx(2.6, rel=1e-3)
    assert "1.30 (1." in peers.format_table([row])
    assert "not measured" in peers.format_table([row])


def test_compare_size_without_our_runs_is_none() -> None:
    assert peers.compare_size([run for run in make_runs(1.0) if run["entry"] == "nanochat"], {}, SIZE, "gpt") is None


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
