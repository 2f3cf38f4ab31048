"""What goes over a stream: a JSON header and raw tensors. And what can become of a call.

The header says of each tensor its dtype and shape; how many bytes that makes is held against a limit before any of them
is read. Nothing here can be code.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

HEADER_BYTES = 2**20
TENSORS = 4096
"""Most tensors of one frame."""
PIECE = 2**18
DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int64": torch.int64,
    "uint8": torch.uint8,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class CallFailed(Exception):
    """A call did not bring an answer."""


class Unreachable(CallFailed):
    """The peer cannot be reached, or was lost during the call."""


class TooSlow(CallFailed):
    """The peer did not answer in time."""


class Refused(CallFailed):
    """The peer answered that it will not, or cannot."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code, self.message = code, message


class Malformed(CallFailed):
    """What came is not what may come: the peer is broken, or not one of ours."""


@dataclass(frozen=True)
class Frame:
    body: dict[str, Any]
    """Plain JSON; `trainer.swarm.wire` says what may be in it."""
    tensors: tuple[Tensor, ...] = ()


async def send(writer: asyncio.StreamWriter, header: dict[str, Any], tensors: Iterable[Tensor] = ()) -> int:
    """Write one frame; return how many bytes its tensors have."""
    flat = [tensor.detach().to("cpu").contiguous() for tensor in tensors]
    header = {**header, "tensors": [[NAMES[t.dtype], list(t.shape)] for t in flat]}
    text = json.dumps(header, separators=(",", ":")).encode()
    assert len(text) <= HEADER_BYTES, "a header is for a few numbers"
    writer.write(struct.pack(">I", len(text)) + text)
    size = 0
    for tensor in flat:
        view = raw(tensor)
        size += len(view)
        for start in range(0, len(view), PIECE):
            writer.write(view[start : start + PIECE])
            await writer.drain()
    await writer.drain()
    return size


async def receive(reader: asyncio.StreamReader, most_bytes: int) -> tuple[dict[str, Any], tuple[Tensor, ...], int]:
    header = await receive_header(reader)
    tensors, size = await receive_tensors(reader, header, most_bytes)
    return header, tensors, size


async def receive_header(reader: asyncio.StreamReader) -> dict[str, Any]:
    (size,) = struct.unpack(">I", await reader.readexactly(4))
    if size > HEADER_BYTES:
        raise Malformed(f"a header of {size} bytes")
    try:
        header = json.loads(await reader.readexactly(size))
    except ValueError as error:
        raise Malformed("a header that is not JSON") from error
    if not isinstance(header, dict):
        raise Malformed("a header that is not an object")
    return header


async def receive_tensors(
    reader: asyncio.StreamReader, header: dict[str, Any], most_bytes: int
) -> tuple[tuple[Tensor, ...], int]:
    """Read the tensors that a header promises; raise Malformed where they are too many or too large."""
    promised = [described(item) for item in listed(header.get("tensors", []))]
    total = sum(size for _, _, size in promised)
    if total > most_bytes:
        raise Malformed(f"{total} bytes of tensors, where at most {most_bytes} may come")
    tensors = []
    for dtype, shape, _ in promised:
        tensor = torch.empty(shape, dtype=dtype)
        await fill(reader, raw(tensor))
        tensors.append(tensor)
    return tuple(tensors), total


def listed(promised: Any) -> list[Any]:
    if not isinstance(promised, list) or len(promised) > TENSORS:
        raise Malformed("tensors that are not a list, or too many")
    return promised


def described(item: Any) -> tuple[torch.dtype, list[int], int]:
    """Return dtype, shape and bytes of one tensor as a header describes it."""
    if not (isinstance(item, list) and len(item) == 2 and item[0] in DTYPES and isinstance(item[1], list)):
        raise Malformed("a tensor without a dtype or a shape")
    shape = item[1]
    if len(shape) > 8 or not all(type(n) is int and 0 <= n < 2**40 for n in shape):
        raise Malformed(f"a tensor of shape {shape}")
    size = DTYPES[item[0]].itemsize
    for length in shape:
        size *= length
    return DTYPES[item[0]], shape, size


def raw(tensor: Tensor) -> memoryview:
    """Return a contiguous tensor's own bytes, not a copy."""
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())


async def fill(reader: asyncio.StreamReader, view: memoryview) -> None:
    position = 0
    while position < len(view):
        piece = await reader.read(min(PIECE, len(view) - position))
        if not piece:
            raise EOFError("the stream ended within a tensor")
        view[position : position + len(piece)] = piece
        position += len(piece)
