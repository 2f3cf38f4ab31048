"""nanogpt equals GPT-2: parameters, initial values, logits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.models import nanogpt
from trainer.optim import optimizers as optim


def build_small_model() -> nanogpt.Model:
    torch.manual_seed(0)
    return nanogpt.Model(nanogpt.Config(100, 16, depth=2, width=32, heads=4))


def test_nanogpt_depth_12_has_gpt2_size() -> None:
    config = nanogpt.Config.sized(12, 50257, 1024)
    assert (config.depth, config.width, config.heads) == (12, 768, 12)
    with torch.device("meta"):
        model = nanogpt.Model(config)
    # GPT-2's 124,439,808 and 47 rows of padding.
    assert sum(p.numel() for p in model.parameters()) == 124_439_808 + 47 * 768


def compute_gpt2_logits(weights: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """An independent GPT-2, written from its description, for 2 blocks of 4 heads."""
    x = weights["embedding.weight"][tokens] + weights["positions.weight"][: tokens.size(1)]

    def normalize(name: str, x: Tensor) -> Tensor:
        centered = x - x.mean(-1, keepdim=True)
        scale = (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
        return centered / scale * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    for block in ("blocks.0", "blocks.1"):
        joint = linear(f"{block}.query_key_value", normalize(f"{block}.norm_1", x))
        heads = []
        for head in range(4):
            query, key, value = (part[..., 8 * head : 8 * head + 8] for part in joint.split(32, dim=-1))
            scores = query @ key.mT / math.sqrt(8)
            later = torch.ones_like(scores, dtype=torch.bool).triu(1)
            heads.append(scores.masked_fill(later, -math.inf).softmax(-1) @ value)
        x = x + linear(f"{block}.output", torch.cat(heads, dim=-1))
        hidden = linear(f"{block}.up", normalize(f"{block}.norm_2", x))
        x = x + linear(f"{block}.down", hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2)
    return normalize("norm", x) @ weights["embedding.weight"].T[:, :100]


@torch.no_grad()
def test_nanogpt_logits_equal_gpt2_reference() -> None:
    model = build_small_model()
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    tokens = torch.randint(0, 100, (2, 16))
    torch.testing.assert_close(model(tokens), compute_gpt2_logits(model.state_dict(), tokens), rtol=1e-4, atol=1e-4)


def test_nanogpt_initial_values_are_gpt2s() -> None:
    torch.manual_seed(0)
    model = nanogpt.Model(nanogpt.Config(512, 256, depth=8, width=128, heads=2))
    block: Any = model.blocks[3]
    assert model.embedding.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert block.up.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert block.down.weight.std().item() == pytest.approx(0.02 / 4, rel=0.02)
    assert not block.up.bias.any()


def test_nanogpt_recipe_decays_only_matrices() -> None:
    model = build_small_model()
    groups = {group.name: mine for group, mine in optim.assign_parameters(model, nanogpt.recipe(model.config))}
    assert all(parameter.ndim == 2 for parameter in groups["matrices"].values())
    assert all(parameter.ndim == 1 for parameter in groups["vectors"].values())


def test_nanogpt_training_reduces_loss() -> None:
    model = build_small_model()
    optimizers = optim.build_optimizers(model, nanogpt.recipe(model.config))
    tokens = torch.arange(17).repeat(4, 1) * 3 % 100
    losses = []
    for _ in range(24):
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        losses.append(loss.item())
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("fields", [{"heads": 3}, {"depth": 0}, {"heads": 0}])
def test_nanogpt_config_invalid_sizes_raise_value_error(fields: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="nanogpt: "):
        nanogpt.Config(100, 16, **{"depth": 2, "width": 32, "heads": 4, **fields})
