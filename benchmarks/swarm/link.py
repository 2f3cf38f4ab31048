"""A link with a speed, a delay and bad luck, in user space: a proxy before a peer's port.

    links = Links(Shape(megabits=100, milliseconds=50, cuts=0.01))
    with links: port = links.before(7000)      # dial this one, and the bytes take the link to port 7000

Bytes wait until the link would have carried them, each way by itself; half of `milliseconds` passes on the way there,
half on the way back. All connections of one machine share its link. `cuts` is the chance, each second, that a
connection is cut: both ends see a reset. What a kernel would do with lost packets is not played: TCP hides them.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

PIECE = 2**16


@dataclass(frozen=True)
class Shape:
    megabits: float | None = None
    """A second, each way; None: as fast as it goes."""
    milliseconds: float = 0.0
    """There and back."""
    cuts: float = 0.0
    """Chance that a connection is cut within a second."""


@dataclass
class Way:
    """One direction of a machine's link."""

    shape: Shape
    free_at: float = 0.0
    """When what has been sent so far is through."""

    def arrival(self, size: int, now: float) -> float:
        """Return when so many bytes, sent now, have arrived."""
        seconds = size * 8 / (self.shape.megabits * 1e6) if self.shape.megabits else 0.0
        self.free_at = max(self.free_at, now) + seconds
        return self.free_at + self.shape.milliseconds / 2000


@dataclass
class Links:
    """All the links of a test, in a thread of their own."""

    shape: Shape
    seed: int = 0
    cut: int = 0
    """Connections cut so far."""
    carried: int = 0
    """Bytes, both ways."""
    ports: dict[int, int] = field(default_factory=dict)
    servers: list[asyncio.Server] = field(default_factory=list)

    def __enter__(self) -> Self:
        self.chance, self.loop = random.Random(self.seed), asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.do(self.end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def do(self, work: Coroutine[Any, Any, int | None]) -> int | None:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    async def end(self) -> None:
        for server in self.servers:
            server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0.01)  # what was aborted is closed in the loop's next round

    def before(self, port: int) -> int:
        """Return a port whose connections take a link of its own to this one. The same one if asked again."""
        if port not in self.ports:
            opened = self.do(self.open(port))
            assert opened is not None
            self.ports[port] = opened
        return self.ports[port]

    async def open(self, port: int) -> int:
        ways = Way(self.shape), Way(self.shape)

        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                there = await asyncio.open_connection("127.0.0.1", port)
                await self.connection((reader, writer), there, ways)
            writer.close()

        server = await asyncio.start_server(carry, "127.0.0.1", 0)
        self.servers.append(server)  # who holds none loses it
        return int(server.sockets[0].getsockname()[1])

    async def connection(self, near: Any, far: Any, ways: tuple[Way, Way]) -> None:
        """Carry bytes both ways until an end closes, or luck runs out."""
        parts = [
            asyncio.ensure_future(self.carry(near[0], far[1], ways[0])),
            asyncio.ensure_future(self.carry(far[0], near[1], ways[1])),
            asyncio.ensure_future(self.bad_luck()),
        ]
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            self.cut += parts[2].done()
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            near[1].transport.abort()
            far[1].transport.abort()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way) -> None:
        """Take bytes in as they come, and let each out when it has arrived."""
        loop, on_the_way = asyncio.get_running_loop(), asyncio.Queue[tuple[float, bytes]](maxsize=256)

        async def let_out() -> None:
            while True:
                at, piece = await on_the_way.get()
                await asyncio.sleep(max(0.0, at - loop.time()))
                writer.write(piece)
                await writer.drain()
                if not piece:
                    return

        out = asyncio.ensure_future(let_out())
        try:
            while piece := await reader.read(PIECE):
                self.carried += len(piece)
                at = way.arrival(len(piece), loop.time())
                await on_the_way.put((at, piece))
                # No more is taken in than the link would hold: the sender waits as it would at a real one.
                await asyncio.sleep(max(0.0, way.free_at - loop.time() - 0.05))
            await on_the_way.put((loop.time() + way.shape.milliseconds / 2000, b""))
            await out
        finally:
            out.cancel()

    async def bad_luck(self) -> None:
        """Return when the connection is to be cut."""
        while not self.shape.cuts or self.chance.random() >= self.shape.cuts:
            await asyncio.sleep(1)
