"""Presets: their values, and what overrides them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from trainer.accounting.training_size import choose_gpu_depth, compute_model_size, estimate_memory
from trainer.cli import presets as presets_command
from trainer.config.parsing import parse_config
from trainer.config.presets import RUN_PRESETS
from trainer.config.train_config import ConfigError, TrainConfig, choose_gpu_batch, resolve_config

Train = Callable[..., int]


def parse_preset(tmp_path: Path, *flags: str) -> TrainConfig:
    return parse_config(["--out", str(tmp_path / "run"), *flags])


@pytest.mark.parametrize("name", RUN_PRESETS)
def test_preset_resolves(tmp_path: Path, name: str) -> None:
    config = parse_preset(tmp_path, "--preset", name)
    resolved = resolve_config(config, "cpu" if config.device == "cpu" else "cuda")
    given = RUN_PRESETS[name].values
    assert config.preset == name
    assert (resolved.batch, resolved.sequence_length) == (given["train.batch"], given["train.sequence_length"])
    assert resolved.depth == given.get("model.depth", resolved.depth)


@pytest.mark.parametrize(("name", "depth", "batch"), [("daily-h100", 24, 256), ("speedrun-h100", 10, 128)])
def test_gpu_preset_sizes_equal_computed_ones(tmp_path: Path, name: str, depth: int, batch: int) -> None:
    config = parse_preset(tmp_path, "--preset", name)
    budget = config.parsed_budget
    assert (choose_gpu_depth(budget), choose_gpu_batch(budget, 2048)) == (depth, batch)
    assert (config.model["depth"], config.train.batch) == (depth, batch)


@pytest.mark.parametrize("name", [name for name, preset in RUN_PRESETS.items() if preset.values["device"] == "cuda"])
def test_preset_for_cuda_trains_in_bf16(name: str) -> None:
    assert RUN_PRESETS[name].values["train.precision"] == "bf16"


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


def test_small_track_equals_cpu_ladder_preset(tmp_path: Path) -> None:
    config = parse_preset(tmp_path, "--preset", "cpu-ladder")
    assert (config.budget, config.threads, config.model) == ("1e13flops", 2, {"depth": 2})
    assert (config.train.batch, config.train.sequence_length, config.train.precision) == (8, 256, "fp32")


def test_flag_overrides_file_and_file_overrides_preset(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        'preset = "tiny"\nbudget = "7steps"\n[train]\nbatch = 2\nsequence_length = 16\n[model]\ndepth = 3\n'
    )
    config = parse_preset(tmp_path, "--config", str(file), "--train.batch", "1")
    assert (config.budget, config.train.batch, config.train.sequence_length) == ("7steps", 1, 16)
    assert (config.model, config.tokenizer, config.threads) == ({"depth": 3}, "bpe:512", 1)
    assert parse_preset(tmp_path, "--config", str(file), "--preset", "cpu-demo").tokenizer == "bpe:8192"


def test_dataset_replaces_preset_corpus(tmp_path: Path) -> None:
    config = parse_preset(tmp_path, "--preset", "tiny", "--dataset", "somewhere")
    assert (config.corpus, config.tokenizer, config.limit_bytes) == (None, None, None)


def test_base_checkpoint_keeps_shape_and_takes_preset_rows(tmp_path: Path, tiny_run: Path) -> None:
    config = parse_preset(tmp_path, "--preset", "cpu-demo", "--from", str(tiny_run))
    assert (config.model, config.train.sequence_length, config.budget) == ({"depth": 2}, 256, "3m")
    assert config.tokenizer == str(tiny_run / "tokenizer.json")


def test_unknown_preset_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no preset 'nightly'; the presets are daily-h100, "):
        parse_preset(tmp_path, "--preset", "nightly")


def test_tiny_preset_trains_and_is_recorded(train: Train, dataset_folder: Path, tmp_path: Path) -> None:
    from trainer.train import main

    flags = ["--preset", "tiny", "--dataset", str(dataset_folder), "--budget", "3steps", "--out", str(tmp_path)]
    assert main(flags) == 0
    assert json.loads((tmp_path / "run.json").read_text())["config"]["given"]["preset"] == "tiny"


def test_presets_command_lists_descriptions(capsys: pytest.CaptureFixture[str]) -> None:
    assert presets_command.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(RUN_PRESETS)
    assert all(line.endswith(".") for line in lines)
    assert presets_command.main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["budget"] == "24h"


def test_preset_without_name_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        parse_preset(tmp_path, "--preset=")
