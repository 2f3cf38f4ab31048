"""The baseline: a plain transformer with the common design choices of 2026.

Fixed: no biases, RMSNorm without parameters before each block and at the end (arXiv 1910.07467, eq. 4). Everything
else is a field of `Config`, described there with its source. Depth determines all other sizes: width is 64 x depth.

The figures behind the defaults are nanochat's (https://github.com/karpathy/nanochat) and modded-nanogpt's
(https://github.com/KellerJordan/modded-nanogpt), two recipes that were tuned in public; the lists in
`benchmarks/settings` measure ours. From top to bottom: `Config`, block inputs and KV cache, attention, MLP, block,
model, recipe.

Not covered: dropout, fewer heads for keys than for queries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.models.base import LanguageModel, ParameterGroup, Recipe, Schedule, pad_vocabulary, weight_decay
from trainer.ops.attention import attention
from trainer.ops.elementwise import cast_for_autocast, norm, rotate, softcap, squared_relu

if TYPE_CHECKING:
    from trainer.models.ngram_memory import GatedMemory, NGramMemory

MEMORY_RATE = 0.05  # of its table at width 768
GATE_CHANNELS = 32  # input channels that a gate reads: enough, and cheap
MEMORY_STRENGTH = 0.3  # initial factor on the memory before blocks; at the embedding it is 1
VALUE_GATE_RANGE = 3.0  # upper bound of the value gate, which starts at half of it (as in nanochat)


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
    """Attention of block i is letter i of this, repeated: L sees all earlier tokens, S the last `short_window`. The
    last block always sees all. SSSL (Longformer's idea, arXiv 2004.05150, section 3.1) is for long rows on a GPU."""
    short_window: int = 128
    """Tokens that an S block sees, including the current one."""
    document_mask: bool = False
    """Attention and smear stay within a document, which starts at the end-of-text token (arXiv 2402.13991, section 2).
    On a GPU this costs a synchronization in each block (see `trainer.ops.attention`)."""
    end_of_text: int = -1
    """Id of the end-of-text token, for `document_mask`; the trainer fills it in."""
    rotary: bool = True
    """Queries and keys are rotated by position (RoFormer, arXiv 2104.09864, eq. 34). False: no positions."""
    rope_base: float = 10_000.0
    """The longest period is about 2 pi times this many tokens (nanochat: 100,000)."""
    qk_norm: bool = True
    """RMSNorm on queries and keys and one gain per head (after Query-Key Normalization, arXiv 2010.04245, eq. 4)."""
    qk_gain: float = 1.44
    """Initial gain of the queries under `qk_norm`: above 1, attention starts sharper (nanochat: 1.2 on queries and on
    keys)."""
    value_embeddings: bool = True
    """Every second block, the last among them, adds to its values an embedding of the token, through a gate per head
    (value residual learning, arXiv 2410.17897, section 3; as tables in modded-nanogpt, gated in nanochat)."""
    mlp_init: float = 0.4
    """Factor on the initial scale of the MLP's input projection (as in nanochat)."""

    embedding_norm: bool = True
    """RMSNorm on the embedding, so that a row's size does not matter (modded-nanogpt)."""
    embedding_smear: bool = True
    """Adds to each embedding a gated part of the previous one: bigrams at nearly no cost (modded-nanogpt, nanochat).
    The architecture `smear` is different: it mixes keys."""
    smear_init: float = 0.5
    """Initial value of the smear's lambda; the gate starts at 1/2. Short runs gain from a smear at the start (measured:
    benchmarks/results/peers.md). nanochat and modded-nanogpt start at 0."""
    memory_rows: int = 0
    """Rows, for each order, of a table that is read by hashes of the last tokens and added, through a gate, to the
    embedding and before blocks (nanochat's pull request 854; `trainer.models.ngram_memory`). They count as parameters.
    0: none."""
    memory_orders: str = "2,3"
    """Lengths of the n-grams that read the memory."""
    memory_blocks: str = "all"
    """Blocks before which the memory is added, besides the embedding: `all`, `none` or numbers such as `0,2`."""
    memory_width: int = 0
    """Channels of a row for each of these places, projected to the width. 0: all places read the whole row, which is as
    wide as the stream."""
    residual_lambdas: bool = True
    """Each block's input is the residual stream times a learned number (modded-nanogpt)."""
    x0_lambdas: bool = True
    """Each block's input has a learned multiple of the embedding added (modded-nanogpt)."""
    backout: bool = True
    """A learned multiple of the residual stream at half depth is subtracted at the end, so that what only the upper
    blocks need does not reach the head (modded-nanogpt)."""
    zero_init: bool = True
    """Output projections start at zero, so a block starts as the identity (arXiv 1901.09321's idea; without: 1 / fan-in
    over the number of branches, as GPT-2)."""

    tied_head: bool = False
    """The head is the embedding (arXiv 1608.05859). Saves parameters; a separate head learns better."""
    softcap: float = 15.0
    """Logits stay within +- this through a tanh (Gemma 2, arXiv 2408.00118, section 2). 0: no cap."""

    def __post_init__(self) -> None:
        if self.depth < 1 or self.heads < 1 or self.width < 2:
            raise ValueError(f"gpt: depth {self.depth}, heads {self.heads} and width {self.width} must be positive")
        if self.width % self.heads or (self.width // self.heads) % 2:
            raise ValueError(f"gpt: width {self.width} must be an even multiple of heads {self.heads}")
        if not self.windows or set(self.windows) - {"S", "L"}:
            raise ValueError(f"gpt: windows is a word of the letters S and L, not {self.windows!r}")
        if self.memory_rows < 0 or self.memory_width < 0:
            raise ValueError("gpt: memory_rows and memory_width must be at least 0")
        if min(orders := parse_numbers("memory_orders", self.memory_orders)) < 1 or len(set(orders)) < len(orders):
            raise ValueError(f"gpt: memory_orders are different lengths of n-grams, not {self.memory_orders!r}")
        if max(self.list_memory_blocks(), default=0) >= self.depth:
            raise ValueError(f"gpt: memory_blocks {self.memory_blocks!r} names a block that depth {self.depth} lacks")
        if self.short_window < 1 or self.rope_base <= 0 or self.softcap < 0:
            raise ValueError("gpt: short_window and rope_base must be positive, softcap at least 0")
        if self.qk_gain <= 0 or self.mlp_init <= 0:
            raise ValueError("gpt: qk_gain and mlp_init must be positive")

    @classmethod
    def sized(cls, depth: int, vocabulary_size: int, sequence_length: int) -> Self:
        """Heads are 128 wide, the fastest for attention kernels, and 64 in small models, which need more of them."""
        width = 64 * depth
        head = 128 if width >= 768 and width % 128 == 0 else 64
        return cls(
            vocabulary_size=vocabulary_size,
            sequence_length=sequence_length,
            depth=depth,
            width=width,
            heads=width // head,
            windows="SSSL" if sequence_length >= 1024 else "L",
            short_window=max(sequence_length // 4, 1),
        )

    @property
    def padded_vocabulary_size(self) -> int:
        return pad_vocabulary(self.vocabulary_size)

    def window(self, block: int) -> int | None:
        """Return how many tokens a block sees, None for all."""
        last = block == self.depth - 1
        return None if last or self.windows[block % len(self.windows)] == "L" else self.short_window

    def has_value_embedding(self, block: int) -> bool:
        return self.value_embeddings and (self.depth - 1 - block) % 2 == 0

    def list_memory_blocks(self) -> list[int]:
        """Return the blocks before which the memory is added, if there is one."""
        if self.memory_blocks in ("all", "none"):
            return list(range(self.depth if self.memory_blocks == "all" else 0))
        return sorted(set(parse_numbers("memory_blocks", self.memory_blocks)))

    def build_gated_memory(self, place: int) -> GatedMemory | None:
        """Return what adds the memory at a place: 0 is the embedding, block n is n + 1. None: nothing does."""
        places = [0, *(block + 1 for block in self.list_memory_blocks())]
        if not self.memory_rows or place not in places:
            return None
        from trainer.models.ngram_memory import GatedMemory

        number = places.index(place) if self.memory_width else 0
        return GatedMemory(self.width, self.memory_width or self.width, number, MEMORY_STRENGTH if place else 1.0)


def parse_numbers(name: str, text: str) -> list[int]:
    if not all(part.strip().isdecimal() for part in text.split(",")):
        raise ValueError(f"gpt: {name} is numbers with commas between them, not {text!r}")
    return [int(part) for part in text.split(",")]


# --- block inputs and the KV cache ------------------------------------------------------------------------------------


@dataclass
class BlockInputs:
    """The tokens and what all blocks need to know about their positions."""

    tokens: Tensor  # `[B, T]`
    cosine: Tensor  # `[T, 1, D]`, D being a head's width: each position's cosines, twice
    sine: Tensor  # `[T, 1, D / 2]`
    documents: Tensor | None  # `[B, positions so far]`: the number of each token's document. None without a mask.
    memory: Tensor | None = None  # `[B, T, slices, width]`: what the tokens read of the memory


@dataclass
class KVCache:
    """A block's keys and values of earlier tokens."""

    key: Tensor | None = None
    """`[B, H, T, D]`, normalized and rotated. A block with a window keeps only what it will still see."""
    value: Tensor | None = None
    last_input: Tensor | None = None
    """The block's input at the last token, `[B, 1, width]`, for keys that depend on the previous token."""

    def extend(self, x: Tensor, key: Tensor, value: Tensor, window: int | None) -> tuple[Tensor, Tensor]:
        """Add new tokens; return all keys and values that they may attend to."""
        if self.key is not None and self.value is not None:
            key, value = torch.cat((self.key, key), dim=2), torch.cat((self.value, value), dim=2)
        first = 0 if window is None else max(key.size(2) - window + 1, 0)
        self.key, self.value, self.last_input = key[:, :, first:], value[:, :, first:], x[:, -1:]
        return key, value


@dataclass
class GPTState:
    """The state of `Model.advance`."""

    caches: list[KVCache]
    length: int = 0  # tokens so far
    recent: Tensor | None = None  # the last tokens, `[B, longest n-gram - 1]` at most, for the memory
    embedding: Tensor | None = None  # embedding of the last token, `[B, 1, width]`, for the smear
    documents: Tensor | None = None  # as in `BlockInputs`


def rotary_tables(start: int, end: int, size: int, base: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosines and sines as in `BlockInputs` for positions start to end - 1 (RoFormer, eq. 15)."""
    rates = base ** -(torch.arange(0, size, 2, device=device, dtype=torch.float32) / size)
    angles = torch.outer(torch.arange(start, end, device=device, dtype=torch.float32), rates)[:, None]
    return angles.cos().repeat(1, 1, 2), angles.sin()


# --- the layers -------------------------------------------------------------------------------------------------------


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class GPTAttention(nn.Module):
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
            # After the norm, query x key is at most sqrt(head width): the gain lets a head be sharper or softer.
            self.gain = nn.Parameter(torch.full((config.heads,), config.qk_gain))
        self.value_embedding: nn.Embedding | None = None
        if config.has_value_embedding(block):
            self.value_embedding = nn.Embedding(config.padded_vocabulary_size, config.width)
            self.value_gate = nn.Parameter(torch.zeros(config.heads, min(GATE_CHANNELS, config.width)))

    def split_heads(self, x: Tensor) -> Tensor:
        """`[B, T, H x D] -> [B, T, H, D]`."""
        return x.unflatten(-1, (self.config.heads, -1))

    def compute_keys(self, x: Tensor, previous: Tensor | None) -> Tensor:
        """Return the keys `[B, T, H, D]` before norm and rotation. Other architectures override this.

        `previous [B, 1, width]` is the input before x, None at the start of a row.
        """
        return self.split_heads(self.key(x))

    def compute_values(self, x: Tensor, tokens: Tensor) -> Tensor:
        value = self.split_heads(self.value(x))
        if self.value_embedding is None:
            return value
        gate = torch.sigmoid(F.linear(x[..., : self.value_gate.size(1)], self.value_gate))
        gate = VALUE_GATE_RANGE * gate
        return value + gate[..., None] * self.split_heads(cast_for_autocast(self.value_embedding(tokens)))

    def forward(self, x: Tensor, inputs: BlockInputs, cache: KVCache | None = None) -> Tensor:
        query, key = self.split_heads(self.query(x)), self.compute_keys(x, cache.last_input if cache else None)
        if self.config.qk_norm:
            query, key = norm(query, self.gain), norm(key)
        if self.config.rotary:
            query, key = (rotate(each, inputs.cosine, inputs.sine) for each in (query, key))
        value = self.compute_values(x, inputs.tokens)
        query, key, value = (each.transpose(1, 2) for each in (query, key, value))
        if cache:
            key, value = cache.extend(x, key, value, self.window)
        documents = None if inputs.documents is None else inputs.documents[:, -key.size(2) :]
        mixed = attention(query, key, value, window=self.window, documents=documents)
        return self.output(mixed.transpose(1, 2).flatten(-2))


class GPTMLP(nn.Module):
    """ReLU^2, 4 x width inside (Primer, arXiv 2109.08668, section 4.2)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.up = linear(config.width, 4 * config.width)
        self.down = linear(4 * config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(squared_relu(self.up(x)))


class GPTBlock(nn.Module):
    def __init__(
        self, config: Config, attention: GPTAttention, mlp: nn.Module, memory: GatedMemory | None = None
    ) -> None:
        super().__init__()
        self.memory = memory
        self.attention = attention
        self.mlp = mlp
        self.residual_lambda = nn.Parameter(torch.ones(1)) if config.residual_lambdas else None
        self.x0_lambda = nn.Parameter(torch.full((1,), 0.1)) if config.x0_lambdas else None

    def forward(self, x: Tensor, x0: Tensor, inputs: BlockInputs, cache: KVCache | None = None) -> Tensor:
        """`x, x0 [B, T, width]`: the residual stream here and at the first block.

        Each lambda is read as a number: as a vector of one number in fp32 it would turn a stream of 16 bits into fp32.
        """
        if self.memory is not None and inputs.memory is not None:
            x = self.memory(x, inputs.memory)
        if self.residual_lambda is not None:
            x = x * self.residual_lambda[0]
        if self.x0_lambda is not None:
            x = x + x0 * self.x0_lambda[0]
        x = x + self.attention(norm(x), inputs, cache)
        return x + self.mlp(norm(x))


class Model(LanguageModel):
    attention_class: type[GPTAttention] = GPTAttention
    """Attention of the blocks. An architecture that changes only attention overrides only this."""
    mlp_class: type[nn.Module] = GPTMLP
    """Likewise. It takes the `Config`."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.padded_vocabulary_size, config.width)
        self.memory, self.memory_input = self.build_memory(), config.build_gated_memory(0)
        self.blocks = nn.ModuleList(
            GPTBlock(config, self.attention_class(config, n), self.mlp_class(config), config.build_gated_memory(n + 1))
            for n in range(config.depth)
        )
        if config.embedding_smear:
            self.smear_gate = nn.Parameter(torch.zeros(1, min(GATE_CHANNELS, config.width)))
            self.smear_lambda = nn.Parameter(torch.full((1,), float(config.smear_init)))
        if config.backout:
            self.backout_lambda = nn.Parameter(torch.full((1,), 0.2))
        if not config.tied_head:
            self.head = linear(config.width, config.padded_vocabulary_size)
        self.initialize()

    def build_memory(self) -> NGramMemory | None:
        config, orders = self.config, parse_numbers("memory_orders", self.config.memory_orders)
        if not config.memory_rows:
            return None
        from trainer.models.ngram_memory import NGramMemory

        slices = len(config.list_memory_blocks()) + 1 if config.memory_width else 1
        table = torch.zeros(config.memory_rows * len(orders), slices, config.memory_width or config.width)
        return NGramMemory(table, orders, end_of_text=config.end_of_text if config.document_mask else None)

    def initialize(self) -> None:
        """Embeddings: scale 1 if a norm follows and the head is separate. Matrices: uniform, variance 1 / fan-in (an
        MLP's first: `mlp_init` squared times that). Head: near zero, so that an untrained model predicts the uniform
        distribution."""
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
                if name.endswith("mlp.up"):
                    bound *= config.mlp_init
                if ends_branch and config.zero_init:
                    bound = 0.0
                nn.init.uniform_(module.weight, -bound, bound)

    def features(self, tokens: Tensor) -> Tensor:
        return self.compute_features(tokens, None)

    def advance(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, GPTState]:
        state = state or GPTState([KVCache() for _ in self.blocks])
        return self.compute_features(tokens, state), state

    def compute_features(self, tokens: Tensor, state: GPTState | None) -> Tensor:
        """Return the features of tokens that follow a state, and update the state. None: whole rows."""
        inputs = self.build_inputs(tokens, state)
        x = self.embed(inputs, state)
        x, middle = self.run_blocks(0, len(self.blocks), x, x, x, inputs, state)
        if state:
            state.length += tokens.size(1)
            state.documents = inputs.documents
        return self.finish(x, middle)

    def run_blocks(
        self,
        start: int,
        stop: int,
        x: Tensor,
        x0: Tensor,
        middle: Tensor,
        inputs: BlockInputs,
        state: GPTState | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run blocks start to stop - 1; return the residual stream and the one at half depth, for `finish`.

        `x`, `x0` and `middle` are `[B, T, width]`: the residual stream before block `start`, before the first block,
        and after the first half of the blocks (ignored if `start` is in that half).
        """
        for number in range(start, stop):
            x = self.blocks[number](x, x0, inputs, state.caches[number] if state else None)
            if number == self.config.depth // 2 - 1:
                middle = x
        return x, middle

    def finish(self, x: Tensor, middle: Tensor) -> Tensor:
        """Return the features, from what `run_blocks` returned for the last block."""
        return norm(x - self.backout_lambda[0] * middle if self.config.backout else x)

    def build_inputs(self, tokens: Tensor, state: GPTState | None = None) -> BlockInputs:
        config, start, documents = self.config, state.length if state else 0, None
        end, head_width = start + tokens.size(1), config.width // config.heads
        tables = rotary_tables(start, end, head_width, config.rope_base, tokens.device)
        if config.document_mask:
            documents = (tokens == config.end_of_text).cumsum(1)
            if state and state.documents is not None:
                documents = torch.cat((state.documents, state.documents[:, -1:] + documents), dim=1)
        return BlockInputs(tokens, *tables, documents, self.read_memory(tokens, state))

    def read_memory(self, tokens: Tensor, state: GPTState | None) -> Tensor | None:
        if self.memory is None:
            return None
        if state is None:
            return self.memory(tokens)
        text = tokens if state.recent is None else torch.cat((state.recent, tokens), dim=1)
        state.recent = text[:, max(text.size(1) - max(self.memory.orders) + 1, 0) :]
        return self.memory(text)[:, -tokens.size(1) :]

    def embed(self, inputs: BlockInputs, state: GPTState | None = None) -> Tensor:
        x = cast_for_autocast(self.embedding(inputs.tokens))
        if self.config.embedding_norm:
            x = norm(x)
        if self.memory_input is not None and inputs.memory is not None:
            x = self.memory_input(x, inputs.memory)
        return self.smear_embeddings(x, inputs.documents, state) if self.config.embedding_smear else x

    def smear_embeddings(self, x: Tensor, documents: Tensor | None, state: GPTState | None) -> Tensor:
        """Add to each embedding a gated part of the previous one in the same document."""
        first = state.embedding if state and state.embedding is not None else torch.zeros_like(x[:, :1])
        before = torch.cat((first, x[:, :-1]), dim=1)
        gate = self.smear_lambda[0] * torch.sigmoid(F.linear(x[..., : self.smear_gate.size(1)], self.smear_gate))
        if documents is not None:
            earlier = F.pad(documents, (1, 0), value=-1)[:, :-1]
            gate = gate * (documents == earlier)[:, -x.size(1) :, None]
        if state:
            state.embedding = x[:, -1:]
        return x + gate * before

    def logits(self, features: Tensor) -> Tensor:
        cap, size = self.config.softcap, self.config.vocabulary_size
        if cap:
            # The factor belongs to `softcap`. It is applied before the head because features are smaller than logits.
            features = features * (2 / cap)
        logits = F.linear(features, self.embedding.weight) if self.config.tied_head else self.head(features)
        if self.config.padded_vocabulary_size > size:
            logits = logits[..., :size]
        return softcap(logits, cap) if cap else logits.float()


def recipe(config: Config) -> Recipe:
    """Return nanochat's settings: Muon for matrices, AdamW for the rest with rates ~ 1/sqrt(width), anchored at 768.

    Matrices have the same rate at every width, since a Muon step changes their outputs equally for all shapes. Weight
    decay follows nanochat's rule for widths above 768 and is constant below. Measured at width 128, 200 steps of 1,024
    bytes, one seed: a rate of 0.01 cost 0.036 nats. Against a decay of 0.02, a decay of 1 cost 0.009 nats and the
    rule's 7.2 about 0.035.
    """
    scale = (config.width / 768) ** -0.5
    decay = min(weight_decay(config.width, at_768=0.2), 0.2)

    def adamw(name: str, *match: str, rate: float) -> ParameterGroup:
        return ParameterGroup(name, match, "adamw", rate, betas=(0.8, 0.95))

    memory, matrices = (), ("blocks.*",)
    if config.memory_rows:
        memory = (ParameterGroup("memory", ("memory.table",), "row_adagrad", MEMORY_RATE * scale),)
        matrices = ("blocks.*", "memory_input.projection.*")
    return Recipe(
        groups=(
            *memory,
            adamw("embedding", "embedding.*", rate=0.1 * scale),
            adamw("value embeddings", "*.value_embedding.*", rate=0.05 * scale),
            adamw("head", "head.*", rate=0.004 * scale),
            adamw("smear", "smear_*", "backout_lambda", rate=0.02),
            adamw("scalars", "*.gain", "*gate", "*_lambda", rate=0.02),
            ParameterGroup("matrices", matrices, "muon", 0.02, weight_decay=decay, normalized=True, cautious=True),
        ),
        schedule=Schedule(warmup=0.01, warmdown=0.6, final=0.05, momentum_start=0.85, momentum_end=0.90),
    )
