"""An outside model on our board: litgpt's own GPT, by the name of one of its configurations.

Lightning AI's litgpt (https://github.com/Lightning-AI/litgpt, `litgpt/model.py` and `litgpt/config.py`) describes the
published decoder-only families. `pythia-14m` and its larger sisters are GPT-NeoX as in Pythia (arXiv 2304.01373,
table 1): parallel attention and MLP, partial rotary positions, LayerNorm, biases, GELU. The forward pass is litgpt's;
only the vocabulary is ours, and the head is taken out so that features and logits are apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from litgpt import GPT
from litgpt import Config as OutsideConfig
from litgpt.model import KVCache
from torch import Tensor, nn

from trainer.models.base import LanguageModel, ParameterGroup, Recipe, Schedule

PADDING = 64
"""As in the baseline: the embedding has a multiple of this many rows."""

LADDER = {6: "pythia-31m", 9: "pythia-70m", 14: "pythia-160m", 20: "pythia-410m", 26: "pythia-1b", 32: "pythia-1.4b"}
"""The dial: below this depth the baseline is at most about as large as this one; beyond the last, pythia-2.8b."""


@dataclass(frozen=True)
class Config:
    vocabulary_size: int
    """Token ids are 0 .. vocabulary_size - 1."""
    sequence_length: int
    """Tokens in a training row, and the longest the model can read: its rotation tables end there."""
    name: str = "pythia-14m"
    """One of litgpt's configurations, or any other name where `fields` say it all."""
    fields: dict[str, Any] = field(default_factory=dict)
    """litgpt's own fields where they are not the named configuration's, as in a checkpoint's model_config.yaml."""

    def __post_init__(self) -> None:
        self.outside()

    @classmethod
    def sized(cls, depth: int, vocabulary_size: int, sequence_length: int) -> Self:
        """Take the smallest Pythia up to depth 4, then larger ones in step with the baseline."""
        name = "pythia-14m" if depth <= 4 else next((n for d, n in LADDER.items() if depth < d), "pythia-2.8b")
        return cls(vocabulary_size, sequence_length, name)

    def outside(self) -> OutsideConfig:
        """Return litgpt's configuration with our vocabulary and length; raise ValueError for one that cannot be."""
        fields = {
            "padded_vocab_size": math.ceil(self.vocabulary_size / PADDING) * PADDING,
            **self.fields,
            "vocab_size": self.vocabulary_size,
            "block_size": self.sequence_length,
        }
        known = is_known(self.name)
        if not known and not self.fields:
            raise ValueError(f"litgpt has no configuration named {self.name!r}")
        try:
            made = OutsideConfig.from_name(self.name, **fields) if known else OutsideConfig(name=self.name, **fields)
        except (TypeError, ValueError, AssertionError, ZeroDivisionError) as error:
            raise ValueError(f"litgpt's configuration {self.name!r} cannot be made: {error}") from error
        if made.padded_vocab_size < self.vocabulary_size:
            raise ValueError(f"litgpt: {made.padded_vocab_size} rows are too few for {self.vocabulary_size} tokens")
        return made


def is_known(name: str) -> bool:
    """Is there a configuration of this name in litgpt?"""
    try:
        OutsideConfig.from_name(name)
    except ValueError:
        return False
    return True


@dataclass
class Memory:
    """What has been read: litgpt's own caches, held here and lent to the blocks for as long as they read on."""

    read: int
    """Tokens."""
    caches: list[KVCache]
    mask: Tensor


class Model(LanguageModel):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        outside = config.outside()
        # Taken out of the config, since litgpt would cap what its (now empty) head returns.
        self.softcap, outside.final_logit_softcapping = outside.final_logit_softcapping, None
        self.gpt = GPT(outside)
        self.head: nn.Module = self.gpt.lm_head
        self.gpt.lm_head = nn.Identity()
        self.initialise()

    def initialise(self) -> None:
        """As its `pretrain.initialize_weights` (TinyLlama's): std sqrt(2 / 5 / width), less where branches end."""
        width, layers = self.gpt.config.n_embd, self.gpt.config.n_layer
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                ends_branch = name.endswith(("attn.proj", "mlp.proj"))
                std = 1 / math.sqrt(width) / layers if ends_branch else math.sqrt(2 / 5 / width)
                nn.init.normal_(module.weight, std=std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def features(self, tokens: Tensor) -> Tensor:
        return self.gpt(tokens)

    def advance(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        config = self.gpt.config
        # litgpt turns a window's cache in a ring whose mask does not follow, and latent attention has another cache.
        if config.sliding_window_size is not None or config.latent_attention:
            return super().advance(tokens, state)
        memory = self.memory(tokens) if state is None else state
        end = memory.read + tokens.size(1)
        self.lend(memory.caches, memory.mask)
        try:
            positions = torch.arange(memory.read, end, device=tokens.device)
            features = self.gpt(tokens, positions, input_pos_maxp1=end)
        finally:
            self.gpt.clear_kv_cache()
        return features, Memory(end, memory.caches, memory.mask)

    def memory(self, tokens: Tensor) -> Memory:
        """Return the empty caches for rows like these."""
        self.gpt.set_kv_cache(tokens.size(0), device=tokens.device)
        return Memory(0, [block.attn.kv_cache for block in self.gpt.transformer.h], self.gpt.mask_cache)

    def lend(self, caches: list[KVCache], mask: Tensor) -> None:
        for block, cache in zip(self.gpt.transformer.h, caches, strict=True):
            block.attn.kv_cache = cache
        self.gpt.mask_cache = mask

    def logits(self, features: Tensor) -> Tensor:
        logits = self.head(features)[..., : self.config.vocabulary_size].float()
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)


def recipe(config: Config) -> Recipe:
    """AdamW for everything as the outside world does it; weight decay on matrices only.

    Pythia's own peak rate is 1e-3 for its smallest models at 2M tokens a step (arXiv 2304.01373, table 6).
    """
    return Recipe(
        groups=(
            ParameterGroup(
                "vectors", ("*.bias", "*norm*.weight", "*ln_f.weight"), "adamw", learning_rate=1e-3, epsilon=1e-8
            ),
            ParameterGroup("matrices", ("*",), "adamw", learning_rate=1e-3, weight_decay=0.1, epsilon=1e-8),
        ),
        schedule=Schedule(warmup=0.02, warmdown=0.6, final=0.05),
    )
