"""Reduction of gradient sums: all-gather and butterfly give all peers the same bits."""

from __future__ import annotations

import asyncio

import pytest
import torch
from torch import Tensor

from trainer.swarm import reduce


async def reduce_all(sums: dict[str, Tensor], dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Let all peers add up; return what each of them got."""
    published: dict[str, asyncio.Future[Tensor]] = {peer: asyncio.get_running_loop().create_future() for peer in sums}

    async def read(peer: str, which: str, start: int, stop: int) -> Tensor:
        whole = sums[peer] if which == "snapshot" else await published[peer]
        return whole[start:stop].to(dtype)

    async def one(me: str) -> Tensor:
        async def publish(total: Tensor) -> None:
            published[me].set_result(total)

        return await reduce.all_reduce_mean(me, sorted(sums), len(sums[me]), 8, dtype, read, publish)

    return dict(zip(sums, await asyncio.gather(*map(one, sums)), strict=True))


@pytest.mark.parametrize("peers", [1, 2, 4, 5, 7])
def test_all_peers_get_bit_identical_means(peers: int) -> None:
    torch.manual_seed(peers)
    sums = {f"peer-{number}": torch.randn(1003) for number in range(peers)}
    wanted = sum(sums[peer] for peer in sorted(sums)) * (1 / 8)
    for mean in asyncio.run(reduce_all(sums)).values():
        assert torch.equal(mean, wanted)


@pytest.mark.parametrize("peers", [3, 6])
def test_bf16_means_are_identical(peers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduce, "CHUNK_PARAMETERS", 100)
    sums = {f"peer-{number}": torch.randn(1003) for number in range(peers)}
    first, *others = asyncio.run(reduce_all(sums, torch.bfloat16)).values()
    assert all(torch.equal(first, other) for other in others)
    assert torch.allclose(first, sum(sums.values()) / 8, atol=0.05)


def test_unreadable_peer_fails_the_reduction() -> None:
    async def read(peer: str, which: str, start: int, stop: int) -> Tensor:
        raise ConnectionError(peer)

    async def publish(total: Tensor) -> None:
        raise AssertionError("nothing to publish")

    with pytest.raises(ConnectionError):
        asyncio.run(reduce.all_reduce_mean("a", ["a", "b"], 10, 8, torch.float32, read, publish))
