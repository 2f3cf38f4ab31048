"""An in-memory server of the node API over a real socket, as `trainer/protocol` defines it, with faults on request."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.support.http_server import Handler, run_server
from trainer import protocol

PREFIX = "/api/node/v1"


class HttpError(Exception):
    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


@dataclass
class LeaseRecord:
    """A lease and what the node reported under it."""

    spec: protocol.JobSpec
    token: str
    active: bool = True
    lost_because: str = "The lease has expired."
    metrics: list[protocol.MetricsBatch] = field(default_factory=list)
    log: str = ""
    checkpoints: list[protocol.Checkpoint] = field(default_factory=list)
    finishes: list[protocol.FinishLease] = field(default_factory=list)
    heartbeats: list[protocol.Heartbeat] = field(default_factory=list)
    stop: protocol.HeartbeatReply = field(default_factory=protocol.HeartbeatReply)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in self.metrics for row in batch.rows]

    @property
    def finish(self) -> protocol.FinishLease | None:
        return self.finishes[-1] if self.finishes else None

    @property
    def end(self) -> protocol.FinishLease:
        """How the lease has ended."""
        assert self.finish is not None
        return self.finish


def dump(message: protocol.Message) -> bytes:
    return message.model_dump_json().encode()


class NodeApiHandler(Handler):
    site: NodeApiServer

    def respond(self) -> None:
        content = self.read_body()
        self.site.requests.append(f"{self.command} {self.path}")
        fault = next((found for find in self.site.faults if (found := find(self.site.requests[-1]))), "")
        if fault == "down":
            self.close_connection = True
            return
        if fault in ("busy", "slow down"):
            self.send(503 if fault == "busy" else 429, {"detail": "Busy."})
            return
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        try:
            body: Any = self.site.handle(self.command, self.path.removeprefix(PREFIX), token, content)
            status = 200
        except HttpError as error:
            body, status = {"detail": error.detail}, error.status
        if fault == "unanswered":
            self.close_connection = True
            return
        self.send(status, b"<html>proxy</html>" if fault == "garbled" else body)

    do_GET = do_POST = do_PUT = respond


class NodeApiServer:
    def __init__(self, lease_seconds: float = 2.0) -> None:
        self.key = Ed25519PrivateKey.generate()
        self.join_tokens = {"join-me": 7}
        self.nodes: dict[str, int] = {}
        self.registered: list[protocol.Register] = []
        self.polls: list[protocol.Poll] = []
        self.blobs: dict[str, bytes] = {}
        self.queue: list[protocol.JobSpec] = []
        self.leases: dict[int, LeaseRecord] = {}
        self.lease_seconds = lease_seconds
        self.lanes: int | None = None
        """Number of slots that the node's owner has set."""
        self.requests: list[str] = []
        self.faults: list[Callable[[str], str]] = []
        """Functions from `METHOD path` of a request to a fault: "" (none), "down", "busy", "slow down", "garbled" or
        "unanswered" (executed, but the connection is closed before the response)."""
        self.sign: Callable[[bytes], bytes] = self.key.sign
        self.rewrite: Callable[[str], str] = lambda spec: spec
        self.lock = threading.RLock()
        self._server = ExitStack()
        self.address = self._server.enter_context(run_server(NodeApiHandler, site=self))

    def close(self) -> None:
        self._server.close()

    # --- for tests ---

    def store_blob(self, content: bytes, path: str = "file") -> protocol.FileRef:
        sha256 = hashlib.sha256(content).hexdigest()
        self.blobs[sha256] = content
        return protocol.FileRef(path=path, sha256=sha256, size=len(content))

    def queue_job(self, spec: protocol.JobSpec) -> int:
        """Queue a job and return the number of its future lease."""
        with self.lock:
            number = len(self.leases) + len(self.queue) + 1
            self.queue.append(spec.model_copy(update={"lease": number}))
            return number

    def inject_fault(self, kind: str, path: str, times: int = 1_000_000) -> None:
        """Make the next `times` requests fail whose `METHOD path` contains `path`."""
        left = [times]

        def find_fault(request: str) -> str:
            if path in request and left[0] > 0:
                left[0] -= 1
                return kind
            return ""

        self.faults.append(find_fault)

    # --- the API ---

    def handle(self, method: str, path: str, token: str, content: bytes) -> bytes:
        if path == "/register":
            return self.register(protocol.Register.model_validate_json(content), token)
        if path == "/poll":
            return self.poll(protocol.Poll.model_validate_json(content), token)
        _, number, *rest = path.strip("/").split("/")
        held = self.leases.get(int(number))
        if held is None or held.token != token:
            raise HttpError(401, "This lease's token is not known.")
        if method == "GET":
            if rest[1] not in self.blobs:
                raise HttpError(404, "There is no such file.")
            return self.blobs[rest[1]]
        if not held.active:
            raise HttpError(409, held.lost_because)
        if method == "PUT":
            if hashlib.sha256(content).hexdigest() != rest[1]:
                raise HttpError(422, "These bytes have another hash.")
            self.blobs[rest[1]] = content
            return b"{}"
        with self.lock:
            if not held.active:  # it ended while the request waited
                raise HttpError(409, held.lost_because)
            return getattr(self, f"take_{rest[0]}")(held, content)  # type: ignore[no-any-return]

    def register(self, message: protocol.Register, token: str) -> bytes:
        if token not in self.join_tokens:
            raise HttpError(401, "This join token is not known or has expired.")
        node = self.join_tokens.pop(token)
        self.nodes[f"node-token-{node}"] = node
        self.registered.append(message)
        public = base64.b64encode(self.key.public_key().public_bytes_raw()).decode()
        return dump(protocol.RegisterReply(node=node, token=f"node-token-{node}", public_key=public))

    def poll(self, message: protocol.Poll, token: str) -> bytes:
        if token not in self.nodes:
            raise HttpError(401, "This node's token is not known: it was revoked.")
        self.polls.append(message)
        for lease in message.abandoned:
            self.leases[lease].active = False
        if message.lanes is not None and self.lanes is not None and message.lanes != self.lanes:
            return protocol.PollReply(action="idle", lanes=self.lanes).model_dump_json(exclude_none=True).encode()
        if message.health is not None and message.health.trouble:
            return dump(protocol.PollReply(action="idle", wait_seconds=0.05, reason=message.health.trouble))
        until = time.monotonic() + 0.2
        while time.monotonic() < until:
            with self.lock:
                if self.queue:
                    return self.lease(self.queue.pop(0), self.nodes[token])
            time.sleep(0.01)
        return dump(protocol.PollReply(action="idle", wait_seconds=0.05))

    def lease(self, spec: protocol.JobSpec, node: int) -> bytes:
        spec = spec.model_copy(update={"node": spec.node or node, "issued_at": time.time()})
        held = self.leases[spec.lease] = LeaseRecord(spec, f"lease-token-{spec.lease}")
        text = self.rewrite(protocol.encode_message(spec))
        signature = base64.b64encode(self.sign(text.encode())).decode()
        lease = protocol.Lease(
            lease=spec.lease, token=held.token, seconds=self.lease_seconds, spec=text, signature=signature
        )
        return dump(protocol.PollReply(action="job", lease=lease))

    def take_heartbeat(self, held: LeaseRecord, content: bytes) -> bytes:
        held.heartbeats.append(protocol.Heartbeat.model_validate_json(content))
        return dump(held.stop)

    def take_metrics(self, held: LeaseRecord, content: bytes) -> bytes:
        batch = protocol.MetricsBatch.model_validate_json(content)
        if batch.sequence == len(held.metrics) + 1:
            held.metrics.append(batch)
        elif batch.sequence > len(held.metrics):
            raise HttpError(409, "A batch is missing.")
        else:
            assert batch == held.metrics[batch.sequence - 1]
        return dump(protocol.Acknowledgment(received=len(held.metrics)))

    def take_log(self, held: LeaseRecord, content: bytes) -> bytes:
        chunk = protocol.LogChunk.model_validate_json(content)
        known = len(held.log.encode())
        if chunk.offset == known:
            held.log += chunk.text
        elif chunk.offset > known:
            raise HttpError(409, "A piece is missing.")
        return dump(protocol.Acknowledgment(received=len(held.log.encode())))

    def take_blobs(self, held: LeaseRecord, content: bytes) -> bytes:
        have = protocol.BlobQuery.model_validate_json(content)
        wanted = tuple(dict.fromkeys(file.sha256 for file in have.files if file.sha256 not in self.blobs))
        return dump(protocol.MissingBlobs(sha256=wanted))

    def take_checkpoints(self, held: LeaseRecord, content: bytes) -> bytes:
        checkpoint = protocol.CheckpointUploaded.model_validate_json(content).checkpoint
        for file in checkpoint.files:
            if len(self.blobs.get(file.sha256, b"")) != file.size:
                raise HttpError(422, f"{file.path} has not been uploaded.")
        if checkpoint not in held.checkpoints:
            held.checkpoints.append(checkpoint)
        return b"{}"

    def take_finish(self, held: LeaseRecord, content: bytes) -> bytes:
        held.finishes.append(protocol.FinishLease.model_validate_json(content))
        assert all(file.sha256 in self.blobs for file in held.finishes[-1].files)
        held.active = False
        return b"{}"


def read_json_blob(site: NodeApiServer, file: protocol.FileRef) -> Any:
    """Return the content of a JSON file that a job has uploaded."""
    return json.loads(site.blobs[file.sha256])
