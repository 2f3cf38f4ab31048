"""Honest architectures that earlier checks refused, or that look like cheats."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.cheats.base import T, cases_from, vary, vary_features


def mix_by_fourier(model: Any, x: Tensor, tokens: Tensor) -> Tensor:
    """A causal long convolution: padded to twice the length, so that nothing wraps around."""
    decay = 0.9 ** torch.arange(T, dtype=torch.float32)[:, None]
    spectrum = torch.fft.rfft(x, n=2 * T, dim=1) * torch.fft.rfft(decay, n=2 * T, dim=0)
    return x + torch.fft.irfft(spectrum, n=2 * T, dim=1)[:, :T]


def add_bags(model: Any, x: Tensor, tokens: Tensor) -> Tensor:
    """Add embeddings of the last three tokens, as bags."""
    windows = F.pad(tokens, (2, 0)).unfold(1, 3, 1)
    return x + F.embedding_bag(windows.flatten(0, 1), model.embedding.weight, mode="mean").view_as(x)


def draw_depth(model: Any, x: Tensor, tokens: Tensor) -> Tensor:
    for _ in range(3):
        keep = (torch.rand((), device=x.device) < 0.5).float() if model.training else 0.5
        x = x + keep * torch.tanh(model.mix(x))
    return x


def compute_in_bf16(model: Any, x: Tensor, tokens: Tensor) -> Tensor:
    return (x.bfloat16() @ model.mix.weight.bfloat16()).float()


def drop_out(model: Any, x: Tensor, tokens: Tensor) -> Tensor:
    return F.dropout(x, 0.1, model.training)


def route_to_experts(model: Any, x: Tensor, tokens: Tensor) -> Tensor:
    gates = x[..., :4].softmax(-1)
    values, chosen = gates.topk(2, dim=-1)
    weights = torch.zeros_like(gates).scatter(-1, chosen, values)
    return x + (weights[..., None] * torch.stack([torch.tanh(model.mix(x) * k) for k in range(4)], -2)).sum(-2)


def attend(model: Any, x: Tensor, tokens: Tensor) -> Tensor:
    return x + F.scaled_dot_product_attention(x, x, x, is_causal=True)


def normalize_by_row(model: Any, x: Tensor, tokens: Tensor) -> Tensor:
    """Divide by the largest value so far."""
    return x / (1e-3 + x.abs().amax(-1, keepdim=True).cummax(1).values)


def solve_for_weights(model: Any, x: Tensor, tokens: Tensor) -> Tensor:
    """Mix by the inverse and the Cholesky factor of a positive matrix."""
    weight = model.mix.weight
    positive = weight @ weight.T + torch.eye(weight.size(0))
    return x @ torch.linalg.inv(positive) + x @ torch.linalg.cholesky(positive)


def multiply_bilinearly(model: Any, x: Tensor, tokens: Tensor) -> Tensor:
    weight = model.mix.weight[:, :, None] * model.mix.weight[:, None]
    return x + F.bilinear(x.contiguous(), torch.tanh(x), weight)


def pool_features(model: Any, x: Tensor, tokens: Tensor) -> Tensor:
    return x + F.adaptive_avg_pool1d(x, 4).repeat_interleave(x.size(-1) // 4, -1)


CASES = cases_from(
    {
        "honest: the base of all cheats": vary,
        **{
            f"honest: {name}": vary_features(change)
            for name, change in {
                "FFT mixer": mix_by_fourier,
                "EmbeddingBag of the last tokens": add_bags,
                "random depth": draw_depth,
                "bf16 products": compute_in_bf16,
                "dropout": drop_out,
                "experts with top-k": route_to_experts,
                "attention": attend,
                "running maximum": normalize_by_row,
                "inverse and Cholesky factor": solve_for_weights,
                "bilinear products": multiply_bilinearly,
                "adaptive pooling": pool_features,
            }.items()
        },
    },
    "honest",
)
