"""Shapes of published models, as fields of an architecture's own Config, for what is compared with others' runs."""

from __future__ import annotations

from typing import Any

GPT2: dict[str, Any] = {
    "name": "gpt2-124m",
    "fields": {
        "n_layer": 12,
        "n_head": 12,
        "n_embd": 768,
        "intermediate_size": 3072,
        "rotary_percentage": 1.0,
        "parallel_residual": False,
        "bias": True,
        "norm_class_name": "LayerNorm",
        "mlp_class_name": "GptNeoxMLP",
        "gelu_approximate": "tanh",
    },
}
"""GPT-2 124M in litgpt's terms. litgpt has no learned positions, so these are rotary; and a head of its own, which a
model that is cut needs, has 38.6 million parameters more."""
