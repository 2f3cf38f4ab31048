"""Lease to server, under `/api/node/v1/leases/<lease>`: heartbeats, metrics, logs, uploads, the end."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from trainer.protocol.files import Checkpoint, FileRef, Sha256
from trainer.protocol.node import Health
from trainer.protocol.results import Cause
from trainer.protocol.version import Message


class Heartbeat(Message):
    """POST /heartbeat."""

    phase: Literal["preparing", "running", "uploading"]
    seconds: float
    """Wall seconds the job's processes have run under this lease, metered by the agent."""
    health: Health | None = None


class HeartbeatReply(Message):
    stop: Literal["", "finish", "cancel"] = ""
    """"finish": keep the next checkpoint, upload it, hand the job back. "cancel": kill it now, nothing is kept."""
    reason: str = ""


class MetricsBatch(Message):
    """POST /metrics: lines of `metrics.jsonl`. Batches are numbered from 1 within a lease; a repeat does nothing."""

    sequence: int = Field(ge=1)
    rows: tuple[dict[str, Any], ...] = Field(max_length=500)


class LogChunk(Message):
    """POST /log: text of the job's output, at a byte offset within this lease; a repeat does nothing."""

    offset: int = Field(ge=0)
    text: str = Field(max_length=64_000)


class Acknowledgment(Message):
    """How much the server has: the last sequence number, or the byte after the last."""

    received: int


class BlobQuery(Message):
    """POST /blobs: which of these does the server still want? Then `PUT /blobs/<sha256>` sends one, as raw bytes.

    A large one may come in pieces, in order, each with `Content-Range: bytes <first>-<last>/<size>` and answered with
    `Acknowledged`, how far the server has it. `HEAD /blobs/<sha256>` asks for that after a break: `Upload-Offset`.
    """

    files: tuple[FileRef, ...]


class MissingBlobs(Message):
    sha256: tuple[Sha256, ...]


class CheckpointUploaded(Message):
    """POST /checkpoints: every file has been sent; the checkpoint counts from now on."""

    checkpoint: Checkpoint
    files: tuple[FileRef, ...] = ()
    """Small files that stay with the job: `run.json`, so that others can start from a checkpoint of a run that goes on,
    and its weights can be released."""


class FinishLease(Message):
    """POST /finish: the end of a lease, once."""

    outcome: Literal["done", "failed", "released"]
    """"released": not finished, not failed; the job goes back to the queue and on from its last checkpoint."""
    cause: Cause = "infrastructure"
    reason: str = Field(default="", max_length=500)
    """A sentence that the contributor understands."""
    result: dict[str, Any] = {}
    """The kind's own: `result.json` of a training and its `Probes`, the JSON of `dailytrain score`, `Replayed`,
    `Smoked`, `Executed`, `Generated`, `Sat`, `Seated`."""
    files: tuple[FileRef, ...] = ()
    """Files that stay with the job (`run.json`, what a notebook left in `model/`), uploaded like blobs."""
    seconds: float | None = None
    """As in the heartbeat, once nothing runs any more; None: the last heartbeat's word stands."""
