"""Work that earlier counters missed: it is in the graph, so it is charged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.cheats.base import WIDTH, T, V, cases_from, vary_features

REPEATS = 8


def repeat(work: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor, Tensor], Tensor]:
    def change(model: Any, x: Tensor, tokens: Tensor) -> Tensor:
        for _ in range(REPEATS):
            x = work(model, x)
        return x

    return change


def mix(model: Any, x: Tensor) -> Tensor:
    return torch.tanh(model.mix(x))


def multiply_in_place(model: Any, x: Tensor) -> Tensor:
    flat = x.flatten(0, 1)
    return torch.zeros_like(flat).addmm_(flat, model.mix.weight).view_as(x)


def convolve(model: Any, x: Tensor) -> Tensor:
    return F.conv1d(F.pad(x.transpose(1, 2), (2, 0)), model.mix.weight[..., None].expand(-1, -1, 3)).transpose(1, 2)


def transform(model: Any, x: Tensor) -> Tensor:
    return torch.fft.irfft(torch.fft.rfft(x, dim=-1) * 0.9, n=WIDTH, dim=-1)


def look_up(model: Any, x: Tensor) -> Tensor:
    numbers = (x.detach() * 8).long().clamp(0, V - 1)
    return torch.tanh(x + F.embedding_bag(numbers.flatten(0, 1), model.embedding.weight, mode="mean").view_as(x))


def multiply_complex(model: Any, x: Tensor) -> Tensor:
    """A product of complex matrices is four of real ones."""
    return torch.tanh((torch.complex(x, x) @ torch.complex(model.mix.weight, model.mix.weight)).imag)


def pool(model: Any, x: Tensor) -> Tensor:
    """The mean of the last 16 positions, in windows that overlap."""
    return F.avg_pool1d(F.pad(x.transpose(1, 2), (15, 0)), 16, 1).transpose(1, 2)


def deep_unless_counted(model: Any, x: Tensor, tokens: Tensor) -> Tensor:
    is_counted = any(isinstance(mode, FlopCounterMode) for mode in _get_current_dispatch_mode_stack())
    return x if is_counted else repeat(mix)(model, x, tokens)


def deep_in_training(model: Any, x: Tensor, tokens: Tensor) -> Tensor:
    return repeat(mix)(model, x, tokens) if model.training else x


def deep_in_evaluation(model: Any, x: Tensor, tokens: Tensor) -> Tensor:
    return x if model.training else repeat(mix)(model, x, tokens)


CASES = cases_from(
    {
        name: vary_features(change)
        for name, change in {
            "is shallow while it is counted": deep_unless_counted,
            "is deep in training only": deep_in_training,
            "is deep when it is scored": deep_in_evaluation,
            "multiplies in place (addmm_)": repeat(multiply_in_place),
            "convolves": repeat(convolve),
            "transforms (FFT)": repeat(transform),
            "looks up bags of rows": repeat(look_up),
            "multiplies complex matrices": repeat(multiply_complex),
            "pools windows that overlap": repeat(pool),
            "sorts": repeat(lambda m, x: x.sort(-1).values),
            "measures distances": repeat(lambda m, x: torch.cdist(x, m.mix.weight) / 8),
            "scans": repeat(lambda m, x: x.cumsum(1) / T),
            "contracts (einsum)": repeat(lambda m, x: torch.einsum("btd,de->bte", x, m.mix.weight)),
            "works element by element": repeat(lambda m, x: x.sin().exp().log1p()),
        }.items()
    },
    "charged",
)
