"""Encodings of hidden states and their gradients for the network (`SwarmConfig.wire`).

`fp32`, `bf16` and `fp16` are one tensor of that dtype. `fp8` is two: e4m3 numbers (arXiv 2209.05433, table 1) and an
fp32 scale for each position, which maps the largest number to 448.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.swarm.frames import DTYPES, MalformedFrameError

FP8_MAX = torch.finfo(torch.float8_e4m3fn).max  # 448
SMALLEST_SCALE = torch.finfo(torch.float32).tiny


def encode_tensor(tensor: Tensor, wire: str) -> tuple[Tensor, ...]:
    """Encode a hidden state or a gradient `[B, T, W]`."""
    if wire != "fp8":
        return (tensor.to(DTYPES[wire]),)
    tensor = tensor.float()
    scale = (tensor.abs().amax(dim=-1, keepdim=True) / FP8_MAX).clamp_min(SMALLEST_SCALE)
    return (tensor / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn), scale


def decode_tensor(tensors: Sequence[Tensor], wire: str, shape: Sequence[int]) -> Tensor:
    """Return a hidden state or gradient of this shape as it is computed with; raise `MalformedFrameError`."""
    shapes = [torch.Size(shape), torch.Size([*shape[:-1], 1])][: 2 if wire == "fp8" else 1]
    dtypes = [torch.float8_e4m3fn if wire == "fp8" else DTYPES[wire], torch.float32]
    if [tensor.shape for tensor in tensors] != shapes or any(
        t.dtype != d for t, d in zip(tensors, dtypes, strict=False)
    ):
        found = ", ".join(f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}" for tensor in tensors)
        raise MalformedFrameError(f"tensors {found or 'none'}, expected {wire} {list(shape)}")
    return tensors[0] if wire != "fp8" else tensors[0].float() * tensors[1]
