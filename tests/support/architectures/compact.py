"""Public architectures of a few lines each: what mixes the positions of a row, or what replaces a block's MLP.

All are causal. `build_architecture` puts one into a small transformer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.models.base import LanguageModel, ParameterGroup, Recipe


@dataclass(frozen=True)
class Config:
    vocabulary_size: int
    sequence_length: int
    depth: int
    width: int = 32

    @classmethod
    def sized(cls, depth: int, vocabulary_size: int, sequence_length: int) -> Self:
        return cls(vocabulary_size, sequence_length, depth)


class Part(nn.Module):
    """Linear layers of the given widths, as multiples of the model's, and a function of them, the input and them."""

    def __init__(self, config: Config, widths: tuple[float, ...], compute: Callable[..., Tensor]) -> None:
        super().__init__()
        self.compute, self.length = compute, config.sequence_length
        self.layers = nn.ModuleList(nn.Linear(config.width, int(config.width * width)) for width in widths)
        self.output = nn.Linear(config.width, config.width)
        self.kernel = nn.Parameter(torch.randn(config.width, 1, config.sequence_length) / 8)
        self.square = nn.Parameter(torch.randn(config.sequence_length, config.sequence_length) / 8)
        self.lstm = nn.LSTM(config.width, config.width, batch_first=True) if compute is lstm else None
        self.keys = nn.Parameter(torch.randn(2, 8, config.width // 2))
        self.values = nn.Embedding(64, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.compute(self, x, *(layer(x) for layer in self.layers)))


def split(x: Tensor, heads: int = 2) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def mask(x: Tensor) -> Tensor:
    return torch.ones(x.size(-2), x.size(-2), device=x.device).tril() > 0


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    scores = query @ key.mT / query.size(-1) ** 0.5 + bias
    return (scores.masked_fill(~mask(query), -torch.inf).softmax(-1) @ value).transpose(1, 2).flatten(-2)


def alibi(part: Part, x: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    places = torch.arange(x.size(1), device=x.device)
    slopes = torch.tensor([0.5, 0.25], device=x.device)[:, None, None]
    return attend(split(query), split(key), split(value), slopes * (places - places[:, None]))


def grouped_query_attention(part: Part, x: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return attend(split(query), split(key, 1).repeat_interleave(2, 1), split(value, 1).repeat_interleave(2, 1))


def differential_attention(part: Part, x: Tensor, *q: Tensor) -> Tensor:
    return attend(split(q[0]), split(q[1]), split(q[4])) - 0.5 * attend(split(q[2]), split(q[3]), split(q[4]))


def linear_attention(part: Part, x: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query, key = F.elu(query) + 1, F.elu(key) + 1
    weights = (query @ key.mT) * mask(x)
    return weights @ value / weights.sum(-1, keepdim=True)


def retention(part: Part, x: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    places = torch.arange(x.size(1), device=x.device)
    decay = 0.9 ** (places[:, None] - places).clamp_min(0)
    return ((query @ key.mT) * decay * mask(x)) @ value


def gated_linear_attention(part: Part, x: Tensor, query: Tensor, key: Tensor, value: Tensor, gate: Tensor) -> Tensor:
    decay = F.logsigmoid(gate).cumsum(1) / 16
    return (((query * decay.exp()) @ (key * (-decay).exp()).mT) * mask(x)) @ value


def multi_latent_attention(part: Part, x: Tensor, query: Tensor, latent: Tensor) -> Tensor:
    return attend(split(query), split(latent, 1), split(latent, 1))  # all heads read one latent, absorbed in the query


def gated_convolution(part: Part, x: Tensor, value: Tensor, gate: Tensor) -> Tensor:
    padded = F.pad(value.mT, (6, 0))
    return F.conv1d(padded, part.kernel[..., :4], groups=value.size(-1), dilation=2).mT * gate.sigmoid()


def long_convolution(part: Part, x: Tensor, value: Tensor) -> Tensor:
    size = 2 * x.size(1)
    spectrum = torch.fft.rfft(value.mT, size) * torch.fft.rfft(part.kernel[:, 0, : x.size(1)], size)
    return torch.fft.irfft(spectrum, size)[..., : x.size(1)].mT


def gmlp(part: Part, x: Tensor, value: Tensor, gate: Tensor) -> Tensor:
    return value * (part.square[: x.size(1), : x.size(1)].tril() @ F.layer_norm(gate, gate.shape[-1:]) + 1)


def min_gru(part: Part, x: Tensor, gate: Tensor, hidden: Tensor) -> Tensor:
    kept = F.logsigmoid(-gate).cumsum(1)
    return (kept + torch.logcumsumexp(F.logsigmoid(gate) + F.logsigmoid(hidden) - kept, 1)).exp()


def lstm(part: Part, x: Tensor) -> Tensor:
    assert part.lstm is not None
    found: Tensor = part.lstm(x)[0]
    return found


def primer(part: Part, x: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    convolved = (F.conv1d(F.pad(y.mT, (2, 0)), part.kernel[..., :3], groups=y.size(-1)).mT for y in (query, key, value))
    return F.relu(attend(*map(split, convolved))).square()


def product_key_memory(part: Part, x: Tensor, query: Tensor) -> Tensor:
    first, second = (half @ keys.mT for half, keys in zip(query.chunk(2, -1), part.keys, strict=True))
    (a, i), (b, j) = first.topk(2), second.topk(2)
    weights = (a[..., :, None] + b[..., None, :]).flatten(-2).softmax(-1)
    return (weights[..., None] * part.values((8 * i[..., :, None] + j[..., None, :]).flatten(-2))).sum(-2)


def stochastic_depth(part: Part, x: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    found = attend(split(query), split(key), split(value))
    return found * (torch.rand(x.size(0), 1, 1, device=x.device) < 0.8) / 0.8 if part.training else found


PARTS: dict[str, tuple[Callable[..., Tensor], tuple[float, ...]]] = {
    "alibi": (alibi, (1, 1, 1)),
    "grouped_query_attention": (grouped_query_attention, (1, 0.5, 0.5)),
    "differential_attention": (differential_attention, (1, 1, 1, 1, 1)),
    "linear_attention": (linear_attention, (1, 1, 1)),
    "retention": (retention, (1, 1, 1)),
    "gated_linear_attention": (gated_linear_attention, (1, 1, 1, 1)),
    "multi_latent_attention": (multi_latent_attention, (1, 0.5)),
    "mixture_of_softmaxes": (linear_attention, (1, 1, 1)),
    "gated_convolution": (gated_convolution, (1, 1)),
    "long_convolution": (long_convolution, (1,)),
    "gmlp": (gmlp, (1, 1)),
    "min_gru": (min_gru, (1, 1)),
    "lstm": (lstm, ()),
    "primer": (primer, (1, 1, 1)),
    "product_key_memory": (product_key_memory, (1,)),
    "stochastic_depth": (stochastic_depth, (1, 1, 1)),
}


def build_architecture(name: str) -> Any:
    class Model(LanguageModel):
        def __init__(self, config: Config) -> None:
            super().__init__()
            self.config, width = config, config.width
            self.embedding = nn.Embedding(config.vocabulary_size, width)
            self.parts = nn.ModuleList(Part(config, PARTS[name][1], PARTS[name][0]) for _ in range(config.depth))
            self.mlps = nn.ModuleList(nn.Linear(width, width) for _ in range(config.depth))
            self.head = nn.Linear(width, config.vocabulary_size)
            self.mixture = nn.Linear(width, 2 * width + 2) if name == "mixture_of_softmaxes" else None

        def features(self, tokens: Tensor) -> Tensor:
            x = self.embedding(tokens)
            for part, mlp in zip(self.parts, self.mlps, strict=True):
                x = x + part(F.layer_norm(x, x.shape[-1:]))
                x = x + F.gelu(mlp(x))
            return x

        def logits(self, features: Tensor) -> Tensor:
            if self.mixture is not None:
                *parts, weights = self.mixture(features).split((features.size(-1), features.size(-1), 2), -1)
                found = self.head(torch.stack(parts, -2).tanh()).log_softmax(-1)
                return torch.logsumexp(found + weights.log_softmax(-1)[..., None], -2)
            logits: Tensor = self.head(features)
            return logits

    def recipe(config: Config) -> Recipe:
        return Recipe((ParameterGroup("all", ("*",), "adamw", learning_rate=1e-3),))

    return SimpleNamespace(Config=Config, Model=Model, recipe=recipe)
