"""Runs continue as a later version of their architecture, or from an earlier checkpoint, without a loss spike."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from trainer.checkpoint import surgery
from trainer.checkpoint.store import find_latest_checkpoint
from trainer.config.parsing import parse_config
from trainer.errors import UserError
from trainer.models import rwkv5

Train = Callable[..., int]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def train_run(dataset_folder: Path) -> Train:
    def start(out: Path, *flags: Any) -> int:
        from trainer.train import main

        small = (
            "--train.batch",
            8,
            "--train.dev-tokens",
            2048,
            "--train.sample-tokens",
            0,
            "--train.precision",
            "fp32",
        )
        given = ("--dataset", dataset_folder, "--out", out, "--device", "cpu", "--threads", 1, *small, *flags)
        return main([str(flag) for flag in given])

    return start


@pytest.fixture(scope="module")
def base_run(train_run: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run of version 5.0 with all checkpoints."""
    out = tmp_path_factory.mktemp("surgery") / "first"
    shape = ("--arch", "rwkv5", "--version", "5.0", "--model.depth", 2, "--model.width", 64)
    rate = ("--train.sequence-length", 32, "--recipe.matrices.learning-rate", 0.003)
    assert train_run(out, *shape, *rate, "--budget", "120steps", "--checkpoint-every", "60steps", "--keep", 9) == 0
    return out


def dev_losses(out: Path) -> list[float]:
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if row["kind"] == "dev"]


def weights(run: Path) -> dict[str, torch.Tensor]:
    folder = find_latest_checkpoint(run)
    assert folder is not None
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("version", ["5.1", "5.2"])
def test_conversion_keeps_loss_and_records_lineage(
    train_run: Train, base_run: Path, version: str, tmp_path: Path
) -> None:
    assert train_run(tmp_path, "--from", base_run, "--arch", "rwkv5", "--version", version, "--budget", "6steps") == 0
    before, after = dev_losses(base_run), dev_losses(tmp_path)
    assert before[-1] < before[0] - 3
    assert abs(after[0] - before[-1]) < 0.02
    assert after[-1] < before[-1] + 0.2  # without a loss spike at the learning rates of the first steps
    run = json.loads((tmp_path / "run.json").read_text())
    assert (run["model"]["version"], run["from"]["versions"]) == (float(version), [5.0, float(version)])
    assert (run["from"]["name"], run["from"]["step"], run["from"]["new"]) == ("first/step-00000120", 120, [])
    assert {"blocks.0.att.gate.weight", "blocks.1.ffn.value.weight"} <= set(run["from"]["remade"])
    remade = set(run["from"]["remade"])
    assert not any("receptance" in name or "head" in name or "emb" in name for name in remade)


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


@pytest.mark.parametrize("bias", [0.0, 0.1, 3.0])
def test_neutral_gate_is_1_for_every_token(bias: float) -> None:
    torch.manual_seed(1)
    width = 128
    norm = torch.nn.LayerNorm(width)
    with torch.no_grad():
        norm.weight.copy_(1 + 0.3 * torch.randn(width))
        norm.bias.copy_(bias * torch.randn(width))
        tensors = {"b.ln1.weight": norm.weight.clone(), "b.ln1.bias": norm.bias.clone()}
        before = norm.bias.clone()
        surgery.add_neutral_gate(tensors, "b.")
        norm.bias.copy_(tensors["b.ln1.bias"])
        assert (norm.weight - tensors["b.ln1.weight"]).abs().max() <= 2 * surgery.MIN_WEIGHT
        norm.weight.copy_(tensors["b.ln1.weight"])
        x = norm(5 * torch.randn(500, width))
        gate = F.silu(x @ tensors["b.att.gate.weight"].T)
    torch.testing.assert_close(gate, torch.ones_like(gate), rtol=0, atol=1e-3)
    assert (norm.bias - before).abs().max() <= 2 * surgery.MIN_CONSTANT * norm.weight.abs().max()


def test_narrowing_drops_unused_units_first() -> None:
    torch.manual_seed(2)
    key, value = torch.randn(8, 4), torch.randn(4, 8)
    value[:, 2], key[5] = 0, 0
    names = {"ffn.time_mix_k": torch.rand(1, 1, 4), "ln2.weight": torch.ones(4), "ln2.bias": torch.zeros(4)}
    tensors = {"b.ffn.key.weight": key.clone(), "b.ffn.value.weight": value.clone()}
    tensors |= {f"b.{name}": tensor for name, tensor in names.items()}
    surgery.narrow_channel_mix(tensors, "b.", 6)
    kept = [0, 1, 3, 4, 6, 7]
    torch.testing.assert_close(tensors["b.ffn.key.weight"], key[kept])
    torch.testing.assert_close(tensors["b.ffn.value.weight"], value[:, kept])


def test_relu2_moments_equal_sample_moments() -> None:
    torch.manual_seed(3)
    for mean, deviation in ((0.3, 1.0), (-2.0, 0.7), (1.5, 0.2)):
        sample = (mean + deviation * torch.randn(400_000)).relu().square()
        found = surgery.compute_relu2_moments(torch.tensor([mean]), torch.tensor([deviation]))
        for mine, seen in zip(found, (sample.mean(), sample.square().mean()), strict=True):
            assert float(mine) == pytest.approx(float(seen), rel=0.05, abs=1e-4)


def test_run_from_earlier_step_starts_there(train_run: Train, base_run: Path, tmp_path: Path) -> None:
    assert train_run(tmp_path, "--from", base_run, "--step", 60, "--budget", "1steps") == 0
    lineage = json.loads((tmp_path / "run.json").read_text())["from"]
    assert (lineage["name"], lineage["step"], lineage["tokens"]) == ("first/step-00000060", 60, 60 * 8 * 32)
    assert lineage["remade"] == []
    assert abs(dev_losses(tmp_path)[0] - dev_losses(base_run)[-1]) > 1e-6


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--from", "RUN", "--step", "7"), "there is no checkpoint of step 7; it has 60, 120"),
        (("--from", "RUN", "--step", "last"), "--step cannot be 'last'"),
        (("--step", "7"), "--step needs --from with a run's folder"),
        (("--from", "RUN/checkpoints", "--step", "7"), "--step needs --from with a run's folder"),
    ],
)
def test_missing_step_is_rejected(flags: tuple[str, ...], sentence: str, base_run: Path, tmp_path: Path) -> None:
    given = [flag.replace("RUN", str(base_run)) for flag in flags]
    with pytest.raises(UserError, match=sentence):
        parse_config(["--out", str(tmp_path / "run"), *given])


def test_version_for_model_without_versions_is_rejected(
    train_run: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train_run(tmp_path, "--arch", "gpt", "--version", "5.1", "--budget", "1steps") == 2
    assert "gpt has no option 'version'" in capsys.readouterr().err
