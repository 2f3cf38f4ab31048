"""Frames: encodings of hidden states, and invalid messages, which raise `MalformedFrameError` and no other error."""

from __future__ import annotations

import asyncio
import json
import math
import struct
from typing import Any

import pytest
import torch

from trainer.swarm import messages
from trainer.swarm.frames import (
    DTYPES,
    MalformedFrameError,
    RpcFrame,
    decode_tensor,
    encode_tensor,
    receive_header,
    receive_tensors,
)

SHAPE = (2, 16, 48)


def random_tensor(scale: float = 1.0) -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(3)) * scale


@pytest.mark.parametrize("wire", ["fp32", "bf16", "fp16"])
def test_plain_encodings_are_one_tensor_of_that_dtype(wire: str) -> None:
    tensors = encode_tensor(random_tensor(), wire)
    assert [tensor.dtype for tensor in tensors] == [DTYPES[wire]]
    assert torch.equal(decode_tensor(tensors, wire, SHAPE), random_tensor().to(DTYPES[wire]))


@pytest.mark.parametrize("scale", [0.0, 1e-20, 1.0, 1e20])
def test_fp8_takes_a_byte_a_number_and_errs_by_a_sixteenth(scale: float) -> None:
    tensors = encode_tensor(random_tensor(scale), "fp8")
    assert len(tensors) == 2
    assert sum(tensor.nbytes for tensor in tensors) == 2 * 16 * (48 + 4)
    error = (decode_tensor(tensors, "fp8", SHAPE) - random_tensor(scale)).abs()
    largest = random_tensor(scale).abs().amax(-1, keepdim=True)
    assert (error <= random_tensor(scale).abs() / 16 + largest / 448 / 2**9).all()
    for bad in (float("nan"), float("inf")):
        gradient = random_tensor(scale)
        gradient[1, 3, 5] = bad
        assert not decode_tensor(encode_tensor(gradient, "fp8"), "fp8", SHAPE).isfinite().all(), "it is not hidden"


def test_unexpected_tensors_are_refused() -> None:
    numbers, scale = encode_tensor(random_tensor(), "fp8")
    for tensors in ((), (numbers,), (numbers, scale, scale), (numbers, scale.half()), (numbers[:1], scale[:1])):
        with pytest.raises(MalformedFrameError, match="expected fp8"):
            decode_tensor(tensors, "fp8", SHAPE)
    with pytest.raises(MalformedFrameError, match="expected fp32"):
        decode_tensor((random_tensor().half(),), "fp32", SHAPE)


PEER = "Qm" + "a" * 44
VOTE: dict[str, Any] = {"digest": "a" * 64, "squared_norm": 1.0}


def receive_frame(header: bytes) -> None:
    async def receive() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(struct.pack(">I", len(header)) + header)
        reader.feed_eof()
        await receive_tensors(reader, await receive_header(reader), max_bytes=2**20)

    asyncio.run(receive())


@pytest.mark.parametrize(
    "tensor", [[["fp32"], [1]], [{}, [1]], [None, [1]], ["fp33", [1]], ["fp32", [0, 2**39, 2**39]], ["fp32", [-1, 0]]]
)
def test_invalid_tensor_header_is_malformed(tensor: Any) -> None:
    with pytest.raises(MalformedFrameError, match="a tensor"):
        receive_frame(json.dumps({"body": {}, "tensors": [tensor]}).encode())


def test_deeply_nested_header_or_body_is_malformed() -> None:
    with pytest.raises(MalformedFrameError, match="nested too deeply"):
        receive_frame(b'{"body":' + b"[" * 100_000)
    body: dict[str, Any] = {}
    for _ in range(10_000):
        body = {"digest": body}
    with pytest.raises(MalformedFrameError, match="nested too deeply"):
        messages.parse_message(messages.Vote, RpcFrame(body))


@pytest.mark.parametrize("change", [{"squared_norm": -1.0}, {"squared_norm": -math.inf}, {"norms": [[PEER, -1.0]]}])
def test_negative_squared_norm_is_malformed(change: dict[str, Any]) -> None:
    with pytest.raises(MalformedFrameError, match="negative"):
        messages.parse_message(messages.Vote, RpcFrame(VOTE | change))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_vote_keeps_values_that_are_not_finite(value: float) -> None:
    vote = messages.Vote(digest="a" * 64, squared_norm=value, norms=((PEER, value),))
    parsed = messages.parse_message(messages.Vote, messages.to_frame(vote))
    assert [repr(each) for each in (parsed.squared_norm, parsed.norms[0][1])] == [repr(value)] * 2
