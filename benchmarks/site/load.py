"""Load generator of pages over sockets. Reads paths from stdin; prints response times, sizes and statuses.

`--rate 0` requests the paths one after the other. Otherwise requests start at random times, over up to `LINES`
connections, and response times count from the planned start.
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

from benchmarks.load.generator import quantile

LINES = 64


@dataclass
class LoadResult:
    seconds: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)


class Visitor:
    """One connection. `remembers`: sends the ETag of pages seen before, as a browser does."""

    def __init__(self, port: int, remembers: bool) -> None:
        self.port, self.remembers = port, remembers
        self.tags: dict[str, str] = {}
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def get(self, path: str, result: LoadResult) -> None:
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port, limit=2**24)
        reader, writer = self.streams
        tag = f"If-None-Match: {self.tags[path]}\r\n" if path in self.tags else ""
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept-Encoding: gzip\r\n{tag}\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        size = await self.read_body(reader, fields) if head[9:12] != "304" else 0
        result.sizes.append(size + len(head))
        result.statuses[head[9:12]] += 1
        if self.remembers and "etag" in fields:
            self.tags[path] = next(line[6:] for line in head.split("\r\n") if line.lower().startswith("etag: "))

    async def read_body(self, reader: asyncio.StreamReader, fields: dict[str, str]) -> int:
        if "content-length" in fields:
            return len(await reader.readexactly(int(fields["content-length"])))
        total = 0
        while size := int(await reader.readuntil(b"\r\n"), 16):
            total += len(await reader.readexactly(size + 2)) - 2
        await reader.readuntil(b"\r\n")
        return total


async def run_in_turn(port: int, paths: list[str]) -> LoadResult:
    result, visitor = LoadResult(), Visitor(port, remembers=False)
    for path in paths:
        began = time.perf_counter()
        await visitor.get(path, result)
        result.seconds.append(time.perf_counter() - began)
    return result


async def run_open_loop(port: int, paths: list[str], rate: float, seconds: float, draw: random.Random) -> LoadResult:
    """Send `rate` requests a second with exponential inter-arrival times."""
    result, free = LoadResult(), [Visitor(port, remembers=True) for _ in range(LINES)]
    tasks, due = set(), time.perf_counter()
    end = due + seconds

    async def one(visitor: Visitor, due: float) -> None:
        await visitor.get(draw.choice(paths), result)
        result.seconds.append(time.perf_counter() - due)
        free.append(visitor)

    while due < end:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        if not free:
            await asyncio.sleep(0.001)
            continue
        tasks.add(task := asyncio.create_task(one(free.pop(0), due)))
        task.add_done_callback(tasks.discard)
        due += draw.expovariate(rate)
    await asyncio.gather(*tasks)
    return result


def summarize(result: LoadResult, wall: float, cpu: float) -> dict[str, Any]:
    return {
        "views": len(result.seconds),
        "per_second": round(len(result.seconds) / wall, 1),
        **{
            name: round(1000 * quantile(result.seconds, at), 1)
            for name, at in (("median_ms", 0.5), ("p95_ms", 0.95), ("p99_ms", 0.99))
        },
        "bytes": max(result.sizes, default=0),
        "statuses": dict(result.statuses),
        "generator_cpu_ms": round(1000 * cpu / max(len(result.seconds), 1), 2),
        "generator_cpu_share": round(cpu / wall, 3),
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
        result = asyncio.run(run_open_loop(options.port, paths, options.rate, options.seconds, random.Random(1)))
    else:
        result = asyncio.run(run_in_turn(options.port, paths))
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    print(json.dumps(summarize(result, wall, cpu)))  # noqa: T201


if __name__ == "__main__":
    main()
