"""Ask for pages over real sockets. Reads addresses on stdin, prints what the answers took, weighed and were.

Two ways: one after the other (`--rate 0`), as many as the addresses, each time from the request's last byte to the
answer's; or so many a second at random moments, over up to `LINES` connections, the time from when each was due.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from benchmarks.pool.load import quantile

LINES = 64


@dataclass
class Tally:
    seconds: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)


class Visitor:
    """One connection. `remembers`: it asks as a browser does that has seen the page, and is told 304."""

    def __init__(self, port: int, remembers: bool) -> None:
        self.port, self.remembers = port, remembers
        self.tags: dict[str, str] = {}
        self.ends: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, path: str, tally: Tally) -> None:
        if self.ends is None:
            self.ends = await asyncio.open_connection("127.0.0.1", self.port, limit=2**24)
        reader, writer = self.ends
        tag = f"If-None-Match: {self.tags[path]}\r\n" if path in self.tags else ""
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept-Encoding: gzip\r\n{tag}\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        size = await self.body(reader, fields) if head[9:12] != "304" else 0
        tally.sizes.append(size + len(head))
        tally.statuses[head[9:12]] += 1
        if self.remembers and "etag" in fields:
            self.tags[path] = next(line[6:] for line in head.split("\r\n") if line.lower().startswith("etag: "))

    async def body(self, reader: asyncio.StreamReader, fields: dict[str, str]) -> int:
        if "content-length" in fields:
            return len(await reader.readexactly(int(fields["content-length"])))
        total = 0
        while size := int(await reader.readuntil(b"\r\n"), 16):
            total += len(await reader.readexactly(size + 2)) - 2
        await reader.readuntil(b"\r\n")
        return total


async def in_turn(port: int, paths: list[str]) -> Tally:
    tally, visitor = Tally(), Visitor(port, remembers=False)
    for path in paths:
        began = time.perf_counter()
        await visitor.ask(path, tally)
        tally.seconds.append(time.perf_counter() - began)
    return tally


async def steadily(port: int, paths: list[str], rate: float, seconds: float, draw: random.Random) -> Tally:
    """Ask at random moments, however slow the answers; a wait begins when it is due."""
    tally, free = Tally(), [Visitor(port, remembers=True) for _ in range(LINES)]
    asking, due = set(), time.perf_counter()
    end = due + seconds

    async def one(visitor: Visitor, due: float) -> None:
        await visitor.ask(draw.choice(paths), tally)
        tally.seconds.append(time.perf_counter() - due)
        free.append(visitor)

    while due < end:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        if not free:
            await asyncio.sleep(0.001)
            continue
        asking.add(task := asyncio.create_task(one(free.pop(0), due)))
        task.add_done_callback(asking.discard)
        due += draw.expovariate(rate)
    await asyncio.gather(*asking)
    return tally


def summary(tally: Tally, wall: float, cpu: float) -> dict[str, Any]:
    return {
        "views": len(tally.seconds),
        "per_second": round(len(tally.seconds) / wall, 1),
        **{
            name: round(1000 * quantile(tally.seconds, at), 1)
            for name, at in (("median_ms", 0.5), ("p95_ms", 0.95), ("p99_ms", 0.99))
        },
        "bytes": max(tally.sizes, default=0),
        "statuses": dict(tally.statuses),
        "asker_cpu_ms": round(1000 * cpu / max(len(tally.seconds), 1), 2),
        "asker_cpu_share": round(cpu / wall, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--rate", type=float, default=0, help="views a second; 0: one after the other")
    parser.add_argument("--seconds", type=float, default=10)
    options = parser.parse_args()
    paths = json.load(sys.stdin)
    began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    if options.rate:
        tally = asyncio.run(steadily(options.port, paths, options.rate, options.seconds, random.Random(1)))
    else:
        tally = asyncio.run(in_turn(options.port, paths))
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    print(json.dumps(summary(tally, wall, cpu)))  # noqa: T201


if __name__ == "__main__":
    main()
