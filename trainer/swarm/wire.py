"""Encodings of hidden states and their gradients for the network (`SwarmConfig.wire`).

`fp32`, `bf16` and `fp16` are one tensor of that dtype. `fp8` is two: e4m3 numbers (arXiv 2209.05433, table 1) and an
fp32 scale for each position, which maps the largest number to 448.

`fp8-feedback` has error feedback for gradients, along a row: the rounding error of a position is added to the next one
before that is rounded. So the errors cancel in sums over positions (as in arXiv 1901.09847, algorithm 1, there over
steps). Nothing is carried from one micro-batch to the next: two peers that compute the same gradient send the same
bytes. It did not lower the loss in benchmarks/results/swarm-efficiency.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.swarm.frames import DTYPES, MalformedFrameError

FP8_WIRES = ("fp8", "fp8-feedback")
FP8_MAX = torch.finfo(torch.float8_e4m3fn).max  # 448
SMALLEST_SCALE = torch.finfo(torch.float32).tiny


def count_tensors(wire: str) -> int:
    """Return the number of tensors of an encoding."""
    return 2 if wire in FP8_WIRES else 1


def encode_hidden(hidden: Tensor, wire: str) -> tuple[Tensor, ...]:
    """Encode a hidden state `[B, T, W]`."""
    if wire not in FP8_WIRES:
        return (hidden.to(DTYPES[wire]),)
    hidden = hidden.float()
    scale = compute_scale(hidden)
    return round_to_fp8(hidden, scale), scale


def encode_gradient(gradient: Tensor, wire: str) -> tuple[Tensor, ...]:
    """Encode the gradient of a hidden state `[B, T, W]`."""
    if wire != "fp8-feedback":
        return encode_hidden(gradient, wire)
    gradient = gradient.float()
    scale, error, encoded = compute_scale(gradient), torch.zeros_like(gradient[:, 0]), []
    for position, each in zip(gradient.unbind(1), scale.unbind(1), strict=True):
        wanted = position + error
        encoded.append(round_to_fp8(wanted, each))
        error = wanted - encoded[-1].float() * each
    return torch.stack([number.view(torch.uint8) for number in encoded], dim=1).view(torch.float8_e4m3fn), scale


def compute_scale(tensor: Tensor) -> Tensor:
    """Return the scale of each position, `[B, T, 1]`, fp32."""
    return (tensor.abs().amax(dim=-1, keepdim=True) / FP8_MAX).clamp_min(SMALLEST_SCALE)


def round_to_fp8(tensor: Tensor, scale: Tensor) -> Tensor:
    """Round to the nearest e4m3 number. Larger numbers become the largest, which the next position corrects."""
    return (tensor / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)


def decode_tensor(tensors: Sequence[Tensor], wire: str, shape: Sequence[int]) -> Tensor:
    """Return a hidden state or gradient of this shape as it is computed with; raise `MalformedFrameError`."""
    shapes = [torch.Size(shape), torch.Size([*shape[:-1], 1])][: count_tensors(wire)]
    dtypes = [torch.float8_e4m3fn if wire in FP8_WIRES else DTYPES[wire], torch.float32]
    if [tensor.shape for tensor in tensors] != shapes or any(
        t.dtype != d for t, d in zip(tensors, dtypes, strict=False)
    ):
        found = ", ".join(f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}" for tensor in tensors)
        raise MalformedFrameError(f"tensors {found or 'none'}, expected {wire} {list(shape)}")
    return tensors[0] if wire not in FP8_WIRES else tensors[0].float() * tensors[1]
