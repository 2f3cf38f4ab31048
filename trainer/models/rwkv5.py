"""RWKV-5 ("Eagle"): a recurrent state of fixed size instead of attention.

Each head has a 64 x 64 matrix that decays at a learned rate (arXiv 2404.05892, section 4, which describes version 5.2).

Two forms of one model (`trainer.ops.recurrence`): the parallel one, by chunks of tokens, for training and scoring, and
the recurrent one (`Model.step`) for generation, at constant memory and time per token. Versions:
- 5.0: decay and bonus are one number per head; the bonus is exp(time_first); no gate; 4x channel mix;
- 5.1: the bonus is time_faaaa itself, and the time mix has a gate; 3.5x channel mix;
- 5.2: as 5.1, with a decay and a bonus per channel.
Parameters have the names and shapes of the official weights (https://github.com/BlinkDL/RWKV-LM), so a checkpoint is in
the official layout. `trainer.checkpoint.surgery` converts weights to a later version.

Not covered: carrying the state from one training row to the next (`train.chunk` does so within a row, see
`trainer.training.chunked_bptt`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.models.base import LanguageModel, ParameterGroup, Recipe, Schedule
from trainer.ops.recurrence import compute_recurrence

HEAD = 64  # channels in a head, fixed in all published models

VERSIONS = (5.0, 5.1, 5.2)

SHAPES = {
    "tiny": (4, 256),
    "169m": (12, 768),
    "430m": (24, 1024),
    "1b5": (24, 2048),
    "3b": (32, 2560),
    "7b": (32, 4096),
}
"""Depth and width of the presets `rwkv5-tiny` (ours, for a CPU) and the published sizes."""


@dataclass(frozen=True)
class Config:
    vocabulary_size: int
    """Token ids are 0 .. vocabulary_size - 1."""
    sequence_length: int
    """Tokens in a training row. The model has no maximum context."""
    depth: int = 4
    """Blocks, at least 2: initial values interpolate between the first and the last block."""
    width: int = 256
    """Size of the residual stream, a multiple of 64, the size of a head."""
    version: float = 5.2
    """5.0, 5.1 or 5.2."""

    def __post_init__(self) -> None:
        if self.version not in VERSIONS:
            raise ValueError(f"rwkv5: version {self.version} is not one of 5.0, 5.1 and 5.2")
        if self.depth < 2:
            raise ValueError(f"rwkv5: depth {self.depth} is too small: initial values need at least 2 blocks")
        if self.width < HEAD or self.width % HEAD:
            raise ValueError(f"rwkv5: width {self.width} must be a multiple of {HEAD}, the size of a head")
        if self.vocabulary_size < 1:
            raise ValueError(f"rwkv5: a vocabulary of {self.vocabulary_size} tokens is too small")

    @classmethod
    def sized(cls, depth: int, vocabulary_size: int, sequence_length: int) -> Self:
        """Width is 64 x depth, as in the baseline."""
        return cls(vocabulary_size, sequence_length, depth=depth, width=HEAD * depth)

    @property
    def heads(self) -> int:
        return self.width // HEAD

    @property
    def has_gate(self) -> bool:
        return self.version > 5.0

    @property
    def hidden(self) -> int:
        """Width inside the channel mix."""
        return 4 * self.width if self.version == 5.0 else int(3.5 * self.width) // 32 * 32

    @property
    def decay_shape(self) -> tuple[int, ...]:
        """Shape of the decay and of the bonus."""
        return (self.heads, HEAD) if self.version == 5.2 else (self.heads,)

    @property
    def bonus_name(self) -> str:
        """Official name of the bonus parameter. In 5.0 it holds the logarithm."""
        return "time_first" if self.version == 5.0 else "time_faaaa"


def build_preset(name: str) -> SimpleNamespace:
    """Return this architecture at a size of `SHAPES`; the requested depth is ignored."""
    depth, width = SHAPES[name]

    class PresetConfig(Config):
        @classmethod
        def sized(cls, _depth: int, vocabulary_size: int, sequence_length: int) -> Self:
            return cls(vocabulary_size, sequence_length, depth=depth, width=width)

    return SimpleNamespace(Config=PresetConfig, Model=Model, recipe=recipe)


# --- the state and the layers -----------------------------------------------------------------------------------------


@dataclass
class RWKV5State:
    """A block's state, which generation carries from token to token."""

    time_shift: Tensor  # the last token's input to the time mix, `[B, D]`
    channel_shift: Tensor  # the last token's input to the channel mix, `[B, D]`
    heads: Tensor  # one matrix per head, `[B, H, N, N]`, in fp32 (or fp64) for every weight type

    @classmethod
    def empty(cls, config: Config, x: Tensor) -> Self:
        """Return the state before the first token, for block inputs like `x [B, T, D]`."""
        shift = x.new_zeros(x.size(0), config.width)
        wide = torch.promote_types(x.dtype, torch.float32)
        heads = torch.zeros(x.size(0), config.heads, HEAD, HEAD, dtype=wide, device=x.device)
        return cls(shift, shift, heads)


def shift_tokens(x: Tensor, last: Tensor) -> Tensor:
    """Return each position's predecessor in `x [B, T, D]`. `last [B, D]` precedes the first."""
    return torch.cat((last[:, None].to(x.dtype), x[:, :-1]), dim=1)


class TokenShiftMix(nn.Module):
    """Base of time mix and channel mix: interpolates inputs between the current and the previous token."""

    def add_ratios(self, **ratios: Tensor) -> None:
        for name, ratio in ratios.items():
            self.register_parameter(f"time_mix_{name}", nn.Parameter(ratio[None, None]))

    def interpolate(self, name: str, x: Tensor, before: Tensor) -> Tensor:
        return torch.lerp(before, x, self.get_parameter(f"time_mix_{name}").to(x.dtype))


class TimeMix(TokenShiftMix):
    """The replacement of attention: each head writes key-value pairs into its state and reads it."""

    def __init__(self, config: Config, block: int) -> None:
        super().__init__()
        self.config = config
        width, last = config.width, block / (config.depth - 1)
        ramp, steps = torch.arange(width) / width, 1 - block / config.depth
        self.add_ratios(k=ramp**steps, v=ramp**steps + 0.3 * last, r=ramp ** (steps / 2))
        if config.has_gate:
            self.add_ratios(g=ramp ** (steps / 2))
        count = math.prod(config.decay_shape)
        position = torch.arange(count) / max(count - 1, 1)  # a single head counts as the first one
        self.time_decay = nn.Parameter((-6 + 5 * position ** (0.7 + 1.3 * last)).view(config.decay_shape))
        bonus = self.initial_bonus(position, last).view(config.decay_shape)
        self.register_parameter(config.bonus_name, nn.Parameter(bonus))
        self.receptance = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, width, bias=False) if config.has_gate else None
        # The official code divides by 8 before a norm with epsilon 1e-5: the same as 64 times that epsilon.
        self.ln_x = nn.GroupNorm(config.heads, width, eps=64e-5)

    def initial_bonus(self, position: Tensor, last: float) -> Tensor:
        """Return the initial bonus of channels or heads. `position` and `last` (of the block) go from 0 to 1."""
        if self.config.version == 5.0:
            return torch.full_like(position, -3.0)
        zigzag = 0.1 * ((torch.arange(len(position)) + 1) % 3 - 1) if self.config.version == 5.2 else 0.0
        return last * (1 - position) + zigzag

    def decay_and_bonus(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return decay rates and bonus, `[H, N]` or `[H, 1]`. A channel's decay is exp(-rate)."""
        rate, bonus = self.time_decay.to(dtype).exp(), self.get_parameter(self.config.bonus_name).to(dtype)
        bonus = bonus.exp() if self.config.version == 5.0 else bonus
        return rate.view(self.config.heads, -1), bonus.view(self.config.heads, -1)

    def forward(self, x: Tensor, state: RWKV5State) -> tuple[Tensor, Tensor]:
        """Return `[B, T, D]` and the heads' next state."""
        before = shift_tokens(x, state.time_shift)
        r, k, v = (
            layer(self.interpolate(name, x, before)).unflatten(-1, (self.config.heads, HEAD)).transpose(1, 2)
            for name, layer in (("r", self.receptance), ("k", self.key), ("v", self.value))
        )
        # No autocast: a sum over a whole row does not fit into bf16's eight bits.
        with torch.autocast(x.device.type, enabled=False):
            dtype = state.heads.dtype
            r, k, v = r.to(dtype), k.to(dtype), v.to(dtype)
            rate, bonus = self.decay_and_bonus(dtype)
            output, heads = compute_recurrence(r, k, v, rate, bonus, state.heads)
            flat = output.transpose(1, 2).flatten(-2)
            normed = self.ln_x(flat.flatten(0, 1).to(self.ln_x.weight.dtype)).view_as(flat)
        normed = normed.to(x.dtype)
        if self.gate is not None:
            normed = normed * F.silu(self.gate(self.interpolate("g", x, before)))
        return self.output(normed), heads


class ChannelMix(TokenShiftMix):
    """The MLP, with ReLU^2 and a gate."""

    def __init__(self, config: Config, block: int) -> None:
        super().__init__()
        ratio = (torch.arange(config.width) / config.width) ** (1 - block / config.depth)
        self.add_ratios(k=ratio, r=ratio.clone())
        self.key = nn.Linear(config.width, config.hidden, bias=False)
        self.receptance = nn.Linear(config.width, config.width, bias=False)
        self.value = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor, state: RWKV5State) -> Tensor:
        before = shift_tokens(x, state.channel_shift)
        hidden = F.relu(self.key(self.interpolate("k", x, before))).square()
        return torch.sigmoid(self.receptance(self.interpolate("r", x, before))) * self.value(hidden)


class RWKV5Block(nn.Module):
    def __init__(self, config: Config, block: int) -> None:
        super().__init__()
        # For the embedding, as in official weights. Applied by the block, for which FSDP gathers its weights.
        self.ln0 = nn.LayerNorm(config.width) if block == 0 else None
        self.ln1 = nn.LayerNorm(config.width)
        self.ln2 = nn.LayerNorm(config.width)
        self.att = TimeMix(config, block)
        self.ffn = ChannelMix(config, block)

    def forward(self, x: Tensor, state: RWKV5State) -> tuple[Tensor, RWKV5State]:
        if self.ln0 is not None:
            x = self.ln0(x)
        time = self.ln1(x)
        mixed, heads = self.att(time, state)
        x = x + mixed
        channel = self.ln2(x)
        return x + self.ffn(channel, state), RWKV5State(time[:, -1], channel[:, -1], heads)


class Model(LanguageModel):
    bounded = False

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.emb = nn.Embedding(config.vocabulary_size, config.width)
        self.blocks = nn.ModuleList(RWKV5Block(config, block) for block in range(config.depth))
        self.ln_out = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary_size, bias=False)
        self.initialize()

    def initialize(self) -> None:
        """The official initial values: orthogonal matrices, and zeros where branches begin or end."""
        config = self.config
        nn.init.uniform_(self.emb.weight, -1e-4, 1e-4)  # ln0 brings it to size as soon as it has grown a little
        nn.init.orthogonal_(self.head.weight, gain=0.5 * math.sqrt(max(config.vocabulary_size / config.width, 1)))
        for number, block in enumerate(self.blocks):
            for matrix in (block.att.receptance, block.att.key, block.att.value):
                nn.init.orthogonal_(matrix.weight)
            if config.has_gate:
                nn.init.orthogonal_(block.att.gate.weight)
            nn.init.orthogonal_(block.ffn.key.weight, gain=math.sqrt(config.hidden / config.width))
            for matrix in (block.att.output, block.ffn.value, block.ffn.receptance):
                nn.init.zeros_(matrix.weight)
            nn.init.constant_(block.att.ln_x.weight, ((1 + number) / config.depth) ** 0.7)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.emb(tokens)

    def run_blocks(
        self, start: int, stop: int, x: Tensor, states: list[RWKV5State] | None = None
    ) -> tuple[Tensor, list[RWKV5State]]:
        """Run blocks start to stop - 1 on `x [B, T, D]`; return their output and their states after it.

        `states`: of these blocks, before x. None: x starts a row.
        """
        states = states or [RWKV5State.empty(self.config, x)] * (stop - start)
        after = []
        for number, before in zip(range(start, stop), states, strict=True):
            x, state = self.blocks[number](x, before)
            after.append(state)
        return x, after

    def advance(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, list[RWKV5State]]:
        x, after = self.run_blocks(0, len(self.blocks), self.embed(tokens), state)
        return self.ln_out(x), after

    def features(self, tokens: Tensor) -> Tensor:
        return self.advance(tokens)[0]

    def logits(self, features: Tensor) -> Tensor:
        return self.head(features)

    def step(self, token: Tensor, state: Any = None) -> tuple[Tensor, list[RWKV5State]]:
        """Return the logits `[B, V]` after one more token `[B]`, and the next state."""
        features, after = self.advance(token[:, None], state)
        return self.logits(features)[:, 0], after


def recipe(config: Config) -> Recipe:
    """Return the official groups: decay at twice the rate, 5.0's bonus at three times; weight decay on matrices only.

    The rate fits the official ones: 6e-4 at width 768, 3e-4 at 2048, 2e-4 at 4096. Below 768 it is a guess. The
    published sizes, from width 768 up, get RWKV-LM's whole recipe: 10 steps of warm-up, a cosine down to 1e-5 / 6e-4,
    gradients clipped at 1.0, L2Wrap. Smaller models get a trapezoid, which fits short budgets.
    """
    rate = 6e-4 * (768 / config.width) ** 0.65
    official = config.width >= 768
    cosine = Schedule(warmup=0.0, warmup_steps=10, shape="cosine", final=1e-5 / 6e-4)

    def group(name: str, *match: str, times: float = 1, weight_decay: float = 0) -> ParameterGroup:
        return ParameterGroup(name, match, "adamw", times * rate, weight_decay, betas=(0.9, 0.99), epsilon=1e-8)

    matrices = ("emb.*", "head.*", *(f"*.{name}.weight" for name in ("receptance", "key", "value", "gate", "output")))
    return Recipe(
        groups=(
            group("matrices", *matrices, weight_decay=0.001),
            group("decay", "*.time_decay", times=2),
            group("bonus", "*.time_first", times=3),
            group("vectors", "*.time_*", "*ln*"),
        ),
        schedule=cosine if official else Schedule(warmup=0.01, warmdown=0.8, final=0.1),
        clip=1.0 if official else None,
        l2wrap=1e-4 if official else 0.0,
    )
