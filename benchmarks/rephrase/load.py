"""Load generator of packets over sockets. Reads leases from stdin and prints response times.

Texts are built before the clock starts, except for a number in them and their hash: the generator shares the cores with
the site. Its own CPU time is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.load.generator import quantile
from benchmarks.rephrase import texts

FIXED = {"prompt_version": 1, "model": "bench", "revision": "", "back_end": "rules"}
SAMPLING = {"temperature": 0.8, "top_p": 0.95, "max_tokens": 2048}


@dataclass
class LoadResult:
    take: list[float] = field(default_factory=list)
    submit: list[float] = field(default_factory=list)
    packets: int = 0
    texts: Counter[str] = field(default_factory=Counter)


@dataclass
class Volunteer:
    port: int
    lease: int
    token: str
    written: dict[tuple[int, str], str]
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held during a round, so that rounds do not overlap."""

    async def send(self, what: str, message: dict[str, Any]) -> dict[str, Any]:
        if self.streams is None or self.streams[0].at_eof():  # the server closes idle connections
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.streams
        body = json.dumps(message).encode()
        writer.write(
            f"POST /api/node/v1/leases/{self.lease}/packets/{what} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
            f"Authorization: Bearer {self.token}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        content = await reader.readexactly(length)
        if not head.startswith(b"HTTP/1.1 200"):
            raise ValueError(f"{head!r} {content[:300]!r}")
        answer: dict[str, Any] = json.loads(content)
        return answer

    async def run_round(self, count: int, result: LoadResult) -> None:
        """Take packets and submit them."""
        async with self.lock:
            await self._run_round(count, result)

    async def _run_round(self, count: int, result: LoadResult) -> None:
        began = time.perf_counter()
        packets = (await self.send("take", {"count": count}))["packets"]
        taken = time.perf_counter()
        message = {"results": [self.build_result(packet) for packet in packets]}
        built = time.perf_counter()
        verdicts = (await self.send("submit", message))["verdicts"]
        result.take.append(taken - began)
        result.submit.append(time.perf_counter() - built)
        result.packets += len(verdicts)
        for verdict in verdicts:
            for one in verdict["outputs"] or [{"accepted": False, "reasons": verdict["reasons"] or [verdict["state"]]}]:
                result.texts["accepted" if one["accepted"] else one["reasons"][0]] += 1

    def build_result(self, packet: dict[str, Any]) -> dict[str, Any]:
        number = int(packet["document"].removeprefix("bench:"))
        outputs = [
            self.build_output(
                chunk, style, self.written[number % texts.TEMPLATES, style].replace(texts.NUMBER, str(number))
            )
            for chunk in packet["chunks"]
            for style in chunk["styles"]
        ]
        return {**FIXED, "packet": packet["packet"], "sampling": SAMPLING, "outputs": outputs}

    def build_output(self, chunk: dict[str, Any], style: str, text: str) -> dict[str, Any]:
        sha256 = hashlib.sha256(text.encode()).hexdigest()
        fields = {"chunk": chunk["index"], "style": style, "source_sha256": chunk["sha256"], "text": text}
        return {**fields, "sha256": sha256, "tokens": 300}


async def run_closed_loop(volunteers: Sequence[Volunteer], seconds: float, batch: int) -> LoadResult:
    """Run all volunteers at once, each round after the previous one."""
    result, end = LoadResult(), time.perf_counter() + seconds

    async def one(volunteer: Volunteer) -> None:
        while time.perf_counter() < end:
            await volunteer.run_round(batch, result)

    await asyncio.gather(*map(one, volunteers))
    return result


async def run_open_loop(volunteers: Sequence[Volunteer], seconds: float, batch: int, rate: float) -> LoadResult:
    """Run rounds for `rate` packets a second, one volunteer after another."""
    result, began, rounds = LoadResult(), time.perf_counter(), []
    for number in range(int(seconds * rate / batch)):
        await asyncio.sleep(max(0.0, began + number * batch / rate - time.perf_counter()))
        rounds.append(asyncio.create_task(volunteers[number % len(volunteers)].run_round(batch, result)))
    await asyncio.gather(*rounds)
    return result


def summarize(result: LoadResult, wall: float, cpu: float) -> dict[str, Any]:
    times = {
        f"{name}_{title}_ms": round(1000 * quantile(values, share), 1)
        for name, values in (("take", result.take), ("submit", result.submit))
        for title, share in (("median", 0.5), ("p95", 0.95))
    }
    return {
        "packets": result.packets,
        "per_second": round(result.packets / wall, 1),
        **times,
        "texts": dict(result.texts),
        "generator_cpu_share": round(cpu / wall, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--rate", type=float, default=0, help="packets a second; 0: closed loop")
    parser.add_argument("--styles", nargs="+", required=True)
    options = parser.parse_args()
    sources = {number: texts.build_source(number) for number in range(texts.TEMPLATES)}
    written = {
        (n, style): texts.paraphrase_text(text, style) for n, text in sources.items() for style in options.styles
    }
    volunteers = [Volunteer(options.port, one["lease"], one["token"], written) for one in json.load(sys.stdin)]
    began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    if options.rate:
        work = run_open_loop(volunteers, options.seconds, options.batch, options.rate)
    else:
        work = run_closed_loop(volunteers, options.seconds, options.batch)
    result = asyncio.run(work)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    print(json.dumps(summarize(result, wall, cpu)))  # noqa: T201


if __name__ == "__main__":
    main()
