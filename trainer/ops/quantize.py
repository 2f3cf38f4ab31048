"""Smaller weights for inference: the linear layers in 8 or 4 bits, by bitsandbytes (the extra `cuda`).

8 bit is LLM.int8 (arXiv 2208.07339): a scale a row, and inputs beyond +-6 multiplied in full precision. 4 bit is NF4
(arXiv 2305.14314, section 3): a scale every 64 weights. Embeddings, norms and the head stay as they are: the head's
rounding would go straight into the probabilities. It runs on a CPU too, where it saves memory and no time.
"""

from __future__ import annotations

import logging
from types import ModuleType
from typing import Literal

import torch
from torch import nn

from trainer.models.base import LanguageModel

Load = Literal["8bit", "4bit"]


def quantised(model: LanguageModel, load: Load, device: torch.device) -> LanguageModel:
    """Replace the model's linear layers by quantised ones and move it to the device. It cannot be trained any more.

    Raises ValueError where bitsandbytes is not installed.
    """
    library = bitsandbytes()
    for name, module in list(model.named_modules()):
        if type(module) is nn.Linear and not name.endswith("head"):
            parent, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(parent), attribute, packed(library, module, load, device))
    return model.to(device).eval().requires_grad_(False)


def packed(library: ModuleType, layer: nn.Linear, load: Load, device: torch.device) -> nn.Module:
    """Return a layer's quantised double. The library packs weights when they are moved to a device."""
    shape = {"input_features": layer.in_features, "output_features": layer.out_features, "bias": layer.bias is not None}
    if load == "8bit":
        double = library.nn.Linear8bitLt(**shape, has_fp16_weights=False)
    else:
        compute = torch.bfloat16 if device.type == "cuda" else torch.float32
        double = library.nn.Linear4bit(**shape, compute_dtype=compute, quant_type="nf4")
    double.load_state_dict(layer.state_dict())
    return double.to(device)


def bitsandbytes() -> ModuleType:
    # It warns of every layer at every token that inputs are rounded, which is what was asked for.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    try:
        import bitsandbytes as library
    except ImportError as error:
        raise ValueError("8 and 4 bits need the package bitsandbytes: pip install 'dailytrain[cuda]'") from error
    return library
