"""Small baseline models, one for each option."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from trainer.models import gpt

V, T, END = 96, 24, 7
SIZE = {"depth": 4, "width": 32, "heads": 2, "end_of_text": END}
SWITCHES = [field.name for field in dataclasses.fields(gpt.Config) if field.type == "bool"]
OPTIONS: dict[str, dict[str, Any]] = {
    "all defaults": {},
    **{f"{name} the other way": {name: not getattr(gpt.Config(V, T), name)} for name in SWITCHES},
    "nothing": {**dict.fromkeys(SWITCHES, False), "softcap": 0.0},
    "everything": {**dict.fromkeys(SWITCHES, True), "windows": "SSSL", "short_window": 6},
    "no cap": {"softcap": 0.0},
    "windows": {"windows": "SL", "short_window": 5},
    "one block": {"depth": 1},
    "memory": {"memory_rows": 40},
    "memory of documents": {"memory_rows": 40, "memory_orders": "1,3", "document_mask": True},
    "memory in slices": {"memory_rows": 40, "memory_width": 6, "memory_blocks": "0,1"},
    "positions of nanochat": {"rope_base": 100_000.0},
}


def build_random_model(seed: int = 0, **fields: Any) -> gpt.Model:
    """Return a model with random weights, since some parameters start at zero."""
    torch.manual_seed(seed)
    model = gpt.Model(dataclasses.replace(gpt.Config.sized(2, V, T), **{**SIZE, **fields}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def sample_tokens(seed: int = 0, rows: int = 2) -> Tensor:
    """Return random tokens with an end of text in the middle."""
    tokens = torch.randint(8, V, (rows, T), generator=torch.Generator().manual_seed(seed))
    tokens[:, [0, T // 2]] = END
    return tokens
