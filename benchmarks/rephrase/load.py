"""Take packets and hand them in, over real sockets, as many volunteers would. Reads leases on stdin, prints figures.

What is handed in is made before the clock starts, but for a number in it and its hash: the generator is to cost little
beside the site on the same cores. What it cost is printed.
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

from benchmarks.pool.load import quantile
from benchmarks.rephrase import texts

FIXED = {"prompt_version": 1, "model": "bench", "revision": "", "back_end": "rules"}
SAMPLING = {"temperature": 0.8, "top_p": 0.95, "max_tokens": 2048}


@dataclass
class Tally:
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
    ends: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One round at a time, however slow the answers are."""

    async def ask(self, what: str, message: dict[str, Any]) -> dict[str, Any]:
        if self.ends is None or self.ends[0].at_eof():  # a server ends what nobody has used for some seconds
            self.ends = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.ends
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

    async def round(self, count: int, tally: Tally) -> None:
        """Take packets, and hand them in."""
        async with self.turn:
            await self._round(count, tally)

    async def _round(self, count: int, tally: Tally) -> None:
        began = time.perf_counter()
        packets = (await self.ask("take", {"count": count}))["packets"]
        taken = time.perf_counter()
        message = {"results": [self.result(packet) for packet in packets]}
        made = time.perf_counter()
        verdicts = (await self.ask("submit", message))["verdicts"]
        tally.take.append(taken - began)
        tally.submit.append(time.perf_counter() - made)
        tally.packets += len(verdicts)
        for verdict in verdicts:
            for one in verdict["outputs"] or [{"accepted": False, "reasons": verdict["reasons"] or [verdict["state"]]}]:
                tally.texts["accepted" if one["accepted"] else one["reasons"][0]] += 1

    def result(self, packet: dict[str, Any]) -> dict[str, Any]:
        number = int(packet["document"].removeprefix("bench:"))
        outputs = [
            self.output(chunk, style, self.written[number % texts.TEMPLATES, style].replace(texts.NUMBER, str(number)))
            for chunk in packet["chunks"]
            for style in chunk["styles"]
        ]
        return {**FIXED, "packet": packet["packet"], "sampling": SAMPLING, "outputs": outputs}

    def output(self, chunk: dict[str, Any], style: str, text: str) -> dict[str, Any]:
        sha256 = hashlib.sha256(text.encode()).hexdigest()
        told = {"chunk": chunk["index"], "style": style, "source_sha256": chunk["sha256"], "text": text}
        return {**told, "sha256": sha256, "tokens": 300}


async def flat_out(volunteers: Sequence[Volunteer], seconds: float, batch: int) -> Tally:
    """All at once, each the next round as soon as the last is done."""
    tally, end = Tally(), time.perf_counter() + seconds

    async def one(volunteer: Volunteer) -> None:
        while time.perf_counter() < end:
            await volunteer.round(batch, tally)

    await asyncio.gather(*map(one, volunteers))
    return tally


async def steadily(volunteers: Sequence[Volunteer], seconds: float, batch: int, rate: float) -> Tally:
    """So many packets a second, from one volunteer after another."""
    tally, began, rounds = Tally(), time.perf_counter(), []
    for number in range(int(seconds * rate / batch)):
        await asyncio.sleep(max(0.0, began + number * batch / rate - time.perf_counter()))
        rounds.append(asyncio.create_task(volunteers[number % len(volunteers)].round(batch, tally)))
    await asyncio.gather(*rounds)
    return tally


def summary(tally: Tally, wall: float, cpu: float) -> dict[str, Any]:
    times = {
        f"{name}_{title}_ms": round(1000 * quantile(values, share), 1)
        for name, values in (("take", tally.take), ("submit", tally.submit))
        for title, share in (("median", 0.5), ("p95", 0.95))
    }
    return {
        "packets": tally.packets,
        "per_second": round(tally.packets / wall, 1),
        **times,
        "texts": dict(tally.texts),
        "generator_cpu_share": round(cpu / wall, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--rate", type=float, default=0, help="packets a second; 0: as many as are taken")
    parser.add_argument("--styles", nargs="+", required=True)
    options = parser.parse_args()
    sources = {number: texts.source(number) for number in range(texts.TEMPLATES)}
    written = {(n, style): texts.paraphrase(text, style) for n, text in sources.items() for style in options.styles}
    volunteers = [Volunteer(options.port, one["lease"], one["token"], written) for one in json.load(sys.stdin)]
    began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    if options.rate:
        work = steadily(volunteers, options.seconds, options.batch, options.rate)
    else:
        work = flat_out(volunteers, options.seconds, options.batch)
    tally = asyncio.run(work)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    print(json.dumps(summary(tally, wall, cpu)))  # noqa: T201


if __name__ == "__main__":
    main()
