"""What all weights of a model of 1.5 billion need on each of two cards of 24 GB: added up on shapes, without memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from trainer.config.presets import PRESETS
from trainer.models import load_architecture
from trainer.models.base import LanguageModel
from trainer.ops.losses import CHUNK_LOGITS

CARD = 24e9
KEPT_FREE = 2e9
"""CUDA's own context, the buffers of its libraries, and what the allocator cannot use: a guess on the safe side."""
FP32, BF16 = 4, 2
SHAPES = FakeTensorMode(allow_non_fake_inputs=True)
"""Tensors that have a shape and a device but no memory: as on the device meta, which knows no autocast."""
VALUES = PRESETS["finetune-1b5-2x24gb"].values


def on_shapes(arch: str, **fields: Any) -> LanguageModel:
    module = load_architecture(arch)
    sized = module.Config.sized(24, 65_536, VALUES["train.sequence_length"])
    with SHAPES:
        return module.Model(type(sized)(**{**vars(sized), **fields}))


def saved_by_one_block(model: LanguageModel) -> float:
    """Bytes that a block keeps for its backward pass at fp32 (autocast keeps about half of it), the mean of all."""
    weights = {id(parameter) for parameter in model.parameters()}
    total = 0

    def keep(tensor: Tensor) -> Tensor:
        nonlocal total
        total += 0 if id(tensor) in weights else tensor.numel() * tensor.element_size()
        return tensor

    rows, length = VALUES["train.micro_batch"], VALUES["train.sequence_length"]
    with SHAPES, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.features(torch.zeros(rows, length, dtype=torch.int64))
    return total / len(blocks(model))


def blocks(model: LanguageModel) -> nn.ModuleList:
    return max((m for m in model.modules() if isinstance(m, nn.ModuleList)), key=len)


def numbers(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def peak(model: LanguageModel) -> dict[str, float]:
    """Bytes on one card while it goes backward through the widest block, each part at its largest."""
    count, block = numbers(model), max(map(numbers, blocks(model)))
    outside = count - sum(map(numbers, blocks(model)))  # embedding and head: gathered for the whole step
    tokens = VALUES["train.micro_batch"] * VALUES["train.sequence_length"]
    width = max(module.embedding_dim for module in model.modules() if isinstance(module, nn.Embedding))
    return {
        "a half of weights, gradients and AdamW's two momenta": count * 4 * FP32 / VALUES["devices"],
        "weights in bf16, which autocast keeps through a pass": count * BF16,
        "embedding and head, gathered, and their gradient": outside * 2 * FP32,
        "a block gathered, the next one too, and a gradient": block * 3 * FP32,
        "the input of every block": len(blocks(model)) * tokens * width * FP32,
        "one block computed again": saved_by_one_block(model),
        "logits of a chunk and their gradient": CHUNK_LOGITS["cuda"] * 2 * FP32,
    }


@pytest.mark.parametrize(("arch", "fields"), [("rwkv5-1b5", {}), ("litgpt", {"name": "pythia-1.4b"})])
def test_finetune_preset_fits_card(arch: str, fields: dict[str, Any]) -> None:
    model = on_shapes(arch, **fields)
    assert 1.4e9 < numbers(model) < 1.65e9
    parts = peak(model)
    assert sum(parts.values()) < CARD - KEPT_FREE, parts


def test_unsharded_model_does_not_fit_card() -> None:
    """Why the preset shards: with `ddp` even 8-bit momenta leave no room (weights, gradients, momenta, buckets)."""
    count = numbers(on_shapes("rwkv5-1b5"))
    assert count * (FP32 + FP32 + 2 + FP32) > CARD - KEPT_FREE - count * BF16
