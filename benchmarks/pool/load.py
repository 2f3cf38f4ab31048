"""Ask for work, over real sockets, as many nodes would. Reads the nodes on stdin, prints what the answers took.

The requests are made ready before the clock starts, answers are looked at only as far as their length and their
first words: the asker is to cost little beside the site on the same cores. What it cost is printed.
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
class Tally:
    seconds: list[float] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)


def requests(nodes: list[dict[str, Any]], host: str) -> deque[bytes]:
    """Return every node's question as the bytes of an HTTP request. As in life its disk is a little fuller than when
    the site last heard of it, and its GPU has a temperature."""
    made, draw = deque(), random.Random(1)
    for node in nodes:
        hardware = {**node["hardware"], "disk_free_bytes": node["hardware"]["disk_free_bytes"] - draw.randrange(10**6)}
        health = {"temperature_celsius": draw.randrange(35, 80), "gpu_used_bytes": 0}
        said = {"version": 1, "hardware": hardware, "wait_seconds": 0, "lanes": 1, "lanes_wished": 1, "health": health}
        body = json.dumps(said).encode()
        head = (
            f"POST /api/node/v1/poll HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {node['token']}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        made.append(head.encode() + body)
    return made


class Line:
    """One connection, one question at a time."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.ends: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> str:
        """Return `job`, `idle` or the status."""
        if self.ends is None:
            self.ends = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.ends
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        body = await reader.readexactly(length)
        if b" 200 " not in head[:16]:
            return head[9:12].decode()
        return "job" if body.startswith((b'{"action": "job"', b'{"action":"job"')) else "idle"


async def steadily(port: int, made: deque[bytes], rate: float, seconds: float, draw: random.Random) -> Tally:
    """Ask at random moments, `rate` times a second, however slow the answers; a wait begins when it is due."""
    tally, free = Tally(), [Line(port) for _ in range(200)]
    asking, due = set(), time.perf_counter()
    end = due + seconds

    async def one(line: Line, request: bytes, due: float) -> None:
        tally.answers[await line.ask(request)] += 1
        tally.seconds.append(time.perf_counter() - due)
        free.append(line)

    while due < end and made:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        if not free:
            await asyncio.sleep(0.001)
            continue
        asking.add(task := asyncio.create_task(one(free.pop(), made.popleft(), due)))
        task.add_done_callback(asking.discard)
        due += draw.expovariate(rate)
    await asyncio.gather(*asking)
    return tally


async def flat_out(port: int, made: deque[bytes], lines: int, seconds: float) -> Tally:
    """Ask as fast as the answers come, over so many connections."""
    tally = Tally()
    end = time.perf_counter() + seconds

    async def one(line: Line) -> None:
        while made and (began := time.perf_counter()) < end:
            tally.answers[await line.ask(made.popleft())] += 1
            tally.seconds.append(time.perf_counter() - began)

    await asyncio.gather(*(one(Line(port)) for _ in range(lines)))
    return tally


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def summary(tally: Tally, wall: float, cpu: float) -> dict[str, Any]:
    return {
        "polls": len(tally.seconds),
        "per_second": round(len(tally.seconds) / wall, 1),
        "median_ms": round(1000 * quantile(tally.seconds, 0.5), 1),
        "p95_ms": round(1000 * quantile(tally.seconds, 0.95), 1),
        "p99_ms": round(1000 * quantile(tally.seconds, 0.99), 1),
        "answers": dict(tally.answers),
        "asker_cpu_share": round(cpu / wall, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--rate", type=float, default=0, help="polls a second; 0: as fast as they are answered")
    parser.add_argument("--lines", type=int, default=8, help="connections, where it goes as fast as it can")
    options = parser.parse_args()
    made = requests(json.load(sys.stdin), f"127.0.0.1:{options.port}")
    began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    if options.rate:
        work = steadily(options.port, made, options.rate, options.seconds, random.Random(1))
    else:
        work = flat_out(options.port, made, options.lines, options.seconds)
    tally = asyncio.run(work)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    print(json.dumps(summary(tally, wall, cpu)))  # noqa: T201


if __name__ == "__main__":
    main()
