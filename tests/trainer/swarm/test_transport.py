"""Calls between two peers over real, encrypted connections: both in this process, each with its own daemon."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.waits import WAIT_SECONDS
from trainer.swarm.frames import (
    CallError,
    CallRefusedError,
    CallTimeoutError,
    MalformedFrameError,
    PeerUnreachableError,
    RpcFrame,
)
from trainer.swarm.local_swarm import find_processes
from trainer.swarm.transport import Route, Transport, remove_stale_sockets

pytest.importorskip("hivemind", reason="the extra `swarm` is not installed")


@contextlib.asynccontextmanager
async def pair(folder: Path) -> AsyncIterator[tuple[Transport, Transport]]:
    """A calling and an answering peer."""
    caller, other = Transport(folder / "caller"), Transport(folder / "other")
    try:
        await asyncio.gather(caller.start(), other.start())
        caller.add_addresses(other.peer, other.addresses)
        await other.serve(routes())
        yield caller, other
    finally:
        await asyncio.gather(caller.close(), other.close())


started: list[str] = []
ended: list[str] = []


def routes() -> dict[str, Route]:
    async def echo(peer: str, frame: RpcFrame) -> RpcFrame:
        return RpcFrame({"peer": peer, **frame.body}, frame.tensors)

    async def count(peer: str, frame: RpcFrame) -> AsyncIterator[RpcFrame]:
        for number in range(3):
            yield RpcFrame({"number": number}, (torch.full((2,), number),))

    async def never(peer: str, frame: RpcFrame) -> RpcFrame:
        started.append("never")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append("never")
        return frame

    async def refuse(peer: str, frame: RpcFrame) -> RpcFrame:
        raise CallRefusedError("stale", "too late")

    async def broken(peer: str, frame: RpcFrame) -> RpcFrame:
        raise RuntimeError("boom")

    handlers: dict[str, Any] = {"echo": echo, "count": count, "never": never, "refuse": refuse, "broken": broken}
    known = {name: Route(handler, lambda peer: True, 2**20) for name, handler in handlers.items()}
    return {**known, "private": Route(echo, lambda peer: False, 2**20)}


@pytest.fixture
def run_conversation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Run a conversation; afterwards nothing of it may be left."""
    # Not pytest's folder: a socket's path is limited to about 100 characters.
    sockets = Path(tempfile.mkdtemp(prefix="swarm-"))
    monkeypatch.setenv("SWARM_SOCKETS", str(sockets))

    def run(conversation: Callable[[Transport, Transport], Awaitable[None]]) -> None:
        async def main() -> None:
            async with pair(tmp_path) as (caller, other):
                await conversation(caller, other)

        asyncio.run(main())
        assert not list(sockets.iterdir())
        assert not find_processes(str(sockets))

    yield run
    shutil.rmtree(sockets)


async def wait_for_length(entries: list[str], length: int) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while len(entries) < length:
            await asyncio.sleep(0.02)


async def failure(call: Awaitable[Any]) -> CallError:
    with pytest.raises(CallError) as error:
        await call
    return error.value


def test_frames_round_trip_and_caller_is_authenticated(run_conversation: Callable[..., None]) -> None:
    async def conversation(caller: Transport, other: Transport) -> None:
        kinds = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8)
        sent = tuple(torch.arange(12).reshape(3, 4).to(kind) for kind in kinds)
        answer = await caller.call(other.peer, "echo", RpcFrame({"a": [1, None]}, sent), WAIT_SECONDS)
        assert answer.body == {"peer": caller.peer, "a": [1, None]}
        assert all(torch.equal(back, there) for back, there in zip(answer.tensors, sent, strict=True))
        parts = [part async for part in caller.stream(other.peer, "count", RpcFrame({}), WAIT_SECONDS)]
        assert [part.body["number"] for part in parts] == [0, 1, 2]
        assert parts[2].tensors[0].tolist() == [2, 2]

    run_conversation(conversation)


def test_oversized_or_forbidden_calls_are_refused(run_conversation: Callable[..., None]) -> None:
    async def conversation(caller: Transport, other: Transport) -> None:
        large = RpcFrame({}, (torch.zeros(2**20),))
        assert "where at most" in str(await failure(caller.call(other.peer, "echo", large, WAIT_SECONDS)))
        for method, code in {
            "private": "not_member",
            "nothing": "unknown",
            "refuse": "stale",
            "broken": "failed",
        }.items():
            error = await failure(caller.call(other.peer, method, RpcFrame({}), WAIT_SECONDS))
            assert isinstance(error, CallRefusedError)
            assert error.code == code
        answer = RpcFrame({}, (torch.zeros(100),))
        assert isinstance(
            await failure(caller.call(other.peer, "echo", answer, WAIT_SECONDS, max_bytes=399)), MalformedFrameError
        )
        assert (await caller.call(other.peer, "echo", RpcFrame({}), WAIT_SECONDS)).body["peer"] == caller.peer

    run_conversation(conversation)


def test_call_timeout_cancels_the_handler(run_conversation: Callable[..., None]) -> None:
    async def conversation(caller: Transport, other: Transport) -> None:
        await caller.call(other.peer, "echo", RpcFrame({}), WAIT_SECONDS)
        started.clear()
        ended.clear()
        seconds = 0.3
        while not started:  # a slow machine's request may not arrive in the first of these times
            assert isinstance(await failure(caller.call(other.peer, "never", RpcFrame({}), seconds)), CallTimeoutError)
            seconds *= 2
        await wait_for_length(ended, len(started))
        count = len(started)
        waiting = asyncio.ensure_future(caller.call(other.peer, "never", RpcFrame({}), WAIT_SECONDS))
        await wait_for_length(started, count + 1)
        await other.close()
        assert isinstance(await failure(waiting), PeerUnreachableError)
        last = caller.call(other.peer, "echo", RpcFrame({}), WAIT_SECONDS)
        assert isinstance(await failure(last), PeerUnreachableError)

    run_conversation(conversation)


def test_stale_sockets_are_removed_and_live_ones_stay(tmp_path: Path) -> None:
    own, killed, other = (tmp_path / f"swarm-{name}" for name in (f"{os.getpid()}-a", "4194305-b", "notes"))
    for folder in (own, killed, other):
        folder.mkdir()
    remove_stale_sockets(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([own, other])
