"""The baseline: a plain transformer with what the field agreed on by 2026.

Always there: no biases, RMSNorm without parameters before each block and at the end (arXiv 1910.07467, eq. 4). All else
is a field of `Config`, with a sentence and where it is from. One dial, depth, computes the rest: width is 64 x depth.

The figures behind the defaults are nanochat's (https://github.com/karpathy/nanochat) and modded-nanogpt's
(https://github.com/KellerJordan/modded-nanogpt), two recipes that were tuned in the open; `benchmarks/ablations.py`
measures ours. From top to bottom: `Config`, what blocks are told and remember, attention, MLP, block, model, recipe.

Not covered: dropout, fewer heads for keys than for queries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.models.base import LanguageModel, ParameterGroup, Recipe, Schedule
from trainer.models.scaling import weight_decay
from trainer.ops.attention import attention
from trainer.ops.elementwise import capped, norm, rotate, squared_relu

PADDING = 64
"""Embedding and head have a multiple of this many rows: odd sizes are slow on GPUs. `logits` cuts the rest off."""

GATE_CHANNELS = 32
"""Gates read this many channels of their input: enough to decide by, and cheap."""


@dataclass(frozen=True)
class Config:
    vocabulary_size: int
    """Token ids are 0 .. vocabulary_size - 1."""
    sequence_length: int
    """Tokens in a training row."""
    depth: int = 4
    """Blocks."""
    width: int = 256
    """Size of the residual stream."""
    heads: int = 4
    """Attention heads; each is width / heads wide, an even number for the rotation."""

    windows: str = "L"
    """Attention of block i is letter i of this, repeated: L sees all before it, S the last `short_window` tokens. The
    last block always sees all. SSSL (Longformer's idea, arXiv 2004.05150, section 3.1) is for long rows on a GPU."""
    short_window: int = 128
    """Tokens an S block sees, the current one among them."""
    document_mask: bool = False
    """Attention and smear stay within a document, which starts at the end-of-text token (arXiv 2402.13991, section 2).
    On a GPU this costs a wait in each block (see `trainer.ops.attention`)."""
    end_of_text: int = -1
    """Id of the end-of-text token, for `document_mask`; the trainer fills it in."""
    rotary: bool = True
    """Queries and keys are turned by their position's angle (RoFormer, arXiv 2104.09864, eq. 34); else no positions."""
    rope_base: float = 10_000.0
    """The slowest rotation takes about 2 pi times this many tokens."""
    qk_norm: bool = True
    """RMSNorm on queries and keys and one gain per head (after Query-Key Normalization, arXiv 2010.04245, eq. 4)."""
    value_embeddings: bool = True
    """Every second block, the last among them, adds to its values an embedding of the token, through a gate per head
    (value residual learning, arXiv 2410.17897, section 3; as tables in modded-nanogpt, gated in nanochat)."""

    mlp: str = "relu2"
    """`relu2`: ReLU^2, 4 x width inside (Primer, arXiv 2109.08668, section 4.2). `swiglu`: a gated SiLU of as many
    parameters (arXiv 2002.05202, eq. 6). Which is better is disputed."""

    embedding_norm: bool = True
    """RMSNorm on the embedding, so that a row's size does not matter (modded-nanogpt)."""
    embedding_smear: bool = True
    """Adds to each embedding a gated part of the one before: bigrams for nearly nothing (modded-nanogpt, nanochat).
    Not to be confused with the architecture `smear`, which mixes keys."""
    residual_lambdas: bool = True
    """Each block's input is the residual stream times a learned number (modded-nanogpt)."""
    x0_lambdas: bool = True
    """Each block's input has a learned multiple of the embedding added (modded-nanogpt)."""
    backout: bool = True
    """A learned multiple of the stream half-way up is subtracted at the end: what only the upper blocks needed to know
    does not reach the head (modded-nanogpt)."""
    zero_init: bool = True
    """Output projections start at zero, so a block starts as the identity (arXiv 1901.09321's idea; without: 1 / fan-in
    over the number of branches, as GPT-2)."""

    tied_head: bool = False
    """The head is the embedding (arXiv 1608.05859). Saves parameters; a table of its own learns better."""
    softcap: float = 15.0
    """Logits stay within +- this through a tanh (Gemma 2, arXiv 2408.00118, section 2); 0 leaves them alone."""

    def __post_init__(self) -> None:
        if self.depth < 1 or self.heads < 1 or self.width < 2:
            raise ValueError(f"gpt: depth {self.depth}, heads {self.heads} and width {self.width} must be positive")
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise ValueError(f"gpt: width {self.width} must be an even multiple of heads {self.heads}")
        if not self.windows or set(self.windows) - {"S", "L"}:
            raise ValueError(f"gpt: windows is a word of the letters S and L, not {self.windows!r}")
        if self.short_window < 1 or self.rope_base <= 0 or self.softcap < 0:
            raise ValueError("gpt: short_window and rope_base must be positive, softcap at least 0")
        if self.mlp not in ("relu2", "swiglu"):
            raise ValueError(f"gpt: mlp is relu2 or swiglu, not {self.mlp!r}")

    @classmethod
    def sized(cls, depth: int, vocabulary_size: int, sequence_length: int) -> Self:
        """Heads are 128 wide (what attention kernels like best), 64 in small models, which need more than a few."""
        width = 64 * depth
        head = 128 if width >= 768 and width % 128 == 0 else 64
        return cls(
            vocabulary_size=vocabulary_size,
            sequence_length=sequence_length,
            depth=depth,
            width=width,
            heads=width // head,
            windows="SSSL" if sequence_length >= 1024 else "L",
            short_window=max(sequence_length // 2, 1),
        )

    @property
    def padded_vocabulary_size(self) -> int:
        return math.ceil(self.vocabulary_size / PADDING) * PADDING

    @property
    def hidden(self) -> int:
        """Width inside the MLP."""
        return 4 * self.width if self.mlp == "relu2" else math.ceil(8 * self.width / 3 / 64) * 64

    def window(self, block: int) -> int | None:
        """Return how many tokens a block sees, None for all."""
        last = block == self.depth - 1
        return None if last or self.windows[block % len(self.windows)] == "L" else self.short_window

    def has_value_embedding(self, block: int) -> bool:
        return self.value_embeddings and (self.depth - 1 - block) % 2 == 0


# --- what blocks are told, and what they remember ---------------------------------------------------------------------


@dataclass
class Context:
    """What all blocks are told about the tokens they read."""

    tokens: Tensor
    """`[B, T]`."""
    cosine: Tensor
    """`[T, 1, D]`, D being a head's width: of each position's angles, twice."""
    sine: Tensor
    """`[T, 1, D / 2]`."""
    documents: Tensor | None
    """`[B, all positions so far]`, a number that rises with each document; None without a mask."""


@dataclass
class Memory:
    """What a block remembers of the tokens before, to go on from: the cache of keys and values."""

    key: Tensor | None = None
    """`[B, H, T, D]`, normalised and rotated; a block with a window keeps no more than it will look at."""
    value: Tensor | None = None
    last: Tensor | None = None
    """The block's input at the last token, `[B, 1, width]`: for keys that look at the one before."""

    def extend(self, x: Tensor, key: Tensor, value: Tensor, window: int | None) -> tuple[Tensor, Tensor]:
        """Take in more tokens; return all keys and values that they may look at."""
        if self.key is not None and self.value is not None:
            key, value = torch.cat((self.key, key), dim=2), torch.cat((self.value, value), dim=2)
        first = 0 if window is None else max(key.size(2) - window + 1, 0)
        self.key, self.value, self.last = key[:, :, first:], value[:, :, first:], x[:, -1:]
        return key, value


@dataclass
class State:
    """Where `advance` goes on from."""

    blocks: list[Memory]
    length: int = 0
    """Tokens read."""
    embedding: Tensor | None = None
    """Of the last token, `[B, 1, width]`, for the smear."""
    documents: Tensor | None = field(default=None)
    """As in `Context`."""


def rotation(start: int, end: int, size: int, base: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the tables of `Context` for positions from start to before end (RoFormer, eq. 15)."""
    rates = base ** -(torch.arange(0, size, 2, device=device, dtype=torch.float32) / size)
    angles = torch.outer(torch.arange(start, end, device=device, dtype=torch.float32), rates)[:, None]
    return angles.cos().repeat(1, 1, 2), angles.sin()


# --- the layers -------------------------------------------------------------------------------------------------------


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, config: Config, block: int) -> None:
        super().__init__()
        self.config = config
        self.window = config.window(block)
        self.query = linear(config.width, config.width)
        self.key = linear(config.width, config.width)
        self.value = linear(config.width, config.width)
        self.output = linear(config.width, config.width)
        if config.qk_norm:
            # After the norm a query meets its own key at sqrt(head width): the gain lets a head be sharper or softer.
            self.gain = nn.Parameter(torch.ones(config.heads))
        if config.has_value_embedding(block):
            self.value_embedding = nn.Embedding(config.padded_vocabulary_size, config.width)
            self.value_gate = nn.Parameter(torch.zeros(config.heads, min(GATE_CHANNELS, config.width)))

    def split(self, x: Tensor) -> Tensor:
        """`[B, T, H x D] -> [B, T, H, D]`."""
        return x.unflatten(-1, (self.config.heads, -1))

    def keys(self, x: Tensor, last: Tensor | None) -> Tensor:
        """Return the keys `[B, T, H, D]`, not yet normalised or rotated. Other architectures put theirs here.

        `last [B, 1, width]` is the input before x, None at the start of a row.
        """
        return self.split(self.key(x))

    def values(self, x: Tensor, tokens: Tensor) -> Tensor:
        value = self.split(self.value(x))
        if not hasattr(self, "value_embedding"):
            return value
        # From 0 to 2, at first 1.
        gate = 2 * torch.sigmoid(F.linear(x[..., : self.value_gate.size(1)], self.value_gate))
        return value + (gate[..., None] * self.split(self.value_embedding(tokens))).to(value.dtype)

    def forward(self, x: Tensor, context: Context, memory: Memory | None = None) -> Tensor:
        query, key = self.split(self.query(x)), self.keys(x, memory.last if memory else None)
        if self.config.qk_norm:
            query, key = norm(query, self.gain), norm(key)
        if self.config.rotary:
            query, key = (rotate(each, context.cosine, context.sine) for each in (query, key))
        query, key, value = (each.transpose(1, 2) for each in (query, key, self.values(x, context.tokens)))
        if memory:
            key, value = memory.extend(x, key, value, self.window)
        documents = None if context.documents is None else context.documents[:, -key.size(2) :]
        mixed = attention(query, key, value, window=self.window, documents=documents)
        return self.output(mixed.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.up = linear(config.width, config.hidden)
        if config.mlp == "swiglu":
            self.gate = linear(config.width, config.hidden)
        self.down = linear(config.hidden, config.width)

    def forward(self, x: Tensor) -> Tensor:
        if hasattr(self, "gate"):
            return self.down(F.silu(self.gate(x)) * self.up(x))
        return self.down(squared_relu(self.up(x)))


class Block(nn.Module):
    def __init__(self, config: Config, attention: Attention) -> None:
        super().__init__()
        self.attention = attention
        self.mlp = MLP(config)
        if config.residual_lambdas:
            self.residual_lambda = nn.Parameter(torch.ones(1))
        if config.x0_lambdas:
            self.x0_lambda = nn.Parameter(torch.full((1,), 0.1))

    def forward(self, x: Tensor, x0: Tensor, context: Context, memory: Memory | None = None) -> Tensor:
        """`x, x0 [B, T, width]`: the residual stream, and where it began."""
        if hasattr(self, "residual_lambda"):
            x = x * self.residual_lambda
        if hasattr(self, "x0_lambda"):
            x = x + x0 * self.x0_lambda
        x = x + self.attention(norm(x), context, memory)
        return x + self.mlp(norm(x))


class Model(LanguageModel):
    attention: type[Attention] = Attention
    """Which attention the blocks use: an architecture that changes only this sets only this."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.padded_vocabulary_size, config.width)
        self.blocks = nn.ModuleList(Block(config, self.attention(config, block)) for block in range(config.depth))
        if config.embedding_smear:
            self.smear_gate = nn.Parameter(torch.zeros(1, min(GATE_CHANNELS, config.width)))
            self.smear_lambda = nn.Parameter(torch.zeros(1))
        if config.backout:
            self.backout_lambda = nn.Parameter(torch.full((1,), 0.2))
        if not config.tied_head:
            self.head = linear(config.width, config.padded_vocabulary_size)
        self.initialise()

    def initialise(self) -> None:
        """Embeddings at scale 1 where a norm follows and nothing shares them, matrices uniform of variance 1 / fan-in,
        the head near zero: an untrained model scores the uniform rate."""
        config = self.config
        unit = config.embedding_norm and not config.tied_head
        nn.init.normal_(self.embedding.weight, std=1.0 if unit else 0.02)
        if not config.tied_head:
            nn.init.normal_(self.head.weight, std=0.001)
        for name, module in self.blocks.named_modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=config.width**-0.5)
            if isinstance(module, nn.Linear):
                ends_branch = name.endswith(("attention.output", "mlp.down"))
                bound = math.sqrt(3 / module.in_features / (2 * config.depth if ends_branch else 1))
                if ends_branch and config.zero_init:
                    bound = 0.0
                nn.init.uniform_(module.weight, -bound, bound)

    def features(self, tokens: Tensor) -> Tensor:
        return self.read(tokens, None)

    def advance(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, State]:
        state = state or State([Memory() for _ in self.blocks])
        return self.read(tokens, state), state

    def read(self, tokens: Tensor, state: State | None) -> Tensor:
        """Return the features of tokens that follow a state, which takes them in; with None, of whole rows."""
        context = self.context(tokens, state)
        x = x0 = self.embed(context, state)
        middle = x
        for number, block in enumerate(self.blocks):
            x = block(x, x0, context, state.blocks[number] if state else None)
            if number == len(self.blocks) // 2 - 1:
                middle = x
        if state:
            state.length += tokens.size(1)
            state.documents = context.documents
        return norm(x - self.backout_lambda * middle if self.config.backout else x)

    def context(self, tokens: Tensor, state: State | None) -> Context:
        config, start, documents = self.config, state.length if state else 0, None
        tables = rotation(start, start + tokens.size(1), config.width // config.heads, config.rope_base, tokens.device)
        if config.document_mask:
            documents = (tokens == config.end_of_text).cumsum(1)
            if state and state.documents is not None:
                documents = torch.cat((state.documents, state.documents[:, -1:] + documents), dim=1)
        return Context(tokens, *tables, documents)

    def embed(self, context: Context, state: State | None) -> Tensor:
        x = self.embedding(context.tokens)
        if self.config.embedding_norm:
            x = norm(x)
        return self.smeared(x, context.documents, state) if self.config.embedding_smear else x

    def smeared(self, x: Tensor, documents: Tensor | None, state: State | None) -> Tensor:
        """Add to each embedding a part of the one before it in the same document."""
        first = state.embedding if state and state.embedding is not None else torch.zeros_like(x[:, :1])
        before = torch.cat((first, x[:, :-1]), dim=1)
        gate = self.smear_lambda * torch.sigmoid(F.linear(x[..., : self.smear_gate.size(1)], self.smear_gate))
        if documents is not None:
            earlier = F.pad(documents, (1, 0), value=-1)[:, :-1]
            gate = gate * (documents == earlier)[:, -x.size(1) :, None]
        if state:
            state.embedding = x[:, -1:]
        return x + (gate * before).to(x.dtype)

    def logits(self, features: Tensor) -> Tensor:
        cap, size = self.config.softcap, self.config.vocabulary_size
        if cap:
            # What `capped` wants, done here and not behind the head: features are a small tensor, logits a large one.
            features = features * (2 / cap)
        logits = F.linear(features, self.embedding.weight) if self.config.tied_head else self.head(features)
        if self.config.padded_vocabulary_size > size:
            logits = logits[..., :size]
        return capped(logits, cap) if cap else logits.float()


def recipe(config: Config) -> Recipe:
    """Muon for matrices, AdamW for the rest, its rates ~ 1/sqrt(width) as in nanochat, whose reference width is 768.

    Matrices have its rate at every width, since a step moves their outputs as much whatever the shape, and its weight
    decay, by the rule for larger widths but never more. Tried at width 128, on 200 steps of 1,024 bytes with one seed:
    a rate of 0.01 cost 0.036 nats; a decay of 1 cost 0.009 beside 0.02, the rule's 7.2 some 0.035.
    """
    scale = (config.width / 768) ** -0.5
    decay = min(weight_decay(config.width, at_768=0.2), 0.2)

    def adamw(name: str, *match: str, rate: float) -> ParameterGroup:
        return ParameterGroup(name, match, "adamw", rate, betas=(0.8, 0.95))

    return Recipe(
        groups=(
            adamw("embedding", "embedding.*", rate=0.1 * scale),
            adamw("value embeddings", "*.value_embedding.*", rate=0.05 * scale),
            adamw("head", "head.*", rate=0.004 * scale),
            adamw("scalars", "*.gain", "*gate", "*_lambda", rate=0.02),
            ParameterGroup("matrices", ("blocks.*",), "muon", 0.02, weight_decay=decay, normalised=True, cautious=True),
        ),
        schedule=Schedule(warmup=0.01, warmdown=0.6),
    )
