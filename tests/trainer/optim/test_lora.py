"""LoRA adapters: they start at zero, only they are trained, and merging keeps the logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.support.metrics_lines import dev_losses
from tests.support.tiny import TINY
from trainer.checkpoint.files import load_weights
from trainer.checkpoint.store import find_latest_checkpoint, load_checkpoint_weights, read_run
from trainer.checkpoint.store import load_model as load_run_model
from trainer.models import ARCHITECTURES, load_architecture
from trainer.models.base import LanguageModel
from trainer.optim import LoraArgs, lora
from trainer.scoring.python_models import load_python_models
from trainer.scoring.run_folder import RunFolder
from trainer.train import main

Train = Callable[..., int]
FLAGS = ("--lora.rank", "4", "--recipe.adapters.learning-rate", "0.01", "--budget", "10steps")


@pytest.fixture(scope="module")
def adapted_run(tiny_run: Path, dataset_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten steps of adapters on the tiny run. For reading only."""
    out = tmp_path_factory.mktemp("runs") / "adapted"
    flags = ["--dataset", str(dataset_folder), "--from", str(tiny_run), *FLAGS, *TINY]
    assert main(["--out", str(out), *flags]) == 0
    return out


def small(name: str) -> LanguageModel:
    torch.manual_seed(1)
    module = load_architecture(name)
    return module.Model(module.Config.sized(2, 300, 16))


def test_adapted_model_starts_unchanged_and_training_changes_only_adapters(adapted_run: Path, tiny_run: Path) -> None:
    losses = dev_losses(adapted_run)
    assert losses[0] == dev_losses(tiny_run)[-1]
    assert losses[-1] < losses[0]
    after, before = (load_weights(find_latest_checkpoint(run)) for run in (adapted_run, tiny_run))
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    adapters = after.keys() - before.keys()
    assert adapters
    assert all(after[name].any() for name in adapters)
    assert not any(name.startswith(("embedding", "head")) for name in adapters)
    run = read_run(adapted_run)
    assert run["lora"] == {"rank": 4, "alpha": 16.0, "targets": "", "vectors": False}
    assert [group["name"] for group in run["recipe"]["groups"]] == ["adapters"]
    assert run["from"]["step"] == 30


def test_load_model_merges_adapters(adapted_run: Path) -> None:
    plain = load_run_model(adapted_run)
    assert not lora.has_adapters(plain)
    module = load_architecture("gpt")
    adapted = module.Model(module.Config(**read_run(adapted_run)["model"]))
    lora.add_adapters(adapted, LoraArgs(rank=4), 320)
    load_checkpoint_weights(find_latest_checkpoint(adapted_run), adapted)
    tokens = torch.randint(320, (2, 32), generator=torch.Generator().manual_seed(1))
    scored = load_python_models(RunFolder.open(adapted_run)).trained
    with torch.no_grad():
        wanted = adapted(tokens)
        for model in (plain, scored):
            torch.testing.assert_close(model(tokens), wanted, rtol=1e-4, atol=1e-5)


def test_run_from_lora_checkpoint_starts_merged(train: Train, adapted_run: Path, tmp_path: Path) -> None:
    assert train(tmp_path, "--from", adapted_run, "--budget", "1steps") == 0
    assert dev_losses(tmp_path)[0] == pytest.approx(dev_losses(adapted_run)[-1], rel=1e-4)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_adapters_merge_in_every_architecture(name: str) -> None:
    """A layer that computes past its `forward` would leave its adapter without a gradient."""
    model, tokens = small(name), torch.randint(300, (2, 16), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for parameter in model.parameters():  # branches that start at zero would hide what is before them
            parameter.add_(torch.randn_like(parameter) * 0.02)
    before = model(tokens).detach()
    names = lora.add_adapters(model, LoraArgs(rank=2), 300)
    torch.testing.assert_close(model(tokens), before)
    for module in model.modules():
        if isinstance(module, lora.LoraLinear):
            torch.nn.init.normal_(module.lora_up, std=0.02)
    after = model(tokens)
    after.logsumexp(-1).sum().backward()
    learning = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert learning == {f"{name}.{part}" for name in names for part in ("lora_down", "lora_up")}
    lora.merge_adapters(model)
    torch.testing.assert_close(model(tokens), after, rtol=1e-3, atol=1e-4)


def test_lora_targets_are_patterns_and_vectors_are_trained_if_configured() -> None:
    names = lora.add_adapters(small("gpt"), LoraArgs(rank=2, targets="*.query, *.1.mlp.up"), 300)
    assert [name.rpartition(".")[2] for name in names] == ["query", "query", "up"]
    model = small("rwkv5")
    lora.add_adapters(model, LoraArgs(rank=2, vectors=True), 300)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert "ln_out.weight" in trained
    assert "blocks.0.att.key.weight" not in trained
