"""A node with faults: repeated and late requests, interrupted uploads, crashes within a job.

It does not train. `tests/trainer/node` breaks real agents.
"""

from __future__ import annotations

import hashlib
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from tests.support.waits import WAIT_SECONDS
from trainer import protocol

PREFIX = "/api/node/v1"
STEPS, CHECKPOINT_STEPS, STEP_SECONDS = 20, 5, 0.3
PIECE_BYTES = 20_000
VERDICT = {
    "bits_per_byte": 2.5, "nats_per_token": 5.5, "stderr": 0.01, "tokens": 1000, "bytes": 3200, "documents": 12,
    "parameters": 123456, "train_flops": 2e10, "train_seconds": 10.0,
}  # fmt: skip
HARDWARE = protocol.Hardware(
    hostname="cellar", platform="Linux", python="3.11", cpus=2, memory_bytes=2**35, disk_free_bytes=2**40,
    sandboxes=("bubblewrap",),
)  # fmt: skip


class KilledError(Exception):
    """The node crashes and loses its state."""


class LeaseEndedError(Exception):
    """The site refuses this lease."""


@dataclass
class Request:
    method: str
    path: str
    token: str
    content: bytes = b""
    content_range: str = ""

    @property
    def headers(self) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        return {**headers, "Content-Range": self.content_range} if self.content_range else headers


class FaultyNode:
    def __init__(self, number: int, url: str, token: str, seed: int) -> None:
        self.url, self.token = url, token
        self.draw = random.Random(f"{seed}-{number}")
        self.is_killed, self.is_over, self.is_calm = threading.Event(), threading.Event(), threading.Event()
        """Killed: dies at its next request. Over: ends. Calm: makes no more faults."""
        self.reported: dict[int, float] = {}
        """{lease: most seconds of work that it has reported}"""
        self.faults: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()
        self.problems: list[str] = []
        """Answers that no client should see."""
        self._earlier: list[Request] = []
        self._client = httpx.Client(base_url=url, timeout=10)
        self._thread = threading.Thread(target=self._work, name=f"node {number}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.is_over.set()
        self._thread.join(WAIT_SECONDS)
        self._client.close()

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self.is_over.is_set():
            try:
                self._take_job()
            except KilledError:
                self.is_killed.clear()
                self.faults["node killed"] += 1
                self._earlier.clear()
            except LeaseEndedError:
                self.faults["lease lost"] += 1

    def _take_job(self) -> None:
        poll = protocol.Poll(hardware=HARDWARE)
        answer = protocol.PollReply.model_validate(
            self.send("POST", "/poll", protocol.encode_message(poll).encode(), self.token)
        )
        if answer.lease is None:
            time.sleep(0.2)
            return
        lease = answer.lease
        spec = json.loads(lease.spec)
        self.reported[lease.lease] = 0.0
        job = LeasedJob(self, lease, spec, time.monotonic())
        job.log(f"attempt {spec['attempt']} of job {spec['job']}\n")
        {"smoke": job.smoke, "train": job.train, "score": job.score, "replay": job.replay}[spec["order"]["kind"]]()

    # --- requests -----------------------------------------------------------------------------------------------------

    def send(self, method: str, path: str, content: bytes, token: str, content_range: str = "") -> Any:
        """Send a request until it is answered, sometimes twice or after an earlier request."""
        request = Request(method, PREFIX + path, token, content, content_range)
        if not self.is_calm.is_set():
            self._disturb(request)
        response = self._repeat(request)
        if not path.endswith("/poll"):
            self._earlier = [*self._earlier[-20:], request]
        return response.json() if response.content and method != "HEAD" else response.headers

    def _disturb(self, request: Request) -> None:
        luck = self.draw.random()
        if luck < 0.07 and self._earlier:
            self.faults["earlier request again"] += 1
            self._try(self.draw.choice(self._earlier))
        elif luck < 0.17 and not request.path.endswith("/poll"):
            self.faults["request twice"] += 1
            twin = threading.Thread(target=self._try, args=(request,))
            twin.start()
            twin.join(self.draw.choice((0.0, 0.02, 1.0)))
        elif luck < 0.22:
            self.faults["request delayed"] += 1
            time.sleep(self.draw.uniform(0.1, 1.5))

    def _try(self, request: Request) -> httpx.Response | None:
        """Send a request once, over its own connection; None without an answer."""
        try:
            response = httpx.request(
                request.method, self.url + request.path, content=request.content, headers=request.headers, timeout=10
            )
        except httpx.TransportError:
            return None
        self._record(request, response)
        return response

    def _repeat(self, request: Request) -> httpx.Response:
        while True:
            if self.is_killed.is_set() or self.is_over.is_set():
                raise KilledError
            try:
                response = self._client.request(
                    request.method, request.path, content=request.content, headers=request.headers
                )
            except httpx.TransportError:
                time.sleep(0.2)
                continue
            self._record(request, response)
            if response.is_success:
                return response
            if response.status_code in (401, 403, 404, 409) and "/leases/" in request.path:
                raise LeaseEndedError
            time.sleep(0.3)

    def _record(self, request: Request, response: httpx.Response) -> None:
        self.statuses[response.status_code] += 1
        if response.status_code in (400, 413, 422, 426, 500):
            self.problems.append(f"{request.method} {request.path}: {response.status_code} {response.text[:200]}")

    def break_off(self, request: Request) -> None:
        """Send half of a body, then close the connection."""

        def half() -> Iterator[bytes]:
            yield request.content[: len(request.content) // 2]
            raise httpx.WriteError("This test hangs up.")

        headers = {**request.headers, "Content-Length": str(len(request.content))}
        try:
            httpx.request(request.method, self.url + request.path, content=half(), headers=headers, timeout=10)
        except httpx.TransportError:
            self.faults["upload broken off"] += 1


class LeasedJob:
    """A lease from the view of its node."""

    def __init__(self, node: FaultyNode, lease: protocol.Lease, spec: dict[str, Any], began: float) -> None:
        self.node, self.lease, self.spec, self.began = node, lease, spec, began
        self.sequence, self.logged = 0, 0

    def call(self, path: str, message: protocol.Message) -> Any:
        content = protocol.encode_message(message)
        return self.node.send("POST", f"/leases/{self.lease.lease}/{path}", content.encode(), self.lease.token)

    def measure_seconds(self) -> float:
        seconds = time.monotonic() - self.began
        self.node.reported[self.lease.lease] = seconds
        return seconds

    def heartbeat(self) -> None:
        self.call("heartbeat", protocol.Heartbeat(phase="running", seconds=self.measure_seconds()))

    def log(self, text: str) -> None:
        self.call("log", protocol.LogChunk(offset=self.logged, text=text))
        self.logged += len(text.encode())

    def finish(self, result: dict[str, Any], *files: protocol.FileRef) -> None:
        seconds = self.measure_seconds()
        self.call("finish", protocol.FinishLease(outcome="done", result=result, files=files, seconds=seconds))

    def smoke(self) -> None:
        self.heartbeat()
        self.finish({"passed": True, "sentence": "It passed.", "checks": [], "seconds": 40})

    def score(self) -> None:
        self.heartbeat()
        self.finish(VERDICT)

    def replay(self) -> None:
        self.heartbeat()
        order, exact = self.spec["order"], {"exact": True, "deviation": 0.0}
        steps = [order[name]["step"] for name in ("first", "middle", "claimed") if name in order]
        checks = [{"step": step, **exact, "state_deviation": 0.0} for step in steps]
        self.finish({"step": steps[-1], **exact, "checks": checks})

    def train(self) -> None:
        resume = self.spec["order"].get("resume")
        for step in range((resume["step"] if resume else 0) + 1, STEPS + 1):
            time.sleep(STEP_SECONDS)
            self.sequence += 1
            row = {"step": step, "kind": "train", "loss": 10 / step, "fraction": step / STEPS, "seconds": float(step)}
            self.call("metrics", protocol.MetricsBatch(sequence=self.sequence, rows=(row,)))
            self.log(f"step {step}\n")
            self.heartbeat()
            if step % CHECKPOINT_STEPS == 0:
                path = f"checkpoints/step-{step:08d}/model.safetensors"
                weights = self.upload(path, b"weights of job %d, step %d. " % (self.spec["job"], step) * 2000)
                checkpoint = protocol.Checkpoint(step=step, files=(weights,))
                self.call("checkpoints", protocol.CheckpointUploaded(checkpoint=checkpoint))
        self.finish({"step": STEPS}, self.upload("run.json", b'{"format": 1, "arch": "gpt"}'))

    def upload(self, path: str, content: bytes) -> protocol.FileRef:
        """Send a file in pieces from the site's offset. Some pieces are interrupted."""
        digest, total = hashlib.sha256(content).hexdigest(), len(content)
        address, token, node = f"/leases/{self.lease.lease}/blobs/{digest}", self.lease.token, self.node
        while (first := int(node.send("HEAD", address, b"", token)["Upload-Offset"])) < total:
            piece = content[first : first + PIECE_BYTES]
            content_range = f"bytes {first}-{first + len(piece) - 1}/{total}"
            if not node.is_calm.is_set() and node.draw.random() < 0.2:
                node.break_off(Request("PUT", PREFIX + address, token, piece, content_range))
                continue
            node.send("PUT", address, piece, token, content_range)
        return protocol.FileRef(path=path, sha256=digest, size=total)
