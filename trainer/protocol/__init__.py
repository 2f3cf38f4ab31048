"""Messages between the server, the nodes and the processes that nodes start. `version.py` has the version rules.

The module of a message is imported when the message is first used: a training process needs those of files alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer.protocol.files import GRAPH_FILES, BaseWeights, Checkpoint, DatasetPin, FileRef, GraphFiles, Sha256
    from trainer.protocol.lease import (
        Acknowledgment,
        BlobQuery,
        CheckpointUploaded,
        FinishLease,
        Heartbeat,
        HeartbeatReply,
        LogChunk,
        MetricsBatch,
        MissingBlobs,
    )
    from trainer.protocol.node import (
        ErrorDetail,
        Gpu,
        Hardware,
        Health,
        Lease,
        Poll,
        PollReply,
        Register,
        RegisterReply,
        RegisterVolunteer,
        Rephraser,
        split_evenly,
    )
    from trainer.protocol.orders import (
        GenerateOrder,
        JobLimits,
        JobSpec,
        NotebookOrder,
        Order,
        ProbeSpec,
        ReplayOrder,
        ScoreOrder,
        SelfTestOrder,
        SmokeOrder,
        TrainOrder,
    )
    from trainer.protocol.rephrase import (
        Chunk,
        OutputVerdict,
        Packet,
        PacketVerdict,
        RephrasedPacket,
        RephraseOrder,
        RephraseOutput,
        RephraseResult,
        Sampling,
        Style,
        SubmitPackets,
        SubmitPacketsReply,
        TakePackets,
        TakePacketsReply,
    )
    from trainer.protocol.results import (
        Cause,
        GenerateResult,
        NotebookResult,
        ProbeReading,
        ProbeResults,
        ReplayCheck,
        ReplayResult,
        SelfTestResult,
        SmokeCheckResult,
        SmokeResult,
    )
    from trainer.protocol.swarm import PeerAddress, SwarmOrder, SwarmSampleOrder, WorkerOrder, WorkerResult
    from trainer.protocol.version import VERSION, Message, encode_message, parse_lenient
else:

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"{__name__} has no {name}")
        modules = (importlib.import_module(f"{__name__}.{module}") for module in MODULES)
        globals()[name] = found = next(vars(module)[name] for module in modules if name in vars(module))
        return found


MODULES = ("version", "files", "results", "rephrase", "swarm", "orders", "node", "lease")
__all__ = [
    "GRAPH_FILES",
    "VERSION",
    "Acknowledgment",
    "BaseWeights",
    "BlobQuery",
    "Cause",
    "Checkpoint",
    "CheckpointUploaded",
    "Chunk",
    "DatasetPin",
    "ErrorDetail",
    "FileRef",
    "FinishLease",
    "GenerateOrder",
    "GenerateResult",
    "Gpu",
    "GraphFiles",
    "Hardware",
    "Health",
    "Heartbeat",
    "HeartbeatReply",
    "JobLimits",
    "JobSpec",
    "Lease",
    "LogChunk",
    "Message",
    "MetricsBatch",
    "MissingBlobs",
    "NotebookOrder",
    "NotebookResult",
    "Order",
    "OutputVerdict",
    "Packet",
    "PacketVerdict",
    "PeerAddress",
    "Poll",
    "PollReply",
    "ProbeReading",
    "ProbeResults",
    "ProbeSpec",
    "Register",
    "RegisterReply",
    "RegisterVolunteer",
    "RephraseOrder",
    "RephraseOutput",
    "RephraseResult",
    "RephrasedPacket",
    "Rephraser",
    "ReplayCheck",
    "ReplayOrder",
    "ReplayResult",
    "Sampling",
    "ScoreOrder",
    "SelfTestOrder",
    "SelfTestResult",
    "Sha256",
    "SmokeCheckResult",
    "SmokeOrder",
    "SmokeResult",
    "Style",
    "SubmitPackets",
    "SubmitPacketsReply",
    "SwarmOrder",
    "SwarmSampleOrder",
    "TakePackets",
    "TakePacketsReply",
    "TrainOrder",
    "WorkerOrder",
    "WorkerResult",
    "encode_message",
    "parse_lenient",
    "split_evenly",
]
