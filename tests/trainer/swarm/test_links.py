"""A swarm over slow links with disconnections, or with undialable machines, has the losses of one process.

The links are proxies (`benchmarks.swarm.link`); all processes and their connections are real.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.swarm_chain import build_tiny_config
from tests.support.waits import WAIT_SECONDS
from trainer.data.dataset import Dataset
from trainer.swarm.comparison import compare_with_single_process

pytest.importorskip("hivemind", reason="the extra `swarm` is not installed")
from benchmarks.swarm.link import Links, LinkShape


@contextlib.asynccontextmanager
async def echo_behind(links: Links) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while chunk := await reader.read(2**16):
                writer.write(chunk)
                await writer.drain()
        except ConnectionResetError:
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server:
        port = links.get_proxy_port(server.sockets[0].getsockname()[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()
            await asyncio.sleep(0.05)  # the echo server notices it


def test_link_delays_data() -> None:
    async def measure(links: Links) -> float:
        async with echo_behind(links) as (reader, writer):
            started = time.monotonic()
            writer.write(bytes(10**6))
            await reader.readexactly(10**6)
            return time.monotonic() - started

    with Links(LinkShape(megabits=40, milliseconds=100)) as links:
        seconds = asyncio.run(measure(links))
    assert seconds >= 0.2 + 0.1  # 8 Mbit at 40 Mbit/s, both directions overlapping, and the delay


@pytest.mark.slow
def test_swarm_over_slow_breaking_links_equals_single_process(dataset_folder: Path) -> None:
    config = build_tiny_config(Dataset.open(dataset_folder), steps=8, checkpoint_every=8)
    with Links(LinkShape(megabits=100, milliseconds=50, cuts=0.04), seed=1) as links:
        result, _ = compare_with_single_process(
            config, dataset_folder, 2, "none", timeout=15, seconds=WAIT_SECONDS, links=links.get_proxy_port
        )
    sys.stdout.write(f"{result}; {links.cut} connections cut, {links.transferred} bytes\n")
    assert result.is_passed(8)
    assert links.transferred > 0


@pytest.mark.slow
def test_undialable_worker_takes_part(dataset_folder: Path) -> None:
    config = build_tiny_config(Dataset.open(dataset_folder), steps=24, checkpoint_every=24)
    result, lines = compare_with_single_process(
        config, dataset_folder, 2, "none", timeout=60, seconds=WAIT_SECONDS, undialable={"worker-1"}
    )
    assert result.is_passed(24)
    hidden = next(line["peer"] for line in lines if line["kind"] == "join" and line["label"] == "worker-1")
    assert any(stage.get(hidden) for line in lines if line["kind"] == "commit" for stage in line["cover"].values())


@pytest.mark.slow
def test_undialable_workers_connect_by_relay(dataset_folder: Path) -> None:
    config = build_tiny_config(Dataset.open(dataset_folder), steps=8, checkpoint_every=8)
    hidden = {"worker-0", "worker-1"}
    result, lines = compare_with_single_process(
        config, dataset_folder, 1, "none", timeout=60, seconds=WAIT_SECONDS, undialable=hidden
    )
    assert result.is_passed(8)
    assert {line["label"] for line in lines if line["kind"] == "join"} == hidden, "no other worker took part"
    assert next(line["seconds"] for line in lines if line["kind"] == "commit") < 150, "libp2p alone takes three minutes"
