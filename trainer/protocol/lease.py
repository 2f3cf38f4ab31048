"""Messages of a lease to the server, under `/api/node/v1/leases/<lease>`: heartbeats, metrics, logs, uploads."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trainer.errors import Fault
from trainer.protocol.files import Checkpoint, FileRef, Sha256
from trainer.protocol.node import Health
from trainer.protocol.results import Cause
from trainer.protocol.version import Count, JsonObject, Message, Seconds, Sentence

PROGRESS_FACTOR = 2.0
"""A job may run this many times as long as it had at its last sign of progress. A tenth of a training's lines come
after a tenth of its time on any machine, so only one that hangs exceeds it."""


class Heartbeat(Message):
    """POST /heartbeat."""

    phase: Literal["preparing", "running", "uploading"]
    seconds: Seconds  # wall-clock seconds that the job's processes have run under this lease, metered by the agent
    health: Health | None = None


class HeartbeatReply(Message):
    stop: Literal["", "finish", "cancel"] = ""
    """"finish": upload the next checkpoint, then release the job. "cancel": kill the job now, keep nothing."""
    reason: Sentence = ""


class MetricsBatch(Message):
    """POST /metrics: lines of `metrics.jsonl`. Batches are numbered from 1 within a lease; repeats are ignored."""

    sequence: int = Field(ge=1, lt=2**31)
    rows: tuple[JsonObject, ...] = Field(max_length=500)


class LogChunk(Message):
    """POST /log: text of the job's output, at a byte offset within this lease; repeats are ignored."""

    offset: Count
    text: str = Field(max_length=64_000)


class Acknowledgment(Message):
    """What the server has received: the last sequence number, or the offset after the last byte."""

    received: Count


class BlobQuery(Message):
    """POST /blobs: query which of these files the server lacks. `PUT /blobs/<sha256>` then sends one, as raw bytes.

    A large file may be sent in pieces, in order, each with `Content-Range: bytes <first>-<last>/<size>`. The reply to
    each is an `Acknowledgment`. After an interruption, `HEAD /blobs/<sha256>` returns the offset in `Upload-Offset`.
    """

    files: tuple[FileRef, ...] = Field(max_length=20_000)


class MissingBlobs(Message):
    sha256: tuple[Sha256, ...] = Field(max_length=20_000)


class CheckpointUploaded(Message):
    """POST /checkpoints: all files have been sent; the checkpoint is valid from now on."""

    checkpoint: Checkpoint
    files: tuple[FileRef, ...] = Field(default=(), max_length=20_000)
    """Small files stored with the job: `run.json`, which others need to start from a checkpoint of an unfinished run or
    to publish its weights."""


class FinishLease(Message):
    """POST /finish: ends the lease, once."""

    outcome: Literal["done", "failed", "released"]
    """"released": neither done nor failed; the job returns to the queue and resumes from its last checkpoint."""
    cause: Cause = "infrastructure"  # "model" with the fault "model", which older agents do not send
    fault: Fault | None = None  # of a failure; None: of the machine
    reason: str = Field(default="", max_length=500)  # a sentence for the contributor
    result: JsonObject = {}
    """By kind of job: `result.json` of a training run with its `ProbeResults`, the JSON of `dailytrain score`,
    `ReplayResult`, `SmokeResult`, `NotebookResult`, `GenerateResult`, `RephraseResult`, `WorkerResult` or
    `SelfTestResult`."""
    files: tuple[FileRef, ...] = Field(default=(), max_length=20_000)
    """Files stored with the job (`run.json`, a notebook's files in `model/`), uploaded like blobs."""
    seconds: Seconds | None = None
    """As in the heartbeat, after all processes have ended; None: use the last heartbeat's value."""
