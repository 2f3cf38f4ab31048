"""Runs continue as a later version of their architecture, or from an earlier checkpoint, without a loss spike."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.support.metrics_lines import dev_losses
from trainer.checkpoint import surgery
from trainer.errors import UserError
from trainer.models import rwkv5
from trainer.train import main


def test_conversion_to_next_version_is_exact() -> None:
    torch.manual_seed(0)
    configs = {v: rwkv5.Config(50, 40, depth=2, width=128, version=v) for v in (5.1, 5.2)}
    old, new = rwkv5.Model(configs[5.1]), rwkv5.Model(configs[5.2])
    with torch.no_grad():
        for parameter in old.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    fields = {v: dataclasses.asdict(config) for v, config in configs.items()}
    new.load_state_dict(surgery.convert_rwkv5(old.state_dict(), fields[5.1], fields[5.2]))
    tokens = torch.randint(0, 50, (2, 40))
    torch.testing.assert_close(new(tokens), old(tokens))
    with pytest.raises(UserError, match=r"a model of version 5.2: it can only be converted to a later one, not 5.0"):
        surgery.convert_rwkv5(new.state_dict(), fields[5.2], {**fields[5.2], "version": 5.0})


def test_run_from_earlier_step_starts_there(train: Callable[..., int], tiny_run: Path, tmp_path: Path) -> None:
    assert train(tmp_path, "--from", tiny_run, "--step", 20, "--budget", "1steps") == 0
    lineage = json.loads((tmp_path / "run.json").read_text())["from"]
    assert (lineage["name"], lineage["step"], lineage["tokens"]) == ("tiny/step-00000020", 20, 20 * 4 * 32)
    assert lineage["remade"] == []
    assert abs(dev_losses(tmp_path)[0] - dev_losses(tiny_run)[-1]) > 1e-6


@pytest.mark.slow
def test_conversion_keeps_loss_and_records_lineage(dataset_folder: Path, tmp_path: Path) -> None:
    small = ("--train.batch", "8", "--train.dev-tokens", "2048", "--train.sample-tokens", "0", "--threads", "1")
    machine = ("--device", "cpu", "--train.precision", "fp32")
    given = ["--dataset", str(dataset_folder), "--arch", "rwkv5", *machine, *small]
    shape = ("--version", "5.0", "--model.depth", "2", "--model.width", "64", "--train.sequence-length", "32")
    rate = ("--recipe.matrices.learning-rate", "0.003", "--budget", "120steps")
    first = tmp_path / "first"
    assert main([*given, "--out", str(first), *shape, *rate]) == 0
    before = dev_losses(first)
    assert before[-1] < before[0] - 3
    for version in ("5.1", "5.2"):
        out = tmp_path / version
        flags = ["--from", str(first), "--version", version, "--budget", "6steps"]
        assert main([*given, "--out", str(out), *flags]) == 0
        after = dev_losses(out)
        assert abs(after[0] - before[-1]) < 0.02
        assert after[-1] < before[-1] + 0.2  # without a loss spike at the learning rates of the first steps
        run = json.loads((out / "run.json").read_text())
        assert (run["model"]["version"], run["from"]["versions"]) == (float(version), [5.0, float(version)])
        assert (run["from"]["name"], run["from"]["step"], run["from"]["new"]) == ("first/step-00000120", 120, [])
        assert {"blocks.0.att.gate.weight", "blocks.1.ffn.value.weight"} <= set(run["from"]["remade"])
        kept = ("receptance", "head", "emb")
        assert not any(part in name for name in run["from"]["remade"] for part in kept)
