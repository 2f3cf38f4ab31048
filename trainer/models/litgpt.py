"""litgpt's own GPT, by the name of one of its configurations.

Lightning AI's litgpt (https://github.com/Lightning-AI/litgpt, `litgpt/model.py` and `litgpt/config.py`) describes the
published decoder-only families. `pythia-14m` and its larger versions are GPT-NeoX as in Pythia (arXiv 2304.01373,
table 1): parallel attention and MLP, partial rotary positions, LayerNorm, biases, GELU. The forward pass is litgpt's.
The vocabulary is ours, and the head is separate, since the contract separates features from logits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from litgpt import GPT
from litgpt import Config as LitGPTConfig
from litgpt.model import KVCache as LitGPTCache
from torch import Tensor, nn

from trainer.models.base import LanguageModel, ParameterGroup, Recipe, Schedule, pad_vocabulary

LADDER = {6: "pythia-31m", 9: "pythia-70m", 14: "pythia-160m", 20: "pythia-410m", 26: "pythia-1b", 32: "pythia-1.4b"}
"""Depth limit -> configuration: below this depth the baseline is at most about this large. Beyond: pythia-2.8b."""


@dataclass(frozen=True)
class Config:
    vocabulary_size: int
    """Token ids are 0 .. vocabulary_size - 1."""
    sequence_length: int
    """Tokens in a training row, and the maximum context: its rotary tables end there."""
    name: str = "pythia-14m"
    """One of litgpt's configurations, or any other name if `fields` are complete."""
    fields: dict[str, Any] = field(default_factory=dict)
    """litgpt's fields that differ from the named configuration's, as in a checkpoint's model_config.yaml."""

    def __post_init__(self) -> None:
        self.to_litgpt()

    @classmethod
    def sized(cls, depth: int, vocabulary_size: int, sequence_length: int) -> Self:
        """Choose the smallest Pythia up to depth 4, then sizes near the baseline's."""
        name = "pythia-14m" if depth <= 4 else next((n for d, n in LADDER.items() if depth < d), "pythia-2.8b")
        return cls(vocabulary_size, sequence_length, name)

    def to_litgpt(self) -> LitGPTConfig:
        """Return litgpt's configuration with our vocabulary and length. Raises ValueError for an invalid one."""
        fields = {
            "padded_vocab_size": pad_vocabulary(self.vocabulary_size),
            **self.fields,
            "vocab_size": self.vocabulary_size,
            "block_size": self.sequence_length,
        }
        known = is_known_config(self.name)
        if not known and not self.fields:
            raise ValueError(f"litgpt has no configuration named {self.name!r}")
        try:
            config = LitGPTConfig.from_name(self.name, **fields) if known else LitGPTConfig(name=self.name, **fields)
        except (TypeError, ValueError, AssertionError, ZeroDivisionError) as error:
            raise ValueError(f"litgpt's configuration {self.name!r} is invalid: {error}") from error
        if config.padded_vocab_size < self.vocabulary_size:
            raise ValueError(f"litgpt: {config.padded_vocab_size} rows are too few for {self.vocabulary_size} tokens")
        return config


def is_known_config(name: str) -> bool:
    """Return whether litgpt has a configuration of this name."""
    try:
        LitGPTConfig.from_name(name)
    except ValueError:
        return False
    return True


@dataclass
class LitGPTState:
    """The state of `Model.advance`: litgpt's own caches, attached to its blocks only while they run."""

    length: int  # tokens so far
    caches: list[LitGPTCache]
    mask: Tensor


class Model(LanguageModel):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        litgpt_config = config.to_litgpt()
        # Removed from the config: litgpt would cap the output of its head, which is an identity here.
        self.softcap, litgpt_config.final_logit_softcapping = litgpt_config.final_logit_softcapping, None
        self.gpt = GPT(litgpt_config)
        self.head: nn.Module = self.gpt.lm_head
        self.gpt.lm_head = nn.Identity()
        self.initialize()

    def initialize(self) -> None:
        """Like litgpt's `pretrain.initialize_weights` (TinyLlama): std sqrt(2 / 5 / width), less where branches end."""
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
        # litgpt's sliding-window cache is a ring buffer with a wrong mask, and latent attention has another cache.
        if config.sliding_window_size is not None or config.latent_attention:
            return super().advance(tokens, state)
        state = state or self.empty_state(tokens)
        end = state.length + tokens.size(1)
        for block, cache in zip(self.gpt.transformer.h, state.caches, strict=True):
            block.attn.kv_cache = cache
        self.gpt.mask_cache = state.mask
        try:
            positions = torch.arange(state.length, end, device=tokens.device)
            features = self.gpt(tokens, positions, input_pos_maxp1=end)
        finally:
            self.gpt.clear_kv_cache()
        return features, LitGPTState(end, state.caches, state.mask)

    def empty_state(self, tokens: Tensor) -> LitGPTState:
        """Return empty caches for rows like these."""
        self.gpt.set_kv_cache(tokens.size(0), device=tokens.device)
        return LitGPTState(0, [block.attn.kv_cache for block in self.gpt.transformer.h], self.gpt.mask_cache)

    def logits(self, features: Tensor) -> Tensor:
        logits = self.head(features)[..., : self.config.vocabulary_size].float()
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)


def recipe(config: Config) -> Recipe:
    """Return AdamW for everything, with weight decay on matrices only.

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
