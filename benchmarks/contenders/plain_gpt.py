"""GPT-2's architecture without code of ours: from torch's modules, and litgpt's, with torch's fused AdamW."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.contenders.base import SEQUENCE_LENGTH, BuildContender, Plan, count_steps
from trainer.accounting import flops
from trainer.models.base import LanguageModel


@dataclass(frozen=True)
class Shape:
    depth: int  # blocks
    width: int  # size of the residual stream; the MLP is four times as wide
    heads: int
    sequence_length: int  # tokens in a row
    batch: int  # rows in a step
    vocabulary_size: int
    device: str = "cpu"


class PlainBlock(nn.Module):
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


class PlainGPT(LanguageModel):
    """Learned positions, LayerNorm, biases, GELU, a tied head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary_size, shape.width)
        self.positions = nn.Embedding(shape.sequence_length, shape.width)
        self.blocks = nn.Sequential(*(PlainBlock(shape) for _ in range(shape.depth)))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary_size, bias=False)
        initialize(self)
        self.head.weight = self.tokens.weight

    def features(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.size(1), device=tokens.device)
        return self.norm(self.blocks(self.tokens(tokens) + self.positions(positions)))

    def logits(self, features: Tensor) -> Tensor:
        return self.head(features)


class LitGPT(LanguageModel):
    """litgpt's GPT in GPT-2's configuration, but without learned positions and with an untied head."""

    def __init__(self, shape: Shape) -> None:
        from litgpt import GPT, Config

        super().__init__()
        config = Config(
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
        self.gpt = GPT(config)
        initialize(self)

    def features(self, tokens: Tensor) -> Tensor:
        return self.gpt(tokens)

    def logits(self, features: Tensor) -> Tensor:
        return features


class PeerWithLoss(nn.Module):
    """A model with its loss over all logits at once, compiled as one graph."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten())


class Peer:
    """A model with AdamW at one rate, as a contender."""

    def __init__(self, plan: Plan, build_model: type[PlainGPT | LitGPT]) -> None:
        size, rows = plan.size, plan.tokens_per_step // SEQUENCE_LENGTH
        shape = Shape(size.depth, size.width, size.heads, SEQUENCE_LENGTH, rows, plan.vocabulary_size)
        model = build_model(shape)
        self.model: nn.Module = PeerWithLoss(model)
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.flops_per_token = flops.count_flops(model, torch.zeros(1, SEQUENCE_LENGTH, dtype=torch.int64))
        self.steps = count_steps(plan, self.flops_per_token)
        self.compute_loss = torch.compile(self.model) if plan.is_compiled else self.model
        decay = {"betas": (0.9, 0.95), "weight_decay": 0.1}
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, fused=True, **decay)  # type: ignore[arg-type]

    def train_step(self, inputs: Tensor, targets: Tensor, step: int) -> float:
        loss = self.compute_loss(inputs, targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    @torch.no_grad()
    def compute_losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.model.model(inputs).flatten(0, 1), targets.flatten(), reduction="none")


def initialize(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.02)


PEERS: dict[str, BuildContender] = {
    "torch": lambda plan: Peer(plan, PlainGPT),
    "litgpt": lambda plan: Peer(plan, LitGPT),
}
