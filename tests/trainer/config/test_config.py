"""A run's configuration, from files and flags."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from trainer.accounting.budget import Budget
from trainer.accounting.training_size import choose_gpu_depth
from trainer.config.parsing import parse_config, read_config_file
from trainer.config.train_config import (
    ConfigError,
    TrainArgs,
    TrainConfig,
    choose_gpu_batch,
    choose_text_limit,
    is_short,
    resolve_config,
)


def test_flags_and_toml_file_give_same_config(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('arch = "smear"\nbudget = "20steps"\nlimit_bytes = 5\n[model]\ndepth = 3\n[train]\nbatch = 4\n')
    flags = ["--arch", "smear", "--budget=20steps", "--limit-bytes", "5", "--model.depth=3", "--train.batch", "4"]
    assert parse_config(["--config", str(file), "--out", "x"]) == parse_config(["--out", "x", *flags])


def test_json_file_gives_same_config(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"budget": "1h", "seed": 7, "model": {"depth": 2}, "train": {"compile": False}}))
    config = parse_config(["--config", str(file), "--out", "x"])
    assert (config.budget, config.seed, config.model, config.train.compile) == ("1h", 7, {"depth": 2}, False)


def test_flags_override_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('budget = "20steps"\n[model]\ndepth = 3\nwindows = "SL"\n')
    config = parse_config(["--model.depth", "5", "--config", str(file), "--out", "x", "--budget", "9steps"])
    assert (config.budget, config.model) == ("9steps", {"depth": 5, "windows": "SL"})


def test_flag_words_may_be_joined_by_dash_or_underscore() -> None:
    assert parse_config(["--out", "x", "--limit_bytes", "16MiB"]) == parse_config(["--out", "x", "--limit-bytes=16MiB"])


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ([], "--out is required"),
        (["--out", "x", "--bogus", "1"], "there is no option --bogus"),
        (["--out", "x", "--budget", "0s"], "impossible"),
        (["--out", "x", "--budget", "soon"], "impossible budget 'soon'"),
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


@pytest.mark.parametrize(("name", "content"), [("a.toml", "arch ="), ("a.json", "{"), ("a.json", "[1]")])
def test_invalid_config_file_is_rejected(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match="the configuration"):
        parse_config(["--config", str(tmp_path / name), "--out", "x"])


def config(**fields: Any) -> TrainConfig:
    return TrainConfig(out=Path("x"), **fields)


def test_resolve_keeps_given_values() -> None:
    numbers = TrainArgs(sequence_length=64, batch=6, micro_batch=3, compile=True, evaluations=2, dev_tokens=100)
    resolved = resolve_config(config(train=numbers, model={"depth": 7}), "cpu")
    assert {**dataclasses.asdict(resolved), "precision": "auto", "muon_precision": "auto", "strategy": "auto"} == {
        **dataclasses.asdict(numbers),
        "chunk": 0,
        "device": "cpu",
        "devices": 1,
        "depth": 7,
    }


def test_resolve_short_cpu_run_is_small_fp32_uncompiled() -> None:
    resolved = resolve_config(config(budget="60s"), "cpu")
    assert (resolved.depth, resolved.sequence_length, resolved.precision, resolved.compile) == (2, 256, "fp32", False)
    assert choose_text_limit(config(budget="60s"), "cpu") == 16 * 2**20


def test_resolve_long_cpu_run_is_compiled_with_all_text() -> None:
    assert resolve_config(config(budget="2h"), "cpu").compile
    assert choose_text_limit(config(budget="2h"), "cpu") is None
    assert choose_text_limit(config(budget="60s"), "cuda") is None


def test_resolve_gpu_night_gets_fitting_model() -> None:
    resolved = resolve_config(config(budget="24h"), "cuda")
    assert (resolved.precision, resolved.compile, resolved.sequence_length) == ("bf16", True, 2048)
    assert 22 <= resolved.depth <= 26
    assert 2**18 <= resolved.tokens_per_step <= 2**20


@pytest.mark.parametrize(
    "budget", ["1s", "10m", "24h", "30d", "1steps", "1e9steps", "5B-tokens", "1e12flops", "1e24flops"]
)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_resolve_any_budget_is_consistent(budget: str, device: Any) -> None:
    resolved = resolve_config(config(budget=budget), device)
    assert resolved.batch % resolved.micro_batch == 0
    assert resolved.depth >= 2
    assert resolved.tokens_per_step <= 2**24


def test_resolve_more_compute_never_shrinks_model_or_batch() -> None:
    budgets = [Budget("seconds", float(seconds)) for seconds in (60, 600, 3600, 20_000, 86_400)]
    assert sorted(map(choose_gpu_depth, budgets)) == list(map(choose_gpu_depth, budgets))
    assert sorted(choose_gpu_batch(b, 2048) for b in budgets) == [choose_gpu_batch(b, 2048) for b in budgets]


def test_resolve_budget_below_one_step_is_rejected() -> None:
    with pytest.raises(ConfigError, match="one step is 2048 tokens"):
        resolve_config(config(budget="2000tokens"), "cpu")


@pytest.mark.parametrize("depth", [0, -1, 1.5, "4", True])
def test_depth_must_be_whole_number(depth: Any) -> None:
    with pytest.raises(ConfigError, match="depth must be a whole number"):
        resolve_config(config(model={"depth": depth}), "cpu")


def test_ten_minutes_is_not_short() -> None:
    assert is_short(Budget.parse("599s"))
    assert not is_short(Budget.parse("10m"))
