"""Create nodes and jobs for the scheduler's tests, and call the node API as a node does."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from django.http import HttpResponse
from django.test import Client

from scheduler import node_tokens, storage
from scheduler.models import Blob, Job, Lease, Node
from trainer import protocol

ROOT = "/api/node/v1"
HARDWARE = protocol.Hardware(
    hostname="loco",
    platform="Linux",
    python="3.11",
    cpus=2,
    memory_bytes=8 * 2**30,
    disk_free_bytes=100 * 2**30,
    sandboxes=("bubblewrap",),
)
LIMITS = protocol.JobLimits(wall_seconds=60, memory_bytes=2**30, disk_bytes=2**30, processes=64)


def create_job(**fields: Any) -> Job:
    release = fields.pop("release", None) or storage.store_bytes(b"a release")
    defaults: dict[str, Any] = {"kind": "train", "release": release, "limits": LIMITS.model_dump(), "author": "ada"}
    return Job.objects.create(**{**defaults, **fields})


def create_node(name: str = "loco", **fields: Any) -> tuple[Node, str]:
    """Return a node that has joined, and its token."""
    token = node_tokens.generate_token("node")
    hardware = HARDWARE.model_copy(update=fields.pop("hardware", {})).model_dump(mode="json")
    return Node.objects.create(name=name, token_hash=node_tokens.hash_token(token), hardware=hardware, **fields), token


def build_file_reference(content: bytes, path: str = "model.safetensors") -> protocol.FileRef:
    return protocol.FileRef(path=path, sha256=hashlib.sha256(content).hexdigest(), size=len(content))


def build_bearer_header(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@dataclass
class Agent:
    """Calls of the node API with a node's token. Each returns the raw response unless it says otherwise."""

    token: str
    client: Client = field(default_factory=Client)
    hardware: protocol.Hardware = HARDWARE

    def call(self, path: str, message: protocol.Message | str, token: str = "") -> HttpResponse:
        body = message if isinstance(message, str) else protocol.encode_message(message)
        return self.client.post(
            ROOT + path, body, content_type="application/json", headers=build_bearer_header(token or self.token)
        )

    def poll(self, **fields: Any) -> HttpResponse:
        return self.call("/poll", protocol.Poll(**{"hardware": self.hardware, **fields}))

    def request_action(self, **fields: Any) -> protocol.PollReply:
        response = self.poll(**fields)
        assert response.status_code == 200, response.content
        return protocol.PollReply.model_validate_json(response.content)

    def claim_job(self) -> ClaimedJob:
        """Poll, and return the job that the site leases to this node."""
        action = self.request_action()
        assert action.lease is not None, action.reason
        return ClaimedJob(self, action.lease)


@dataclass
class ClaimedJob:
    """A leased job, and the calls of the node API about its lease."""

    agent: Agent
    lease: protocol.Lease

    @property
    def spec(self) -> protocol.JobSpec:
        return protocol.JobSpec.model_validate_json(self.lease.spec)

    @property
    def row(self) -> Lease:
        return Lease.objects.select_related("job", "node").get(pk=self.lease.lease)

    @property
    def job(self) -> Job:
        return Job.objects.get(leases=self.lease.lease)

    def call(self, path: str, message: protocol.Message | str) -> HttpResponse:
        return self.agent.call(f"/leases/{self.lease.lease}{path}", message, self.lease.token)

    def send_heartbeat(self, seconds: float = 1, phase: str = "running") -> HttpResponse:
        return self.call("/heartbeat", protocol.Heartbeat(phase=phase, seconds=seconds))  # type: ignore[arg-type]

    def send_metrics(self, sequence: int, rows: list[dict[str, Any]] | None = None) -> HttpResponse:
        return self.call("/metrics", json.dumps({"sequence": sequence, "rows": rows or [{"kind": "train", "step": 1}]}))

    def send_log(self, offset: int, text: str) -> HttpResponse:
        return self.call("/log", protocol.LogChunk(offset=offset, text=text))

    def upload_blob(self, content: bytes, sha256: str = "") -> HttpResponse:
        return self.agent.client.put(
            f"{ROOT}/leases/{self.lease.lease}/blobs/{sha256 or build_file_reference(content).sha256}",
            content,
            content_type="application/octet-stream",
            headers=build_bearer_header(self.lease.token),
        )

    def download_blob(self, sha256: str) -> HttpResponse:
        return self.agent.client.get(
            f"{ROOT}/leases/{self.lease.lease}/blobs/{sha256}", headers=build_bearer_header(self.lease.token)
        )

    def upload_checkpoint(self, step: int, content: bytes = b"weights") -> HttpResponse:
        """Upload a checkpoint of one file."""
        assert self.upload_blob(content).status_code == 200
        return self.report_checkpoint(step, build_file_reference(content))

    def report_checkpoint(self, step: int, *files: protocol.FileRef) -> HttpResponse:
        return self.call(
            "/checkpoints", protocol.CheckpointUploaded(checkpoint=protocol.Checkpoint(step=step, files=files))
        )

    def finish(self, outcome: str = "done", **fields: Any) -> HttpResponse:
        return self.call("/finish", protocol.FinishLease(outcome=outcome, **fields))  # type: ignore[arg-type]


def read_error_detail(response: HttpResponse) -> str:
    """Return the text of an error response; every status of 400 and above has a `protocol.ErrorDetail`."""
    assert response.status_code >= 400, response.content
    return protocol.ErrorDetail.model_validate_json(response.content).detail


def find_blob(content: bytes) -> Blob | None:
    return Blob.objects.filter(sha256=build_file_reference(content).sha256).first()
