"""Load generator: nodes that report or poll, and visitors, over sockets. Reads stdin, prints JSON.

Page views are open-loop: each is sent at its time, however slow the earlier answers are, and its response time counts
from then. A node waits for its own late answer, as real ones do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import aiohttp

METRICS_SECONDS, HEARTBEAT_SECONDS, POLL_SECONDS = 10.0, 30.0, 10.0
TIMEOUT_SECONDS = 30.0
CONNECTIONS = 400
KEEP_ALIVE_SECONDS = 2.0
"""Less than uvicorn's 5 s: a request on a connection that the server closes at that moment would count as an error."""
HEADERS = {"Accept-Encoding": "gzip", "Content-Type": "application/json"}
RequestContext = AbstractAsyncContextManager[aiohttp.ClientResponse]


@dataclass
class Results:
    began: float
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Response times of each kind."""
    errors: Counter[str] = field(default_factory=Counter)

    async def measure(self, kind: str, due: float, request: RequestContext) -> None:
        try:
            async with request as response:
                await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            self.errors[f"{kind}: {type(error).__name__}"] += 1
            return
        self.seconds[kind].append(time.perf_counter() - due)
        if not response.ok:
            self.errors[f"{kind}: {response.status}"] += 1


class SimulatedNode:
    """One node with a lease: a batch of points every 10 s, a heartbeat every 30 s."""

    def __init__(self, client: aiohttp.ClientSession, lease: dict[str, Any], points: int, results: Results) -> None:
        self.client, self.points, self.results = client, points, results
        self.address = f"/api/node/v1/leases/{lease['lease']}"
        self.headers = {"Authorization": f"Bearer {lease['token']}"}
        self.sequence = 0

    async def report(self, due: float) -> None:
        self.sequence += 1
        await self._post("metrics", due, build_metrics(self.sequence, self.points))

    async def heartbeat(self, due: float) -> None:
        message = {"phase": "running", "seconds": due - self.results.began}
        await self._post("heartbeat", due, json.dumps(message).encode())

    async def _post(self, kind: str, due: float, body: bytes) -> None:
        request = self.client.post(f"{self.address}/{kind}", data=body, headers=self.headers)
        await self.results.measure(kind, due, request)


@lru_cache(maxsize=16)
def build_metrics(sequence: int, points: int) -> bytes:
    """Return the body of a batch. Nodes send the same numbers, so that the generator leaves the machine to the site."""
    first = (sequence - 1) * points
    return json.dumps({"sequence": sequence, "rows": [build_row(first + number) for number in range(points)]}).encode()


def build_row(step: int) -> dict[str, Any]:
    return {
        "step": step, "kind": "train", "loss": 10 / (step + 1), "fraction": min(step / 1e6, 1.0), "tokens": step * 4096,
        "flops": step * 1e7, "seconds": step * 0.2, "learning_rate": 0.01, "gradient_norm": 1.0,
        "tokens_per_second": 20_000.0, "mfu": 0.4, "memory_bytes": 2**33,
    }  # fmt: skip


async def repeat(every: float, first: float, end: float, act: Callable[[float], Awaitable[None]]) -> None:
    """Act at `first` and then every so many seconds; an answer that is late delays the next request of its node."""
    due = first
    while due < end:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        await act(due)
        due += every


async def visit(
    client: aiohttp.ClientSession, pages: list[str], rate: float, end: float, results: Results, draw: random.Random
) -> None:
    """View pages at random moments, `rate` a second on average."""
    due, views = time.perf_counter(), set[asyncio.Task[None]]()
    while due < end:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        views.add(view := asyncio.create_task(results.measure("page", due, client.get(draw.choice(pages)))))
        view.add_done_callback(views.discard)
        due += draw.expovariate(rate)
    await asyncio.gather(*views)


async def poll(client: aiohttp.ClientSession, node: dict[str, Any], results: Results, due: float) -> None:
    body, headers = node["poll"].encode(), {"Authorization": f"Bearer {node['token']}"}
    await results.measure("poll", due, client.post("/api/node/v1/poll", data=body, headers=headers))


async def run_load(options: argparse.Namespace, load: dict[str, Any]) -> Results:
    draw, address = random.Random(1), f"http://127.0.0.1:{options.port}"
    async with aiohttp.ClientSession(
        address,
        connector=aiohttp.TCPConnector(limit=CONNECTIONS, keepalive_timeout=KEEP_ALIVE_SECONDS),
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
        headers=HEADERS,
        auto_decompress=False,
    ) as client:
        results = Results(time.perf_counter())
        end = results.began + options.seconds
        tasks = []
        for node in load["idle"]:
            first = results.began + draw.uniform(0, POLL_SECONDS)
            tasks.append(repeat(POLL_SECONDS, first, end, partial(poll, client, node, results)))
        for lease in load["leases"]:
            trainer = SimulatedNode(client, lease, options.points, results)
            tasks.append(repeat(METRICS_SECONDS, results.began + draw.uniform(0, METRICS_SECONDS), end, trainer.report))
            first = results.began + draw.uniform(0, HEARTBEAT_SECONDS)
            tasks.append(repeat(HEARTBEAT_SECONDS, first, end, trainer.heartbeat))
        if options.pages:
            tasks.append(visit(client, load["pages"], options.pages, end, results, draw))
        await asyncio.gather(*tasks)
    return results


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def summarize(results: Results) -> dict[str, Any]:
    kinds = {}
    for kind, times in results.seconds.items():
        kinds[kind] = {
            "requests": len(times),
            **{f"p{share}_ms": round(1000 * quantile(times, share / 100), 1) for share in (50, 95, 99)},
        }
    return {"kinds": kinds, "errors": dict(results.errors)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--points", type=int, required=True)
    parser.add_argument("--pages", type=float, required=True)
    options = parser.parse_args()
    results = asyncio.run(run_load(options, json.load(sys.stdin)))
    used = resource.getrusage(resource.RUSAGE_SELF)
    summary = summarize(results)
    print(json.dumps({**summary, "generator_cpu_seconds": round(used.ru_utime + used.ru_stime, 2)}))  # noqa: T201


if __name__ == "__main__":
    main()
