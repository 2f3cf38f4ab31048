"""Runs of models with an n-gram memory: they learn, clip, resume exactly and know what a table costs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.gpt_models import build_random_model
from trainer.accounting.flops import count_parameters
from trainer.checkpoint.store import get_checkpoint_path
from trainer.distributed.devices import compute_gradient_norm
from trainer.errors import ExitCode
from trainer.optim.optimizers import list_densely_trained

FLAGS = ("--budget", "8steps", "--checkpoint-every", "4steps", "--model.memory_rows", "200")


def test_resumed_run_with_a_memory_equals_an_uninterrupted_one(train: Callable[..., int], tmp_path: Path) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    assert train(whole, *FLAGS, "--recipe.clip", "0.05") == ExitCode.OK
    half = get_checkpoint_path(whole, 4)
    shutil.copytree(half, get_checkpoint_path(resumed, 4))
    state = torch.load(half / "optimizer.pt", weights_only=True)
    assert [tuple(values["square"].shape) for each in state for values in each["state"].values() if "square" in values]
    assert train(resumed, *FLAGS, "--recipe.clip", "0.05") == ExitCode.OK
    weights = [load_file(get_checkpoint_path(out, 8) / "model.safetensors") for out in (whole, resumed)]
    assert weights[0]["memory.table"].any()
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())


def test_run_with_a_memory_on_two_devices_is_refused(
    train: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, *FLAGS, "--devices", "2") == ExitCode.USER_ERROR
    assert "one device" in capsys.readouterr().err


def test_accounting_of_a_memory_knows_its_table() -> None:
    model, plain = build_random_model(memory_rows=40), build_random_model()
    table = 2 * 40 * 32
    assert count_parameters(model)["embedding"] - count_parameters(plain)["embedding"] == table
    dense = sum(p.numel() for p in list_densely_trained(model))
    assert sum(p.numel() for p in model.parameters()) - dense == table


def test_gradient_norm_includes_the_rows_of_a_memory() -> None:
    model = build_random_model(memory_rows=40)
    assert model.memory is not None
    model.memory(torch.tensor([[11, 12]])).backward(torch.full((1, 2, 1, 32), 0.5))
    # Two tokens read two rows each, whose gradients have 32 numbers of 0.5.
    norm = compute_gradient_norm(list(model.parameters()))
    assert norm is not None
    assert float(norm) == pytest.approx(0.5 * (4 * 32) ** 0.5)
