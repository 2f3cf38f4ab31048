"""Quantize linear layers to 8 or 4 bits for inference, with bitsandbytes (the extra `gpu`).

8 bit is LLM.int8 (arXiv 2208.07339): one scale per row, and inputs beyond +-6 are multiplied in full precision. 4 bit
is NF4 (arXiv 2305.14314, section 3): one scale per 64 weights. Embeddings and the head, whose rounding changes
probabilities directly, have 8 bits in both; norms and tied tables keep their precision. On a CPU this saves memory, but
no time.
"""

from __future__ import annotations

import logging
from collections import Counter
from types import ModuleType
from typing import Literal, TypeVar

import torch
from torch import nn

from trainer.errors import UserError

QuantizedPrecision = Literal["8bit", "4bit"]
ModelT = TypeVar("ModelT", bound=nn.Module)


def quantize(model: ModelT, precision: QuantizedPrecision, device: torch.device) -> ModelT:
    """Replace linear layers and embeddings by quantized ones and move the model to the device. It can no longer be
    trained. Raises UserError if bitsandbytes is not installed.
    """
    library = import_bitsandbytes()
    uses = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    for name, module in list(model.named_modules()):
        if type(module) not in (nn.Linear, nn.Embedding) or uses[id(module.weight)] > 1:
            continue
        if isinstance(module, nn.Linear):
            quantized = quantize_layer(library, module, "8bit" if name.endswith("head") else precision, device)
        else:
            quantized = library.nn.Embedding8bit(module.num_embeddings, module.embedding_dim, dtype=module.weight.dtype)
            quantized.load_state_dict(module.state_dict())
            quantized = quantized.to(device)
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, quantized)
    return model.to(device).eval().requires_grad_(False)


def quantize_layer(
    library: ModuleType, layer: nn.Linear, precision: QuantizedPrecision, device: torch.device
) -> nn.Module:
    """Return a quantized copy of a layer. The library packs weights when they move to a device."""
    shape = {"input_features": layer.in_features, "output_features": layer.out_features, "bias": layer.bias is not None}
    if precision == "8bit":
        quantized = library.nn.Linear8bitLt(**shape, has_fp16_weights=False)
    else:
        compute = torch.bfloat16 if device.type == "cuda" else torch.float32
        quantized = library.nn.Linear4bit(**shape, compute_dtype=compute, quant_type="nf4")
    quantized.load_state_dict(layer.state_dict())
    return quantized.to(device)


def import_bitsandbytes() -> ModuleType:
    # For every layer and token it warns that inputs are rounded.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    try:
        import bitsandbytes as library
    except ImportError as error:
        raise UserError("8 and 4 bits need the package bitsandbytes: pip install 'dailytrain[gpu]'") from error
    return library
