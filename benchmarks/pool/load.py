"""Load generator of polls over sockets. Reads nodes from stdin and prints response times.

Requests are built before the clock starts, and responses are read to their length and first key only: the generator
shares the cores with the site. Its own CPU time is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any


@dataclass
class LoadResult:
    seconds: list[float] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)


def build_requests(nodes: list[dict[str, Any]], host: str) -> deque[bytes]:
    """Return an HTTP request for each node. Free disk space and GPU temperature differ from the stored ones."""
    requests, draw = deque(), random.Random(1)
    for node in nodes:
        hardware = {**node["hardware"], "disk_free_bytes": node["hardware"]["disk_free_bytes"] - draw.randrange(10**6)}
        health = {"temperature_celsius": draw.randrange(35, 80), "gpu_used_bytes": 0}
        message = {
            "version": 1,
            "hardware": hardware,
            "wait_seconds": 0,
            "lanes": 1,
            "lanes_wished": 1,
            "health": health,
        }
        body = json.dumps(message).encode()
        head = (
            f"POST /api/node/v1/poll HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {node['token']}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        requests.append(head.encode() + body)
    return requests


class Connection:
    """One connection with one request at a time."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, request: bytes) -> str:
        """Return `job`, `idle` or the status."""
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.streams
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        body = await reader.readexactly(length)
        if b" 200 " not in head[:16]:
            return head[9:12].decode()
        return "job" if body.startswith((b'{"action": "job"', b'{"action":"job"')) else "idle"


async def run_open_loop(
    port: int, requests: deque[bytes], rate: float, seconds: float, draw: random.Random
) -> LoadResult:
    """Send `rate` requests a second with exponential inter-arrival times, measured from the planned start."""
    result, free = LoadResult(), [Connection(port) for _ in range(200)]
    tasks, due = set(), time.perf_counter()
    end = due + seconds

    async def one(connection: Connection, request: bytes, due: float) -> None:
        result.answers[await connection.send(request)] += 1
        result.seconds.append(time.perf_counter() - due)
        free.append(connection)

    while due < end and requests:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        if not free:
            await asyncio.sleep(0.001)
            continue
        tasks.add(task := asyncio.create_task(one(free.pop(), requests.popleft(), due)))
        task.add_done_callback(tasks.discard)
        due += draw.expovariate(rate)
    await asyncio.gather(*tasks)
    return result


async def run_closed_loop(port: int, requests: deque[bytes], lines: int, seconds: float) -> LoadResult:
    """Send each request after the previous response, over `lines` connections."""
    result = LoadResult()
    end = time.perf_counter() + seconds

    async def one(connection: Connection) -> None:
        while requests and (began := time.perf_counter()) < end:
            result.answers[await connection.send(requests.popleft())] += 1
            result.seconds.append(time.perf_counter() - began)

    await asyncio.gather(*(one(Connection(port)) for _ in range(lines)))
    return result


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def summarize(result: LoadResult, wall: float, cpu: float) -> dict[str, Any]:
    return {
        "polls": len(result.seconds),
        "per_second": round(len(result.seconds) / wall, 1),
        "median_ms": round(1000 * quantile(result.seconds, 0.5), 1),
        "p95_ms": round(1000 * quantile(result.seconds, 0.95), 1),
        "p99_ms": round(1000 * quantile(result.seconds, 0.99), 1),
        "answers": dict(result.answers),
        "generator_cpu_share": round(cpu / wall, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--rate", type=float, default=0, help="polls a second; 0: as fast as they are answered")
    parser.add_argument("--lines", type=int, default=8, help="connections, where it goes as fast as it can")
    options = parser.parse_args()
    requests = build_requests(json.load(sys.stdin), f"127.0.0.1:{options.port}")
    began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    if options.rate:
        work = run_open_loop(options.port, requests, options.rate, options.seconds, random.Random(1))
    else:
        work = run_closed_loop(options.port, requests, options.lines, options.seconds)
    result = asyncio.run(work)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    print(json.dumps(summarize(result, wall, cpu)))  # noqa: T201


if __name__ == "__main__":
    main()
