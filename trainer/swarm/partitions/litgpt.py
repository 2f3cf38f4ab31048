"""Partition of litgpt's GPT: stages send the residual stream only and compute rotary positions themselves."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainer.models.litgpt import Config, Model
from trainer.swarm.partitions.base import PartitionError, Parts


def check(model: Model) -> None:
    if model.head.weight is model.gpt.transformer.wte.weight:
        raise PartitionError("the head is tied to the embedding, which belongs to another stage")


def get_blocks(model: Model) -> nn.ModuleList:
    return model.gpt.transformer.h


def get_end_parts(model: Model) -> tuple[Parts, Parts]:
    return [(model.gpt.transformer, "wte")], [(model.gpt.transformer, "ln_f"), (model, "head")]


def count_streams(config: Config, done: int) -> int:
    return 1


def embed_tokens(model: Model, tokens: Tensor) -> Tensor:
    x = model.gpt.transformer.wte(tokens)
    return x * torch.tensor(model.gpt.config.n_embd**0.5, dtype=x.dtype) if model.gpt.config.scale_embeddings else x


def run_blocks(model: Model, tokens: Tensor, hidden: Tensor, start: int, stop: int) -> Tensor:
    cosine, sine = (table[: hidden.size(1)].unsqueeze(0) for table in (model.gpt.cos, model.gpt.sin))
    chosen = model.gpt.config.rope_indices
    for number in range(start, stop):
        tables = (cosine, sine) if chosen is None else (cosine[..., chosen[number]], sine[..., chosen[number]])
        hidden = model.gpt.transformer.h[number](hidden, *tables)
    return hidden


def normalize_output(model: Model, hidden: Tensor) -> Tensor:
    return model.gpt.transformer.ln_f(hidden)
