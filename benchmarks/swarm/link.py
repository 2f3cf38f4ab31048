"""A simulated link with a bandwidth, a delay and random disconnections: a proxy in front of a peer's port.

    links = Links(LinkShape(megabits=100, milliseconds=50, cuts=0.01))
    with links: port = links.get_proxy_port(7000)  # connections to this port pass the link to port 7000

Bytes are delayed until the link would have delivered them, in each direction separately, with half of `milliseconds`
each way. All connections of one machine share its link. `cuts` is the probability, per second, that a connection is
reset at both ends. Packet loss is not simulated: TCP hides it.
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

CHUNK_BYTES = 2**16


@dataclass(frozen=True)
class LinkShape:
    megabits: float | None = None  # Per second, each way; None: unlimited
    milliseconds: float = 0.0  # Round trip
    cuts: float = 0.0  # Probability of a disconnection within a second


@dataclass
class LinkDirection:
    """One direction of a machine's link."""

    shape: LinkShape
    free_at: float = 0.0  # When everything sent so far has been transferred

    def compute_arrival(self, size: int, now: float) -> float:
        """Return the arrival time of `size` bytes that are sent now."""
        seconds = size * 8 / (self.shape.megabits * 1e6) if self.shape.megabits else 0.0
        self.free_at = max(self.free_at, now) + seconds
        return self.free_at + self.shape.milliseconds / 2000


@dataclass
class Links:
    """The links of all machines, served by a thread."""

    shape: LinkShape
    seed: int = 0
    cut: int = 0  # Connections cut so far
    transferred: int = 0  # Bytes, both ways
    ports: dict[int, int] = field(default_factory=dict)
    servers: list[asyncio.Server] = field(default_factory=list)

    def __enter__(self) -> Self:
        self.rng, self.loop = random.Random(self.seed), asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.run_in_loop(self.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def run_in_loop(self, work: Coroutine[Any, Any, int | None]) -> int | None:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    async def close(self) -> None:
        for server in self.servers:
            server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0.01)  # aborted connections are closed in the loop's next iteration

    def get_proxy_port(self, port: int) -> int:
        """Return the port of this port's proxy, which has a link of its own. Repeated calls return the same."""
        if port not in self.ports:
            proxy = self.run_in_loop(self.open_proxy(port))
            assert proxy is not None
            self.ports[port] = proxy
        return self.ports[port]

    async def open_proxy(self, port: int) -> int:
        directions = LinkDirection(self.shape), LinkDirection(self.shape)

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                target = await asyncio.open_connection("127.0.0.1", port)
                await self.relay((reader, writer), target, directions)
            writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        self.servers.append(server)  # a server without a reference is garbage-collected
        return int(server.sockets[0].getsockname()[1])

    async def relay(self, near: Any, far: Any, directions: tuple[LinkDirection, LinkDirection]) -> None:
        """Transfer bytes both ways until one end closes or the connection is cut."""
        tasks = [
            asyncio.ensure_future(self.transfer(near[0], far[1], directions[0])),
            asyncio.ensure_future(self.transfer(far[0], near[1], directions[1])),
            asyncio.ensure_future(self.wait_for_cut()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            self.cut += tasks[2].done()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            near[1].transport.abort()
            far[1].transport.abort()

    async def transfer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: LinkDirection
    ) -> None:
        """Read bytes as they come, and write them when they have arrived."""
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[tuple[float, bytes]](maxsize=256)

        async def write_chunks() -> None:
            while True:
                at, chunk = await queue.get()
                await asyncio.sleep(max(0.0, at - loop.time()))
                writer.write(chunk)
                await writer.drain()
                if not chunk:
                    return

        writing = asyncio.ensure_future(write_chunks())
        try:
            while chunk := await reader.read(CHUNK_BYTES):
                self.transferred += len(chunk)
                at = direction.compute_arrival(len(chunk), loop.time())
                await queue.put((at, chunk))
                # Read no more than the link would hold, so that the sender waits as with a real one.
                await asyncio.sleep(max(0.0, direction.free_at - loop.time() - 0.05))
            await queue.put((loop.time() + direction.shape.milliseconds / 2000, b""))
            await writing
        finally:
            writing.cancel()

    async def wait_for_cut(self) -> None:
        """Return when the connection is to be cut."""
        while not self.shape.cuts or self.rng.random() >= self.shape.cuts:
            await asyncio.sleep(1)
