"""Training FLOPs of a model, counted and not reported: forward and backward through torch's `FlopCounterMode`.

Counted are matrix products, convolutions and attention (a product of n x k and k x m is 2nkm). Attention counts as if
every position looked at every other, causal or not, windowed or not: the counter's convention, and the field's.
Element-wise work is not counted. A custom kernel without a registered formula counts as nothing.
"""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from trainer.models.base import LanguageModel

PEAK = {
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "RTX 4090": 165e12,
}
"""Dense bf16 FLOP/s, accumulated in fp32, from the vendors' data sheets; the first name found in the device's wins."""


def per_token(model: LanguageModel, sequence_length: int, device: torch.device) -> float:
    """Return the FLOPs of a forward and backward pass over one row, divided by its tokens. Gradients are left empty."""
    tokens = torch.zeros(1, sequence_length, dtype=torch.int64, device=device)
    # The plain kernel, written in matrix products: the fused one for CPUs has no formula and would count as nothing.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(tokens).float().logsumexp(-1).sum().backward()
    model.zero_grad(set_to_none=True)
    return counter.get_total_flops() / sequence_length


def peak(device: torch.device) -> float | None:
    """Return a device's dense bf16 FLOP/s, None where we have no figure (every CPU)."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((figure for part, figure in PEAK.items() if part in name), None)
