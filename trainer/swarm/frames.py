"""Frames of calls, a JSON header and raw tensors; the errors of calls; and encodings of hidden states.

The header has the dtype and shape of each tensor. Their total size is checked against a limit before any is read. A
frame cannot contain code.

Hidden states and their gradients are encoded by `SwarmConfig.wire`: `fp32`, `bf16` and `fp16` are one tensor of that
dtype. `fp8` is two: e4m3 numbers (arXiv 2209.05433, table 1) and an fp32 scale for each position, which maps the
largest number to 448.
"""

from __future__ import annotations

import asyncio
import json
import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MAX_HEADER_BYTES = 2**20
MAX_TENSORS = 4096  # Limit per frame
MAX_STRIDE = 2**40  # Limit of the product of a tensor's dimensions, except those that are 0
CHUNK_BYTES = 2**18
DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.float8_e4m3fn,
    "int64": torch.int64,
    "uint8": torch.uint8,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class CallError(Exception):
    """A call failed."""


class PeerUnreachableError(CallError):
    """The peer is unreachable, or the connection broke."""


class CallTimeoutError(CallError):
    """The peer did not reply in time."""


class CallRefusedError(CallError):
    """The peer refused the call. `code` says why: "stale", "frozen", "not_member", ..."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code, self.message = code, message


class MalformedFrameError(CallError):
    """The peer sent an invalid frame or message."""


@dataclass(frozen=True)
class RpcFrame:
    body: dict[str, Any]  # Plain JSON: a message of `trainer.swarm.messages`.
    tensors: tuple[Tensor, ...] = ()


async def send_frame(writer: asyncio.StreamWriter, header: dict[str, Any], tensors: Iterable[Tensor] = ()) -> int:
    """Write one frame; return the size of its tensors in bytes."""
    flat = [tensor.detach().to("cpu").contiguous() for tensor in tensors]
    header = {**header, "tensors": [[DTYPE_NAMES[t.dtype], list(t.shape)] for t in flat]}
    text = json.dumps(header, separators=(",", ":")).encode()
    assert len(text) <= MAX_HEADER_BYTES, "the header is too large"
    writer.write(struct.pack(">I", len(text)) + text)
    size = 0
    for tensor in flat:
        view = view_bytes(tensor)
        size += len(view)
        for start in range(0, len(view), CHUNK_BYTES):
            writer.write(view[start : start + CHUNK_BYTES])
            await writer.drain()
    await writer.drain()
    return size


async def receive_header(reader: asyncio.StreamReader) -> dict[str, Any]:
    (size,) = struct.unpack(">I", await reader.readexactly(4))
    if size > MAX_HEADER_BYTES:
        raise MalformedFrameError(f"a header of {size} bytes")
    try:
        header = json.loads(await reader.readexactly(size))
    except (ValueError, RecursionError) as error:
        raise MalformedFrameError("a header that is not JSON, or nested too deeply") from error
    if not isinstance(header, dict):
        raise MalformedFrameError("a header that is not an object")
    return header


async def receive_tensors(
    reader: asyncio.StreamReader, header: dict[str, Any], max_bytes: int
) -> tuple[tuple[Tensor, ...], int]:
    """Read the tensors of a frame; raise `MalformedFrameError` if they are too many or too large."""
    items = header.get("tensors", [])
    if not isinstance(items, list) or len(items) > MAX_TENSORS:
        raise MalformedFrameError("tensors that are not a list, or too many")
    announced = [parse_tensor_header(item) for item in items]
    total = sum(size for _, _, size in announced)
    if total > max_bytes:
        raise MalformedFrameError(f"{total} bytes of tensors, where at most {max_bytes} are allowed")
    tensors = []
    for dtype, shape, _ in announced:
        tensor = torch.empty(shape, dtype=dtype)
        await read_into(reader, view_bytes(tensor))
        tensors.append(tensor)
    return tuple(tensors), total


def parse_tensor_header(item: Any) -> tuple[torch.dtype, list[int], int]:
    """Return dtype, shape and size in bytes of one tensor in a header."""
    match item:
        case [str(name), list(shape)] if name in DTYPES:
            dtype = DTYPES[name]
        case _:
            raise MalformedFrameError("a tensor without a dtype or a shape")
    if len(shape) > 8 or not all(type(n) is int and n >= 0 for n in shape):
        raise MalformedFrameError(f"a tensor of shape {shape}")
    if math.prod(max(1, n) for n in shape) >= MAX_STRIDE:  # torch refuses it even if a dimension is 0
        raise MalformedFrameError(f"a tensor of shape {shape}")
    return dtype, shape, dtype.itemsize * math.prod(shape)


def view_bytes(tensor: Tensor) -> memoryview:
    """Return a view of a contiguous tensor's bytes."""
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())


async def read_into(reader: asyncio.StreamReader, view: memoryview) -> None:
    for start in range(0, len(view), CHUNK_BYTES):
        stop = min(start + CHUNK_BYTES, len(view))
        view[start:stop] = await reader.readexactly(stop - start)


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
