"""Public architectures as entries: one file each, as a contributor would write it. Test data, and examples."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from trainer.models.base import Architecture

PUBLIC_ARCHITECTURES = (
    # attention
    "alibi",
    "grouped_query_attention",
    "multi_latent_attention",
    "differential_attention",
    "primer",
    # depth and sharing
    "albert",
    "recurrent_depth",
    "stochastic_depth",
    # tables, experts, inputs and outputs
    "mixture_of_experts",
    "product_key_memory",
    "mixture_of_softmaxes",
    "ngram_hash_embeddings",
    "megabyte",
    # linear attention and recurrences
    "linear_attention",
    "gated_linear_attention",
    "delta_net",
    "mamba",
    "lstm",
    "min_gru",
    # convolutions and matrices over positions
    "long_convolution",
    "hyena",
    "gated_convolution",
    "gmlp",
)


def load_public_architecture(name: str) -> Architecture:
    """Import an example."""
    return cast("Architecture", importlib.import_module(f"{__name__}.{name}"))
