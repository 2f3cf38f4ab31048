"""A run's configuration, from files and flags, with presets and changes of an architecture's recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainer.accounting.budget import Budget
from trainer.accounting.training_size import compute_model_size, estimate_memory
from trainer.config.parsing import parse_config, read_config_file
from trainer.config.presets import RUN_PRESETS
from trainer.config.recipe_overrides import override_recipe
from trainer.config.train_config import (
    ConfigError,
    TrainConfig,
    choose_text_limit,
    is_short,
    resolve_config,
)
from trainer.models.base import ParameterGroup, Recipe, Schedule


def test_flags_and_file_give_same_config(tmp_path: Path) -> None:
    toml, json_file = tmp_path / "run.toml", tmp_path / "run.json"
    toml.write_text('arch = "smear"\nbudget = "20steps"\nlimit_bytes = 5\n[model]\ndepth = 3\n[train]\nbatch = 4\n')
    table = {"arch": "smear", "budget": "20steps", "limit_bytes": 5, "model": {"depth": 3}, "train": {"batch": 4}}
    json_file.write_text(json.dumps(table))
    flags = ["--arch", "smear", "--budget=20steps", "--limit-bytes", "5", "--model.depth=3", "--train.batch", "4"]
    expected = parse_config(["--out", "x", *flags])
    for file in (toml, json_file):
        assert parse_config(["--config", str(file), "--out", "x"]) == expected
    assert parse_config(["--out", "x", *flags, "--limit_bytes", "5"]) == expected


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ([], "--out is required"),
        (["--out", "x", "--bogus", "1"], "there is no option --bogus"),
        (["--out", "x", "--budget", "0s"], "impossible"),
        (["--out", "x", "--train.batch", "many"], "--train.batch cannot be 'many'"),
        (["--out", "x", "--train.batch", "0"], "train.batch must be at least 1"),
        (["--out", "x", "--train.batch", "6", "--train.micro-batch", "4"], "must divide"),
        (["--out", "x", "--logger", "paper"], "--logger cannot be 'paper'"),
        (["--out", "x", "--model", "5"], "--model cannot be '5'"),
        (["--out", "x", "--dataset", "d", "--corpus", "files:c"], "dataset replaces corpus, tokenizer and limit_bytes"),
        (["--out", "x", "--checkpoint-every", "3M-tokens"], "seconds or steps"),
        (["--out", "x", "--limit-bytes", "lots"], "is not a size"),
        (["--out", "x", "--seed", "-1"], "seed must be"),
        (["--out", "x", "--config", "absent.toml"], "cannot read the configuration absent.toml"),
    ],
)
def test_invalid_config_raises_one_line_error(flags: list[str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as refusal:
        parse_config(flags)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize(("name", "content"), [("c.toml", "arch = 'gpt'\n"), ("c.json", '{"arch": "gpt"}')])
def test_config_file_with_byte_order_mark_is_read(tmp_path: Path, name: str, content: str, encoding: str) -> None:
    (tmp_path / name).write_text(content, encoding=encoding)
    assert read_config_file(tmp_path / name) == {"arch": "gpt"}


def config(**fields: Any) -> TrainConfig:
    return TrainConfig(out=Path("x"), **fields)


def test_resolve_cpu_run_is_small_if_short_and_compiled_with_all_text_if_long() -> None:
    resolved = resolve_config(config(budget="60s"), "cpu")
    assert (resolved.depth, resolved.sequence_length, resolved.precision, resolved.compile) == (2, 256, "fp32", False)
    assert choose_text_limit(config(budget="60s"), "cpu") == 16 * 2**20
    assert resolve_config(config(budget="2h"), "cpu").compile
    assert choose_text_limit(config(budget="2h"), "cpu") is None
    assert choose_text_limit(config(budget="60s"), "cuda") is None
    assert [is_short(Budget.parse(text)) for text in ("599s", "10m")] == [True, False]


@pytest.mark.parametrize(
    "budget", ["1s", "10m", "24h", "30d", "1steps", "1e9steps", "5B-tokens", "1e12flops", "1e24flops"]
)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_resolve_any_budget_is_consistent(budget: str, device: Any) -> None:
    resolved = resolve_config(config(budget=budget), device)
    assert resolved.batch % resolved.micro_batch == 0
    assert resolved.depth >= 2
    assert resolved.tokens_per_step <= 2**24


@pytest.mark.parametrize("depth", [0, 1.5, "4", True])
def test_config_that_cannot_be_resolved_is_rejected(depth: Any) -> None:
    with pytest.raises(ConfigError, match="depth must be a whole number"):
        resolve_config(config(model={"depth": depth}), "cpu")
    with pytest.raises(ConfigError, match="one step is 2048 tokens"):
        resolve_config(config(budget="2000tokens"), "cpu")


def parse_preset(tmp_path: Path, *flags: str) -> TrainConfig:
    return parse_config(["--out", str(tmp_path / "run"), *flags])


@pytest.mark.parametrize("name", RUN_PRESETS)
def test_preset_resolves(tmp_path: Path, name: str) -> None:
    config = parse_preset(tmp_path, "--preset", name, "--dataset", "somewhere")
    resolved = resolve_config(config, "cpu" if config.device == "cpu" else "cuda")
    given = RUN_PRESETS[name].values
    assert config.preset == name
    assert (config.corpus, config.tokenizer, config.limit_bytes) == (None, None, None), "the dataset replaces them"
    assert (resolved.batch, resolved.sequence_length) == (given["train.batch"], given["train.sequence_length"])
    assert resolved.depth == given.get("model.depth", resolved.depth)
    assert config.device != "cuda" or config.train.precision == "bf16"


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [("gpu-8gb", 8), ("gpu-12gb", 12), ("gpu-16gb", 16), ("gpu-24gb", 24), ("speedrun-h100", 80), ("daily-h100", 80)],
)
def test_preset_fits_the_memory_of_its_card(name: str, gigabytes: int) -> None:
    values = RUN_PRESETS[name].values
    names = ("sequence_length", "micro_batch", "precision", "table_precision")
    train = {name: values[f"train.{name}"] for name in names}
    size = compute_model_size({"model": {"depth": values["model.depth"]}, "train": train})
    assert size is not None
    needed = sum(estimate_memory(size, {"train": train}).values())
    assert needed <= gigabytes * 1e9
    assert needed >= gigabytes * 2e9 / 3 or name == "speedrun-h100", "it uses most of the memory"


def test_flag_overrides_file_and_file_overrides_preset(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        'preset = "tiny"\nbudget = "7steps"\n[train]\nbatch = 2\nsequence_length = 16\n[model]\ndepth = 3\n'
    )
    config = parse_preset(tmp_path, "--config", str(file), "--train.batch", "1")
    assert (config.budget, config.train.batch, config.train.sequence_length) == ("7steps", 1, 16)
    assert (config.model, config.tokenizer, config.threads) == ({"depth": 3}, "bpe:512", 1)
    assert parse_preset(tmp_path, "--config", str(file), "--preset", "cpu-demo").tokenizer == "bpe:8192"


RECIPE = Recipe(
    groups=(
        ParameterGroup("embedding", ("embedding.*",), "adamw", learning_rate=0.1),
        ParameterGroup("matrices", ("*",), "muon", learning_rate=0.01),
    ),
    schedule=Schedule(warmup=0.1, warmdown=0.6),
)


def test_overrides_change_only_given_fields() -> None:
    changed = override_recipe(
        RECIPE,
        {
            "clip": 1,
            "schedule": {"warmdown": 0.5, "shape": "cosine"},
            "matrices": {"learning_rate": 1, "cautious": True},
            "embedding": {"betas": [0.8, 0.9], "match": ["embedding.*", "head.*"]},
        },
    )
    assert changed.clip == 1.0
    assert changed.schedule == Schedule(warmup=0.1, warmdown=0.5, shape="cosine")
    embedding, matrices = changed.groups
    assert matrices == ParameterGroup("matrices", ("*",), "muon", learning_rate=1.0, cautious=True)
    assert (embedding.betas, embedding.match) == ((0.8, 0.9), ("embedding.*", "head.*"))
    assert override_recipe(RECIPE, {}) == RECIPE
    for table in ({"warmup": 0.5, "warmdown": 0.5}, {"warmdown": 0.5, "warmup": 0.5}):
        assert override_recipe(RECIPE, {"schedule": table}).schedule == Schedule(0.5, 0.5)
    recipe = Recipe((ParameterGroup("value embeddings", ("*",), "adamw", learning_rate=0.1),))
    for name in ("value embeddings", "value_embeddings", "value-embeddings"):
        assert override_recipe(recipe, {f"{name}.learning_rate": 0.2}).groups[0].learning_rate == 0.2


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            {"matrix": {"learning_rate": 1.0}},
            "there is no recipe.matrix; this recipe has clip, l2wrap, schedule, embed",
        ),
        ({"clop": 1.0}, "recipe has no 'clop'; it has clip, l2wrap, the t"),
        ({"schedule.warm": 1.0}, "recipe.schedule has no 'warm'; it has final, "),
        ({"matrices": {"lr": 1.0}}, "recipe.matrices has no 'lr'; it has betas"),
        ({"matrices": 5}, "recipe has no 'matrices'"),
        ({"matrices": {"learning_rate": "fast"}}, "matrices.learning_rate cannot be 'fast': it is of type float"),
        ({"matrices": {"learning_rate": float("nan")}}, "cannot be nan"),
        ({"matrices": {"cautious": 1}}, "recipe.matrices.cautious cannot be 1: it is of type bool"),
        ({"matrices": {"optimizer": "sgd"}}, "cannot be 'sgd': it is muon or adamw or adamw8bit"),
        ({"embedding": {"normalized": True}}, "embedding.normalized is for muon"),
        ({"embedding": {"betas": [0.9, 1.0]}}, "embedding.betas must be at least 0 and below 1, not 1.0"),
        ({"embedding": {"match": "embedding.*"}}, "it is a list of names"),
        ({"schedule": {"shape": "triangle"}}, "it is trapezoid or cosine"),
        ({"schedule": {"warmdown": 0.95}}, "must fit into the budget"),
        ({"clip": 0}, "clip must be above 0"),
    ],
)
def test_invalid_override_raises_one_line_error(overrides: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        override_recipe(RECIPE, overrides)
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)
