"""The contract between an architecture and everything around it: the loop, the optimizer, the scorer.

An architecture is one file in this folder. It has
- `Config`: a frozen dataclass of plain values (it is saved as JSON), one sentence under each field, with the
  classmethod `sized(depth, vocabulary_size, sequence_length)` that computes every other field from the depth;
- `Model(config)`: a `LanguageModel`;
- `recipe(config) -> Recipe`: its optimizer settings.
The first sentence of the file's docstring is its description on the board. The dict in `__init__.py` gets one line.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, get_args

import torch
from torch import Tensor, nn

from trainer.ops.devices import get_row_gradients

if TYPE_CHECKING:
    from trainer.models.ngram_memory import NGramMemory

OptimizerKind = Literal["muon", "adamw", "adamw8bit", "row_adagrad"]
ScheduleShape = Literal["trapezoid", "cosine"]


def check_literal(name: str, value: Any, literal: Any) -> None:
    """Raise ValueError unless a field has one of the values of its `Literal` type."""
    if value not in get_args(literal):
        raise ValueError(f"{name} {value!r} is not one of {get_args(literal)}")


def pad_vocabulary(size: int) -> int:
    """Return the rows of an embedding or head: a multiple of 64, since other sizes are slow on GPUs."""
    return math.ceil(size / 64) * 64


class LanguageModel(nn.Module):
    """Maps tokens to a distribution over the next token at every position.

    Causal: the output at position t depends on tokens 0..t only. Stateless: the same tokens get the same output,
    independent of earlier calls and of the rest of the batch. The scorer corrects for later tokens, and computes each
    row alone.
    """

    def features(self, tokens: Tensor) -> Tensor:
        """Return what the head reads, `[B, T, D]`, for token ids `[B, T]` (int64). T may be less than in training."""
        raise NotImplementedError

    def logits(self, features: Tensor) -> Tensor:
        """Return unnormalized log-probabilities `[B, T, V]`, V being exactly the vocabulary size."""
        raise NotImplementedError

    def forward(self, tokens: Tensor) -> Tensor:
        return self.logits(self.features(tokens))

    def repeated_blocks(self) -> list[nn.Module]:
        """Return the modules that activation checkpointing, FSDP and compilation each treat as one unit.

        Default: every child of a `ModuleList` that is inside no other unit. A block's inputs and outputs must not be
        changed in place.
        """
        found: list[nn.Module] = []
        for module in self.modules():
            if isinstance(module, nn.ModuleList) and not any(module in set(block.modules()) for block in found):
                found += module
        return found

    def list_memories(self) -> list[NGramMemory]:
        """Return what reads tables of n-grams. All are called with the tokens that `features` gets."""
        if not any(map(get_row_gradients, self.parameters())):
            return []
        from trainer.models.ngram_memory import NGramMemory

        return [module for module in self.modules() if isinstance(module, NGramMemory)]

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for gradients in filter(None, map(get_row_gradients, self.parameters())):
            gradients.clear()

    bounded: ClassVar[bool] = True
    """Whether `advance` works only up to the length of a training row. False for a state of fixed size.

    A state of fixed size consists of tensors in lists and dataclasses, and `advance` does not change its argument."""

    def advance(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Return the features `[B, T, D]` of the tokens `[B, T]` that follow a state, and the state after them.

        Used for generation. The state before all tokens is None. Its type is the model's own, and a state that was
        passed in must not be used again. Piece by piece the features equal those of `features` over the whole text.
        This default recomputes all earlier tokens; a KV cache or a recurrent state avoids that.
        """
        text = tokens if state is None else torch.cat((state, tokens), dim=1)
        return self.features(text)[:, -tokens.size(1) :], text


class ArchitectureConfig(Protocol):
    """Fields and methods that every `Config` has."""

    vocabulary_size: int
    sequence_length: int

    @classmethod
    def sized(cls, depth: int, vocabulary_size: int, sequence_length: int) -> Self:
        """Compute every other field from the depth."""


class Architecture(Protocol):
    """The interface of an architecture's module."""

    Config: type[ArchitectureConfig]
    Model: type[LanguageModel]

    def recipe(self, config: Any) -> Recipe:
        """Return the optimizer settings for this size."""


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that share an optimizer and its settings."""

    name: str
    match: tuple[str, ...]
    """Shell patterns over parameter names. Each parameter belongs to the first group that matches."""
    optimizer: OptimizerKind
    """`muon` takes matrices only (two dimensions, or stacks of them). `adamw8bit` is AdamW with 8-bit state from
    bitsandbytes: a quarter of the memory, useful for large embedding tables. It is not faster. `row_adagrad` is for
    tables of an `NGramMemory`, and they for it."""
    learning_rate: float  # peak learning rate
    weight_decay: float = 0.0  # decoupled: each step shrinks weights by `learning rate x weight_decay`
    momentum: float = 0.95  # Muon only
    normalized: bool = False  # Muon only: divide each neuron's update by the root of its running mean square (NorMuon)
    variance_momentum: float = 0.95  # Muon only: decay of that running mean
    cautious: bool = False  # decay a weight only where the update also moves it towards zero (cautious weight decay)
    betas: tuple[float, float] = (0.9, 0.95)  # AdamW only
    epsilon: float = 1e-10  # AdamW only. Small, since zero-initialized projections see tiny gradients at first.

    def __post_init__(self) -> None:
        for name in ("learning_rate", "weight_decay", "epsilon"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{self.name}.{name} cannot be {getattr(self, name)}")
        for name, value in (
            ("momentum", self.momentum),
            ("variance_momentum", self.variance_momentum),
            *(("betas", beta) for beta in self.betas),
        ):
            if not 0 <= value < 1:
                raise ValueError(f"{self.name}.{name} must be at least 0 and below 1, not {value}")
        check_literal(f"{self.name}.optimizer", self.optimizer, OptimizerKind)
        if self.normalized and self.optimizer != "muon":
            raise ValueError(f"{self.name}.normalized is for muon, not for {self.optimizer}")


@dataclass(frozen=True)
class Schedule:
    """The learning rate as a function of the used budget fraction. Every shape ends low, so every run is annealed."""

    warmup: float = 0.02  # fraction of the budget in which the rate rises
    warmdown: float = 0.6
    """Fraction of the budget, at its end, in which a trapezoid's rate falls. A cosine falls from the warmup on."""
    final: float = 0.0  # rate at the end, as a fraction of the peak
    shape: ScheduleShape = "trapezoid"
    """`trapezoid`: up, flat, linearly down. `cosine`: up, then half a cosine down (SGDR, arXiv 1608.03983, eq. 5)."""
    top: float = 1.0  # factor on the rates of all groups. Use a tenth or less to fine-tune a trained model.
    warmup_steps: int = 0
    """Steps in which the rate also rises from a fifth of its value, as in RWKV-LM: for budgets in which one step is a
    tiny fraction. 0: none."""
    momentum_start: float | None = None
    """Muon's momentum at the beginning, rising to the group's in the fraction `momentum_warmup` (nanochat: 0.85, then
    0.97). None: the group's from the start."""
    momentum_warmup: float = 0.1  # fraction of the budget in which the momentum rises
    momentum_end: float | None = None
    """Muon's momentum at the end, reached in step with the rate (nanochat: 0.90). None: the group's to the end."""

    def __post_init__(self) -> None:
        check_literal("a schedule's shape", self.shape, ScheduleShape)
        down = self.warmdown if self.shape == "trapezoid" else 0.0
        if self.warmup < 0 or self.warmdown < 0 or self.warmup + down > 1:
            raise ValueError(f"a schedule's warmup {self.warmup} and warmdown {self.warmdown} must fit into the budget")
        if self.warmup_steps < 0:
            raise ValueError(f"a schedule's warmup_steps must be at least 0, not {self.warmup_steps}")
        if not 0 < self.momentum_warmup <= 1:
            raise ValueError(f"a schedule's momentum_warmup must be above 0 and at most 1, not {self.momentum_warmup}")
        for name in ("momentum_start", "momentum_end"):
            if (value := getattr(self, name)) is not None and not 0 <= value < 1:
                raise ValueError(f"a schedule's {name} must be at least 0 and below 1, not {value}")
        if not 0 <= self.final <= 1:
            raise ValueError(f"a schedule's final must be from 0 to 1, not {self.final}")
        if not 0 < self.top < math.inf:
            raise ValueError(f"a schedule's top must be above 0, not {self.top}")

    def scale(self, fraction: float, steps: int | None = None) -> float:
        """Return the factor on every learning rate at a used budget fraction in [0, 1] and after `steps` steps."""
        top = self.top
        if steps is not None and steps < self.warmup_steps:
            top *= 0.2 + 0.8 * steps / self.warmup_steps
        if fraction < self.warmup:
            # Half a percent at the very first step: a step at rate 0 would waste its tokens.
            return top * max(fraction / self.warmup, 0.005)
        return top * (self.final + (1 - self.final) * self.get_decay_factor(min(fraction, 1.0)))

    def compute_momentum(self, peak: float, fraction: float) -> float:
        """Return Muon's momentum at a used budget fraction; `peak` is the group's."""
        if self.momentum_start is not None and fraction < self.momentum_warmup:
            return self.momentum_start + (peak - self.momentum_start) * fraction / self.momentum_warmup
        if self.momentum_end is None or fraction < self.warmup:
            return peak
        return self.momentum_end + (peak - self.momentum_end) * self.get_decay_factor(min(fraction, 1.0))

    def get_decay_factor(self, fraction: float) -> float:
        """Return the rate after the warmup, scaled so that its peak is 1 and its end 0."""
        if self.shape == "cosine":
            return (1 + math.cos(math.pi * (fraction - self.warmup) / max(1 - self.warmup, 1e-9))) / 2
        left = 1 - fraction
        return left / self.warmdown if left < self.warmdown else 1.0


@dataclass(frozen=True)
class Recipe:
    """How an architecture is optimized. Declared in its file, free to change, shown on the run's page."""

    groups: tuple[ParameterGroup, ...]
    schedule: Schedule = Schedule()
    clip: float | None = None
    """Largest global norm of a step's gradient; a longer one is scaled down to it. None leaves gradients alone."""
    l2wrap: float = 0.0
    """Adds this many times each position's largest logit to that logit's gradient, which keeps logits near zero
    (RWKV-LM uses 1e-4). The reported loss does not include it."""

    def __post_init__(self) -> None:
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ValueError(f"clip must be above 0, not {self.clip}")
        if not 0 <= self.l2wrap < math.inf:
            raise ValueError(f"l2wrap must be at least 0, not {self.l2wrap}")


# --- scaling rules: power laws, each anchored at the size where it was tuned ------------------------------------------


def batch_tokens(total_tokens: float) -> float:
    """Return the tokens of an optimizer step for a run of `total_tokens`.

    ~ D^0.383 for models of any size (Power Lines: Bergsma et al., arXiv 2505.13738), through nanochat's 2^19
    tokens at 1e10.
    """
    return 2**19 * (total_tokens / 1e10) ** 0.383


def weight_decay(width: int, at_768: float) -> float:
    """Return the decoupled weight decay of matrices for a width, from what is best at width 768: ~ 1 / width^2.

    With depth proportional to width and tokens to parameters, a run has ~ width^3 tokens, and the share of a weight
    that decays in a run should be constant (arXiv 2505.13738, section 3). nanochat measured the square for Muon.
    """
    return at_768 * (768 / width) ** 2
