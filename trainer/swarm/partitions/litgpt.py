"""Partition of litgpt's GPT: stages send the residual stream only and compute rotary positions themselves."""

from __future__ import annotations

import torch
from litgpt.model import build_mask_cache
from torch import Tensor, nn

from trainer.models.litgpt import Config, Model
from trainer.swarm.partitions.base import Parts, StageCache


def get_blocks(model: Model) -> nn.ModuleList:
    return model.gpt.transformer.h


def get_end_parts(model: Model) -> tuple[Parts, Parts]:
    return [(model.gpt.transformer, "wte")], [(model.gpt.transformer, "ln_f"), (model, "head")]


def count_streams(config: Config, done: int) -> int:
    return 1


def build_cache(model: Model) -> StageCache:
    return StageCache()


def embed_tokens(model: Model, tokens: Tensor, cache: StageCache | None = None) -> Tensor:
    x = model.gpt.transformer.wte(tokens)
    return x * torch.tensor(model.gpt.config.n_embd**0.5, dtype=x.dtype) if model.gpt.config.scale_embeddings else x


def run_blocks(
    model: Model, tokens: Tensor, hidden: Tensor, start: int, stop: int, cache: StageCache | None = None
) -> Tensor:
    if cache and (model.gpt.config.sliding_window_size is not None or model.gpt.config.latent_attention):
        return recompute_blocks(model, hidden, start, stop, cache)
    first = cache.length if cache else 0
    end = first + hidden.size(1)
    cosine, sine = (table[first:end].unsqueeze(0) for table in (model.gpt.cos, model.gpt.sin))
    chosen = model.gpt.config.rope_indices
    positions = prepare_caches(model, hidden, range(start, stop), cache) if cache else ()
    for number in range(start, stop):
        tables = (cosine, sine) if chosen is None else (cosine[..., chosen[number]], sine[..., chosen[number]])
        hidden = model.gpt.transformer.h[number](hidden, *tables, *positions)
        if cache:
            model.gpt.transformer.h[number].attn.kv_cache = None
    if cache:
        cache.length = end
    return hidden


def recompute_blocks(model: Model, hidden: Tensor, start: int, stop: int, cache: StageCache) -> Tensor:
    """Run the blocks over the whole text, as `Model.advance` does where litgpt's own caches cannot be used."""
    inputs = torch.cat((cache.blocks[start], hidden), dim=1) if cache.length else hidden
    cache.blocks[start], cache.length = inputs, inputs.size(1)
    return run_blocks(model, inputs, inputs, start, stop)[:, -hidden.size(1) :]


def prepare_caches(model: Model, hidden: Tensor, numbers: range, cache: StageCache) -> tuple[Tensor, Tensor, int]:
    """Attach litgpt's caches to the blocks; return the blocks' further arguments: mask, positions and their end."""
    gpt, first, end = model.gpt, cache.length, cache.length + hidden.size(1)
    for number in numbers:
        attention = gpt.transformer.h[number].attn
        if number not in cache.blocks:
            sizes = hidden.size(0), gpt.max_seq_length, gpt.rope_cache_length()
            cache.blocks[number] = attention.build_kv_cache(*sizes, hidden.device, hidden.dtype)
        attention.kv_cache = cache.blocks[number]
    mask = build_mask_cache(gpt.max_seq_length, hidden.device)[:, :, first:end, :end]
    return mask, torch.arange(first, end, device=hidden.device), end


def normalize_output(model: Model, hidden: Tensor) -> Tensor:
    return model.gpt.transformer.ln_f(hidden)
