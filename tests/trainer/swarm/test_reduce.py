"""Reduction of gradient sums: all-gather and butterfly give all peers the same bits."""

from __future__ import annotations

import asyncio

import pytest
import torch
from torch import Tensor

from trainer.swarm import reduce


async def reduce_all(sums: dict[str, Tensor], dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Run the reduction at all peers; return the result of each."""
    published: dict[str, asyncio.Future[Tensor]] = {peer: asyncio.get_running_loop().create_future() for peer in sums}

    async def read_chunk(peer: str, which: str, chunk: range) -> Tensor:
        whole = sums[peer] if which == "snapshot" else await published[peer]
        return whole[chunk.start : chunk.stop].to(dtype)

    async def reduce_at(own: str) -> Tensor:
        async def publish(total: Tensor) -> None:
            published[own].set_result(total)

        return await reduce.all_reduce_mean(own, sorted(sums), len(sums[own]), 8, dtype, read_chunk, publish)

    return dict(zip(sums, await asyncio.gather(*map(reduce_at, sums)), strict=True))


@pytest.mark.parametrize("peers", [1, 2, 4, 5, 7])
def test_all_peers_get_bit_identical_means(peers: int) -> None:
    torch.manual_seed(peers)
    sums = {f"peer-{number}": torch.randn(1003) for number in range(peers)}
    expected = sum(sums[peer] for peer in sorted(sums)) * (1 / 8)
    for mean in asyncio.run(reduce_all(sums)).values():
        assert torch.equal(mean, expected)


@pytest.mark.parametrize("peers", [3, 6])
def test_bf16_means_are_identical(peers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduce, "CHUNK_PARAMETERS", 100)
    torch.manual_seed(peers)
    sums = {f"peer-{number}": torch.randn(1003) for number in range(peers)}
    first, *others = asyncio.run(reduce_all(sums, torch.bfloat16)).values()
    assert all(torch.equal(first, other) for other in others)
    assert torch.allclose(first, sum(sums.values()) / 8, atol=0.05)


def test_unreadable_peer_fails_the_reduction() -> None:
    async def read_chunk(peer: str, which: str, chunk: range) -> Tensor:
        raise ConnectionError(peer)

    async def publish(total: Tensor) -> None:
        raise AssertionError("nothing to publish")

    with pytest.raises(ConnectionError):
        asyncio.run(reduce.all_reduce_mean("a", ["a", "b"], 10, 8, torch.float32, read_chunk, publish))
