"""Reduction of gradient sums: all peers get the same bits."""

from __future__ import annotations

import asyncio

import pytest
import torch
from torch import Tensor

from trainer.swarm import sum_exchange


@pytest.mark.parametrize("peers", [1, 2, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mean_is_the_sum_in_the_order_of_the_peers(
    peers: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sum_exchange, "CHUNK_PARAMETERS", 100)
    torch.manual_seed(peers)
    sums = {f"peer-{number}": torch.randn(1003).to(dtype) for number in range(peers)}

    async def read(peer: str, chunk: range) -> Tensor:
        await asyncio.sleep(0)
        return sums[peer][chunk.start : chunk.stop]

    norms: dict[str, float] = {}
    mean = asyncio.run(sum_exchange.reduce_mean(sorted(sums), 1003, 8, read, norms))
    assert torch.equal(mean, sum(sums[peer].float() for peer in sorted(sums)) * (1 / 8))
    assert norms == pytest.approx({peer: float(total.double().square().sum()) for peer, total in sums.items()})


def test_unreadable_peer_fails_the_reduction() -> None:
    async def read(peer: str, chunk: range) -> Tensor:
        raise ConnectionError(peer)

    with pytest.raises(ConnectionError):
        asyncio.run(sum_exchange.reduce_mean(["a", "b"], 10, 8, read, {}))
