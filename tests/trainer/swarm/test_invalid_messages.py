"""Invalid frames and messages raise `MalformedFrameError`, which evicts their sender, and no other error."""

from __future__ import annotations

import asyncio
import json
import math
import struct
from typing import Any

import pytest

from trainer.swarm import messages
from trainer.swarm.frames import MalformedFrameError, RpcFrame, receive_header, receive_tensors

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


def test_deeply_nested_header_is_malformed() -> None:
    with pytest.raises(MalformedFrameError, match="nested too deeply"):
        receive_frame(b'{"body":' + b"[" * 100_000)


def test_deeply_nested_body_is_malformed() -> None:
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
