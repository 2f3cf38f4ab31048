"""The update is AdamW's, and each operation is rounded separately."""

from __future__ import annotations

import numpy as np
import torch

from trainer.swarm.adamw import AdamW

SETTINGS = {"learning_rate": 0.01, "weight_decay": 0.1, "betas": (0.9, 0.95), "epsilon": 1e-8}


def test_update_is_close_to_torch() -> None:
    torch.manual_seed(1)
    weights = {"matrix": torch.randn(30, 20), "vector": torch.randn(30)}
    torch_weights = [tensor.clone().requires_grad_() for tensor in weights.values()]
    optimizer = AdamW(weights, frozenset({"matrix"}), **SETTINGS)
    groups = [{"params": torch_weights[:1], "weight_decay": 0.1}, {"params": torch_weights[1:], "weight_decay": 0.0}]
    torch_optimizer = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95), eps=1e-8)
    for number in range(1, 20):
        gradients = [torch.randn_like(tensor) for tensor in torch_weights]
        factor = number / 20
        for group in torch_optimizer.param_groups:
            group["lr"] = 0.01 * factor
        for tensor, gradient in zip(torch_weights, gradients, strict=True):
            tensor.grad = gradient.clone()
        torch_optimizer.step()
        optimizer.step(gradients, factor, number)
    for tensor, other in zip(weights.values(), torch_weights, strict=True):
        assert torch.allclose(tensor, other, rtol=1e-5, atol=1e-6)


def test_update_is_bit_exact_ieee_754() -> None:
    """numpy computes each operation separately, too: any machine that follows the standard computes these weights."""
    torch.manual_seed(2)
    weight = torch.randn(1000)
    optimizer = AdamW({"w": weight}, frozenset({"w"}), **SETTINGS)
    w = weight.numpy().copy()
    average, square, one = np.zeros_like(w), np.zeros_like(w), np.float32
    for number in range(1, 6):
        gradient = torch.randn(1000)
        g, rate = gradient.numpy(), 0.01 * 0.7
        average = average * one(0.9) + g * one(1 - 0.9)
        square = square * one(0.95) + (g * g) * one(1 - 0.95)
        size = np.sqrt(square * one(1 / (1 - 0.95**number))) + one(1e-8)
        move = average * one(1 / (1 - 0.9**number)) / size * one(rate)
        w = w * one(1 - rate * 0.1) - move
        optimizer.step([gradient], 0.7, number)
        assert np.array_equal(weight.numpy(), w)
