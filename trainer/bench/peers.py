"""Other implementations of the shape, without any code of ours in the model."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.bench.spec import Shape


class PeerBlock(nn.Module):
    """Pre-norm attention and MLP, as in GPT-2."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm_1 = nn.LayerNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)
        self.norm_2 = nn.LayerNorm(shape.width)
        self.mlp = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * shape.width, shape.width),
        )

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm_1(x)).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm_2(x))


class PlainGPT(nn.Module):
    """GPT-2 built from torch's modules: learned positions, LayerNorm, biases, GELU, a tied head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary_size, shape.width)
        self.positions = nn.Embedding(shape.sequence_length, shape.width)
        self.blocks = nn.Sequential(*(PeerBlock(shape) for _ in range(shape.depth)))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary_size, bias=False)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.size(1), device=tokens.device)
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions(positions))))


def build_litgpt(shape: Shape) -> nn.Module:
    """Build litgpt's GPT in GPT-2's configuration, but without learned positions and with an untied head."""
    from litgpt import GPT, Config

    model = GPT(
        Config(
            name="gpt-2",
            n_layer=shape.depth,
            n_embd=shape.width,
            n_head=shape.heads,
            block_size=shape.sequence_length,
            vocab_size=shape.vocabulary_size,
            padded_vocab_size=shape.vocabulary_size,
            parallel_residual=False,
            rotary_percentage=0.0,
            gelu_approximate="tanh",
        )
    )
    for parameter in model.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.02)
    return model


PEER_BUILDERS = {"torch": PlainGPT, "litgpt": build_litgpt}
