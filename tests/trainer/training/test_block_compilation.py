"""Modules of recurrent models are compiled block by block, and compute what the module computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from trainer.config.parsing import parse_config
from trainer.config.train_config import resolve_config
from trainer.models import rwkv5
from trainer.training import compilation
from trainer.training.objective import Objective

VOCABULARY, LENGTH = 50, 16


def compute_loss_and_gradients(objective: Objective, tokens: Tensor) -> list[Tensor]:
    objective.zero_grad()
    loss = objective(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    return [
        loss.detach(),
        *(parameter.grad.clone() for parameter in objective.parameters() if parameter.grad is not None),
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch.compile reads it of activations
def test_compiled_blocks_of_rwkv5_compute_its_loss_and_gradients(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compilation, "BACKEND", "aot_eager")
    torch.compiler.reset()
    torch.manual_seed(0)
    objective = Objective(rwkv5.Model(rwkv5.Config(VOCABULARY, LENGTH, depth=3, width=64)))
    tokens = torch.randint(0, VOCABULARY, (2, LENGTH + 1))
    plain = compute_loss_and_gradients(objective, tokens)
    features = objective.features

    flags = [
        "--arch",
        "rwkv5",
        "--train.compile",
        "true",
        "--train.sequence_length",
        str(LENGTH),
        "--out",
        str(tmp_path),
    ]
    compilation.compile_objective(objective, resolve_config(parse_config(flags), "cpu"))
    compiled = compute_loss_and_gradients(objective, tokens)

    assert objective.features == features, "the model as a whole is not compiled"
    assert len(compiled) == len(plain) > 1
    for ours, theirs in zip(compiled, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
